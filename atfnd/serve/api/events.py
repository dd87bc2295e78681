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
from datetime import UTC, datetime
from typing import Annotated

from aiohttp import web
from pydantic import Field
from typing_extensions import TypedDict

from atfnd.errors import OperatorError
from atfnd.model import Event
from atfnd.serve import Source
from atfnd.serve.api.answers import row_list, streaming, write
from atfnd.serve.api.flows import LIMIT, PAGE
from atfnd.serve.api.route import Route, Text, Whole
from atfnd.serve.api.values import Positive, shown

__all__ = ["Events"]

SSE = "text/event-stream"
BEAT_S = 5.0  # without an event, until a line that says nothing: a client that went is noticed
PART = 32  # events written at once
ID = re.compile("([0-9]{1,15})-([0-9]{1,18})")


AFTER = Whole("after", 0, default=0, about="Only events with a higher `seq`.")
LAST = Text(
    "Last-Event-ID",
    "The `id` received last; overrides `after`.",
    where="header",
    bounds={"pattern": f"^{ID.pattern}$"},
)


class EventShown(TypedDict):
    """What the daemon did or noticed."""

    seq: Positive
    at_ns: int
    """CLOCK_MONOTONIC."""
    time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    kind: str
    nic: str | None
    flow: str | None
    what: str
    why: str
    why_code: str | None
    """Of a reason that has one."""
    rule: str | None
    old: str | None
    """For a change, the value last read before it."""
    new: str | None
    source: str | None
    """file:line of the rule that caused it."""
    errno: str | None
    """ENOSPC: the kernel refused."""


class EventPage(TypedDict):
    """Events that are still kept."""

    events: Annotated[list[EventShown], Field(max_length=PAGE)]
    next: int
    """`after` of the next page."""
    since_wall_s: float
    """Another value means that the daemon was restarted."""


class Events:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        taken = AFTER, LAST
        return [
            Route("GET", "/v1/events", "events", self.page, EventPage, (AFTER, LIMIT)),
            Route("GET", "/v1/events/stream", "eventStream", self.stream, str, taken, (SSE,)),
        ]

    async def page(self, request: web.Request) -> web.StreamResponse:
        """A page of what the daemon did and noticed, oldest first."""
        after = AFTER.of(request)
        page = self._source.events(after, LIMIT.of(request))
        more = {"next": page[-1].seq if page else after, "since_wall_s": self._since_s()}
        return await row_list(request, "events", map(_event_view, page), lambda: more)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Events as they happen, without end.

        Server-sent events. `event` is the kind, `data` an event as `/v1/events` has it, `id` what a
        client sends as `Last-Event-ID` when it comes back. A gap is `event: lost` with
        `{"count": N}`: so many are not retained."""
        after = self._resumed(request, AFTER.of(request))
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
        last = request.headers.get(LAST.name)
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
    return _message(event.kind, f"{run}-{event.seq}", _event_view(event))


def _event_view(event: Event) -> EventShown:
    time = datetime.fromtimestamp(event.wall_s, UTC).isoformat(timespec="milliseconds")
    return shown(EventShown, event, time=time, flow=str(event.flow) if event.flow else None)


def _message(kind: str, identity: str | None, data: object) -> str:
    given = f"id: {identity}\n" if identity else ""
    return f"{given}event: {kind}\ndata: {json.dumps(data)}\n\n"
