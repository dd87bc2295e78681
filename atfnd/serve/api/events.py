# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/events` and `/v1/events/stream`: what the daemon did and noticed, by page or live.

The stream is server-sent events (HTML Living Standard, section 9.2): an `id` is the start of the
daemon, in ms, and the number of the event since then, so that a client which comes back after a
restart, with `Last-Event-ID`, misses nothing and gets nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import re

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.model import Event
from atfnd.serve import Source
from atfnd.serve.api.answers import number, query_of, row_list, streaming, write
from atfnd.serve.api.flows import PAGE
from atfnd.serve.api.views import event_view

__all__ = ["Events"]

SSE = "text/event-stream"
BEAT_S = 5.0  # without an event, until a line that says nothing: a client that went is noticed
PART = 32  # events written at once
ID = re.compile(r"([0-9]{1,15})-([0-9]{1,18})", re.ASCII)


class Events:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/events", self.page, allow_head=False),
            web.get("/v1/events/stream", self.stream, allow_head=False),
        ]

    async def page(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/events?after=&limit=."""
        query = query_of(request, "after", "limit")
        after = number(query, "after", 0, 0)
        page = self._source.events(after, number(query, "limit", 100, 1, PAGE))
        more = {"next": page[-1].seq if page else after, "since_wall_s": self._since_s()}
        return await row_list(request, "events", map(event_view, page), lambda: more)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/events/stream?after=: those above `after` or behind `Last-Event-ID`, without end.
        A gap is an event of its own, `lost`, that says how many are not retained."""
        after = self._resumed(request, number(query_of(request, "after"), "after", 0, 0))
        response = await streaming(request, SSE)
        await write(request, response, "retry: 1000\n\n")
        while True:
            page = self._source.events(after, PART)
            if not page:
                try:
                    async with asyncio.timeout(BEAT_S):
                        await self._source.later_than(after)
                except TimeoutError:
                    await write(request, response, ":\n\n")
                continue
            text = ""
            if after and page[0].seq > after + 1:
                text = _message("lost", None, {"count": page[0].seq - after - 1})
            run = round(self._since_s() * 1000)
            text += "".join(_in_words(event, run) for event in page)
            await write(request, response, text)
            after = page[-1].seq

    def _resumed(self, request: web.Request, after: int) -> int:
        """Where a client goes on that was here before; to one from another run, all events are
        new."""
        last = request.headers.get("Last-Event-ID")
        if last is None:
            return after
        found = ID.fullmatch(last)
        if found is None:
            raise OperatorError("Last-Event-ID is not one of ours", "leave it out")
        same_run = int(found[1]) == round(self._since_s() * 1000)
        return int(found[2]) if same_run else 0

    def _since_s(self) -> float:
        return self._source.status().since_wall_s


def _in_words(event: Event, run: int) -> str:
    return _message(event.kind, f"{run}-{event.seq}", event_view(event))


def _message(kind: str, identity: str | None, data: object) -> str:
    given = f"id: {identity}\n" if identity else ""
    return f"{given}event: {kind}\ndata: {json.dumps(data)}\n\n"
