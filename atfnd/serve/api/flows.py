# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/flows` and `/v1/flows/stream`: the Flow-to-Core table, a page at a time or whole.

The table is read live, slot by slot: nothing is copied, and a flow that stays is met exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Annotated, NamedTuple

from aiohttp import web
from pydantic import Field
from typing_extensions import TypedDict

from atfnd.errors import OperatorError
from atfnd.model import Flow, FlowState, SocketFound, SocketState
from atfnd.serve import Source
from atfnd.serve.api.answers import line_stream, row_list
from atfnd.serve.api.empty import no_flows
from atfnd.serve.api.interfaces import NIC, known
from atfnd.serve.api.route import LINES, QUERY, Route, Text, Whole
from atfnd.serve.api.views import FlowShown, flow_view, socket_view

__all__ = ["LIMIT", "PAGE", "Flows", "Walk"]

PAGE = 1000  # rows at most; fewer by `limit`
STATES = sorted({each.value for each in (*FlowState, *SocketState)})
UNSTEERED = {each.value for each in SocketState}
LIMIT = Whole("limit", 1, PAGE, 100, "The most rows.")
CURSOR = Whole("cursor", 0, default=0, about="`next` of the previous page.")
STATE = Text("state", "Only flows in this state.", bounds={"enum": STATES})
PID = Whole("pid", 1, about="Only flows of this process.")
COMM = Text("comm", "Only flows of threads with this name; a shell pattern.")
ONLY = STATE, NIC, PID, COMM
ALL = Whole(
    "all", 0, 1, 0,
    "1: also flows without an entry, `local` and `left`. Their sockets are read for this answer.",
)  # fmt: skip


class FlowPage(TypedDict):
    """Flows, and the cursor of the next page."""

    flows: Annotated[list[FlowShown], Field(max_length=PAGE)]
    next: int | None
    """`cursor` of the next page."""
    why_empty: str | None
    """Why there is no row, in a sentence; null, there are rows, or there were before."""


class FlowFilter(NamedTuple):
    """What a query asks for; None is any. `comm` is a shell pattern."""

    state: str | None
    nic: str | None
    pid: int | None
    comm: str | None

    @classmethod
    def of(cls, request: web.Request) -> FlowFilter:
        """OperatorError: no such state, or no number."""
        state = STATE.of(request)
        if state is not None and state not in STATES:
            raise OperatorError(f"no such state: {state}", f"one of {', '.join(STATES)}")
        return cls(state, NIC.of(request), PID.given(request), COMM.of(request))

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

    def routes(self) -> list[Route]:
        stream, lines = (ALL, *ONLY), (LINES,)
        return [
            Route("GET", "/v1/flows", "flows", self.page, FlowPage, (LIMIT, CURSOR, *ONLY)),
            Route("GET", "/v1/flows/stream", "flowStream", self.stream, FlowShown, stream, lines),
        ]

    async def page(self, request: web.Request) -> web.StreamResponse:
        """A page of the Flow-to-Core table."""
        limit, first, only = LIMIT.of(request), CURSOR.of(request), self._only(request)
        walk = Walk(self._source.flows(), first)
        rows = _rows(self._source, walk, only, limit)

        def rest() -> dict[str, object]:
            empty = not (first or walk.shown or walk.more())
            return {
                "next": walk.slot if walk.more() else None,
                "why_empty": self._why_empty(request) if empty else None,
            }

        return await row_list(request, "flows", rows, rest)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The whole Flow-to-Core table, and every flow without an entry.

        One flow per line. Those without an entry are in it with all=1, or with a state that only
        they have."""
        only = self._only(request)
        rows = _rows(self._source, Walk(self._source.flows()), only)
        if ALL.of(request) or only.state in UNSTEERED:
            rows = chain(rows, _unsteered(self._source, only))
        return await line_stream(request, rows)

    def _why_empty(self, request: web.Request) -> str:
        query = request[QUERY]
        only = {each.name: query[each.name] for each in ONLY if each.name in query}
        return no_flows(self._source.status(), len(self._source.names()), only)

    def _only(self, request: web.Request) -> FlowFilter:
        only = FlowFilter.of(request)
        if only.nic is not None:
            known(self._source, only.nic)
        return only


def _rows(
    source: Source, walk: Walk, only: FlowFilter, limit: int | None = None
) -> Iterator[FlowShown | None]:
    for flow in walk:
        if flow is None or not only.passes(flow):
            yield None
            continue
        yield flow_view(flow, time.monotonic_ns(), source.audited_ns)
        walk.shown += 1
        if walk.shown == limit:
            return


def _unsteered(source: Source, only: FlowFilter) -> Iterator[FlowShown | None]:
    for found in source.sockets():
        if found is None or not only.passes(found):
            yield None
            continue
        yield socket_view(found, source.left_by(found.key))
