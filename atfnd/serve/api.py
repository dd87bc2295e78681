# SPDX-License-Identifier: GPL-2.0-or-later
"""The resources under /v1 (docs/api.md): each reads the daemon's `Source` and answers JSON.

Long answers are paged, and written row by row: one large json.dumps would hold the daemon's loop.
"""

from __future__ import annotations

import asyncio
import errno
import json
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.model import Flow, FlowState, NicView
from atfnd.serve import Source, views
from atfnd.serve.explain import Explanation, explain, explain_absent
from atfnd.serve.selector import Selector

__all__ = ["Api", "error"]

PAGE = 1000  # rows at most; fewer by `limit`
WINDOW = 256  # slots looked at before the loop has its turn
ROWS = 16  # rows encoded before the loop has its turn
WRITE_S = 10.0  # a reader that takes nothing for so long is let go
TYPE = "application/json"


def error(status: int, message: str, hint: str | None = None) -> web.Response:
    """`{"error": ..., "hint": ...}`."""
    body = json.dumps({"error": message, "hint": hint}) + "\n"
    return web.Response(status=status, text=body, content_type=TYPE)


class FlowFilter(NamedTuple):
    """Query of /v1/flows; None is any. `comm` is a shell pattern."""

    state: FlowState | None
    nic: str | None
    pid: int | None
    comm: str | None

    def passes(self, flow: Flow) -> bool:
        thread = flow.thread
        return (
            self.state in (None, flow.state)
            and self.nic in (None, flow.nic)
            and (self.pid is None or (thread is not None and thread.pid == self.pid))
            and (self.comm is None or (thread is not None and fnmatchcase(thread.comm, self.comm)))
        )


class Api:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[web.RouteDef]:
        read = {
            "/v1/status": self.status,
            "/v1/flows": self.flows,
            "/v1/explain": self.explain,
            "/v1/queues": self.queues,
            "/v1/nics": self.nics,
            "/v1/rules": self.rules,
            "/v1/topology": self.topology,
            "/v1/events": self.events,
        }
        return [
            *(web.get(path, handler, allow_head=False) for path, handler in read.items()),
            web.post("/v1/nics/{nic}/arm", self.arm),
            web.post("/v1/nics/{nic}/disarm", self.disarm),
        ]

    async def status(self, request: web.Request) -> web.StreamResponse:
        _query(request)
        return _object(views.status_view(self._source.status(), time.time()))

    async def flows(self, request: web.Request) -> web.StreamResponse:
        query = _query(request, "limit", "cursor", "state", "nic", "pid", "comm")
        limit = _number(query, "limit", 100, 1, PAGE)
        slot = _number(query, "cursor", 0, 0)
        state = query.get("state")
        states = [s.value for s in FlowState]
        if state is not None and state not in states:
            raise OperatorError(f"no such state: {state}", f"one of {', '.join(states)}")
        pid = _number(query, "pid", 0, 1) if "pid" in query else None
        wanted = FlowFilter(
            FlowState(state) if state else None, query.get("nic"), pid, query.get("comm")
        )
        if wanted.nic is not None:
            self._nic(wanted.nic)
        page: list[Flow] = []
        table = self._source.flows()
        while slot < len(table) and len(page) < limit:
            for flow in table[slot : slot + WINDOW]:
                slot += 1
                if flow is not None and wanted.passes(flow):
                    page.append(flow)
                    if len(page) == limit:
                        break
            await asyncio.sleep(0)
        now_ns = time.monotonic_ns()
        more = slot if slot < len(table) else None
        return await _rows(request, "flows", (views.flow_view(f, now_ns) for f in page), next=more)

    async def explain(self, request: web.Request) -> web.StreamResponse:
        selector = Selector.parse(_query(request, "flow").get("flow", ""))
        found = await self._select(selector)
        if len(found) > 1:
            which = "; ".join(f"cookie:{flow.cookie} ({flow.key})" for flow in found)
            raise OperatorError(f"`{selector.text}` names more than one flow", f"name one: {which}")
        source = self._source
        nics = source.nics()
        if found:
            flow = found[0]
            nic = next((nic for nic in nics if nic.name == flow.nic), None)
            rss_queue = source.rss_queue(flow.nic, flow.key) if nic else None
            told = explain(flow, nic, source.topology(), rss_queue)
            view = views.flow_view(flow, time.monotonic_ns())
        elif selector.keys:
            key = selector.keys[0]
            there = [(nic, source.rss_queue(nic.name, key)) for nic in nics]
            told = explain_absent(key, there, source.left_by(key))
            view = None
        else:
            told = Explanation(
                (),
                f"No flow in the Flow-to-Core table has {selector.text}.",
                "atfnctl flows lists them; name both ends to see where RSS sends a flow",
            )
            view = None
        return _object(
            {
                "flow": view,
                "chain": list(told.chain),
                "verdict": told.verdict,
                "advice": told.advice,
            }
        )

    async def _select(self, selector: Selector, most: int = 6) -> list[Flow]:
        found: list[Flow] = []
        table, slot = self._source.flows(), 0
        while slot < len(table) and len(found) < most:
            found += (f for f in table[slot : slot + WINDOW] if f and selector.matches(f))
            slot += WINDOW
            await asyncio.sleep(0)
        return found[:most]

    async def queues(self, request: web.Request) -> web.StreamResponse:
        nics = self._nics(_query(request, "nic"))
        rows = (row for nic in nics for row in views.queue_views(nic))
        return await _rows(request, "queues", rows)

    async def nics(self, request: web.Request) -> web.StreamResponse:
        _query(request)
        return await _rows(request, "nics", map(views.nic_view, self._source.nics()))

    async def rules(self, request: web.Request) -> web.StreamResponse:
        query = _query(request, "nic", "limit", "cursor")
        limit = _number(query, "limit", 100, 1, PAGE)
        after = _number(query, "cursor", -1, -1)
        nics = self._nics(query)
        if len(nics) != 1:
            names = ", ".join(nic.name for nic in nics) or "none"
            raise OperatorError("which interface's rules?", f"nic=NAME, one of: {names}")
        nic = nics[0]
        first = bisect_right(nic.rules, after, key=lambda rule: rule.location)
        page = nic.rules[first : first + limit]
        more = page[-1].location if first + limit < len(nic.rules) else None
        return await _rows(request, "rules", (views.rule_view(nic, r) for r in page), next=more)

    async def topology(self, request: web.Request) -> web.StreamResponse:
        _query(request)
        nics = self._source.nics()
        rows = (views.cpu_view(cpu, nics) for cpu in self._source.topology().cpus)
        return await _rows(request, "cpus", rows)

    async def events(self, request: web.Request) -> web.StreamResponse:
        query = _query(request, "after", "limit")
        after = _number(query, "after", 0, 0)
        page = self._source.events(after, _number(query, "limit", 100, 1, PAGE))
        return await _rows(
            request,
            "events",
            map(views.event_view, page),
            next=page[-1].seq if page else after,
            since_wall_s=self._source.status().since_wall_s,
        )

    async def arm(self, request: web.Request) -> web.StreamResponse:
        return await self._set_armed(request, True)

    async def disarm(self, request: web.Request) -> web.StreamResponse:
        return await self._set_armed(request, False)

    async def _set_armed(self, request: web.Request, armed: bool) -> web.StreamResponse:
        _query(request)
        nic = self._nic(request.match_info["nic"]).name
        try:
            await (self._source.arm(nic) if armed else self._source.disarm(nic))
        except KeyError:
            self._nic(nic)  # it may just have gone
            raise
        except OperatorError as refusal:
            return error(409, refusal.message, refusal.hint)
        except OSError as refusal:
            name = errno.errorcode.get(refusal.errno or 0, str(refusal.errno))
            verb = "arm" if armed else "disarm"
            message = f"the kernel refused to {verb} {nic}: {refusal.strerror} ({name})"
            return error(409, message, "see `atfnctl events`")
        return _object({"nic": nic, "armed": armed})

    def _nic(self, name: str) -> NicView:
        nics = self._source.nics()
        for nic in nics:
            if nic.name == name:
                return nic
        known = ", ".join(nic.name for nic in nics) or "none"
        body = error(404, f"no such interface: {name}", f"interfaces atfnd watches: {known}")
        raise web.HTTPNotFound(text=body.text, content_type=TYPE)

    def _nics(self, query: Mapping[str, str]) -> list[NicView]:
        return [self._nic(query["nic"])] if "nic" in query else list(self._source.nics())


def _query(request: web.Request, *known: str) -> dict[str, str]:
    """The query, or OperatorError for a parameter that is unknown, repeated or empty."""
    query: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            takes = ", ".join(known) or "no parameters"
            raise OperatorError(f"unknown parameter: {name}", f"{request.path} takes {takes}")
        if name in query or not value:
            fault = "empty" if not value else "given twice"
            raise OperatorError(f"parameter {name} is {fault}")
        query[name] = value
    return query


def _number(
    query: Mapping[str, str], name: str, default: int, low: int, high: int = 2**63 - 1
) -> int:
    text = query.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise OperatorError(f"{name}={text}: not a whole number")
    if not low <= int(text) <= high:
        raise OperatorError(f"{name}={text}: not between {low} and {high}")
    return int(text)


def _object(view: Mapping[str, object]) -> web.Response:
    return web.Response(text=json.dumps(view) + "\n", content_type=TYPE)


async def _rows(
    request: web.Request, name: str, rows: Iterable[views.View], **rest: object
) -> web.StreamResponse:
    """`{name: [...], **rest}`, one row a line."""
    response = web.StreamResponse(headers={"Content-Type": TYPE})
    await response.prepare(request)
    chunk, first = [f'{{"{name}": ['], True
    for row in rows:
        chunk.append(("\n" if first else ",\n") + json.dumps(row))
        first = False
        if len(chunk) >= ROWS:
            await _write(request, response, chunk)
            chunk = []
    chunk.append("]" + "".join(f', "{key}": {json.dumps(value)}' for key, value in rest.items()))
    await _write(request, response, [*chunk, "}\n"])
    await response.write_eof()
    return response


async def _write(request: web.Request, response: web.StreamResponse, chunk: list[str]) -> None:
    """ConnectionResetError: the reader went away, or took nothing for too long."""
    try:
        async with asyncio.timeout(WRITE_S):
            await response.write("".join(chunk).encode())
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader takes nothing") from None
    await asyncio.sleep(0)
