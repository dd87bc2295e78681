# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/flows` and `/v1/flows/stream`: the Flow-to-Core table, a page at a time or whole.

The table is read live, slot by slot: nothing is copied, and a flow that stays is met exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import NamedTuple

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.model import Flow, FlowState, SocketFound, SocketState
from atfnd.serve import Source
from atfnd.serve.api import views
from atfnd.serve.api.answers import line_stream, number, query_of, row_list
from atfnd.serve.api.empty import no_flows
from atfnd.serve.api.interfaces import known

__all__ = ["PAGE", "Flows", "Walk"]

PAGE = 1000  # rows at most; fewer by `limit`
ONLY = ("state", "nic", "pid", "comm")
STATES = {each.value for each in FlowState}
UNSTEERED = {each.value for each in SocketState}


class FlowFilter(NamedTuple):
    """What a query asks for; None is any. `comm` is a shell pattern."""

    state: str | None
    nic: str | None
    pid: int | None
    comm: str | None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> FlowFilter:
        """OperatorError: no such state, or no number."""
        state = query.get("state")
        states = STATES | UNSTEERED
        if state is not None and state not in states:
            raise OperatorError(f"no such state: {state}", f"one of {', '.join(sorted(states))}")
        pid = number(query, "pid", 0, 1) if "pid" in query else None
        return cls(state, query.get("nic"), pid, query.get("comm"))

    def passes(self, flow: Flow | SocketFound) -> bool:
        thread = flow.thread
        return (
            self.state in (None, flow.state.value)
            and self.nic in (None, flow.nic)
            and (self.pid is None or (thread is not None and thread.pid == self.pid))
            and (self.comm is None or (thread is not None and fnmatchcase(thread.comm, self.comm)))
        )


class Walk:
    """The table from a slot on; `slot` is the next one. Ends after the last slot there is then.
    `shown`: how many rows were made of it."""

    def __init__(self, table: Sequence[Flow | None], slot: int = 0) -> None:
        self._table = table
        self.slot = slot
        self.shown = 0

    def __iter__(self) -> Iterator[Flow | None]:
        while self.more():
            flow = self._table[self.slot]
            self.slot += 1
            yield flow

    def more(self) -> bool:
        """Some slots were not looked at yet."""
        return self.slot < len(self._table)


class Flows:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/flows", self.page, allow_head=False),
            web.get("/v1/flows/stream", self.stream, allow_head=False),
        ]

    async def page(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/flows?limit=&cursor=&state=&nic=&pid=&comm=."""
        query = query_of(request, "limit", "cursor", *ONLY)
        limit = number(query, "limit", 100, 1, PAGE)
        first = number(query, "cursor", 0, 0)
        walk = Walk(self._source.flows(), first)
        rows = _rows(self._source, walk, self._only(query), limit)

        def rest() -> views.View:
            empty = not (first or walk.shown or walk.more())
            return {
                "next": walk.slot if walk.more() else None,
                "why_empty": self._why_empty(query) if empty else None,
            }

        return await row_list(request, "flows", rows, rest)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/flows/stream?state=&nic=&pid=&comm=&all=: JSON lines, all matching flows; with
        all=1, or a state that only these have, those without an entry, too."""
        query = query_of(request, *ONLY, "all")
        only = self._only(query)
        rows = _rows(self._source, Walk(self._source.flows()), only)
        if number(query, "all", 0, 0, 1) or only.state in UNSTEERED:
            rows = chain(rows, _unsteered(self._source, only))
        return await line_stream(request, rows)

    def _why_empty(self, query: Mapping[str, str]) -> str:
        only = {name: query[name] for name in ONLY if name in query}
        return no_flows(self._source.status(), len(self._source.names()), only)

    def _only(self, query: Mapping[str, str]) -> FlowFilter:
        only = FlowFilter.of(query)
        if only.nic is not None:
            known(self._source, only.nic)
        return only


def _rows(
    source: Source, walk: Walk, only: FlowFilter, limit: int | None = None
) -> Iterator[views.View | None]:
    for flow in walk:
        if flow is None or not only.passes(flow):
            yield None
            continue
        yield views.flow_view(flow, time.monotonic_ns(), source.audited_ns)
        walk.shown += 1
        if walk.shown == limit:
            return


def _unsteered(source: Source, only: FlowFilter) -> Iterator[views.View | None]:
    for found in source.sockets():
        if found is None or not only.passes(found):
            yield None
            continue
        yield views.socket_view(found, source.left_by(found.key))
