# SPDX-License-Identifier: GPL-2.0-or-later
"""The resources under /v1 (docs/api.md): each reads the daemon's `Source` and answers JSON.

Long answers are paged.
"""

from __future__ import annotations

import asyncio
import errno
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.model import Flow, FlowState, Level, NicView
from atfnd.serve import Source, moves, views
from atfnd.serve.answers import JSON, error, number, one_object, query_of, row_list
from atfnd.serve.explain import Explanation, explain, explain_absent
from atfnd.serve.selector import Selector

__all__ = ["Api"]

PAGE = 1000  # rows at most; fewer by `limit`
WINDOW = 256  # slots looked at before the loop has its turn
IN_THE_WAY = {Level.WARNING, Level.BLOCKER}
ORDERS: dict[str, Callable[[Source, str], Awaitable[None]]] = {
    "arm": lambda source, nic: source.arm(nic),
    "disarm": lambda source, nic: source.disarm(nic),
    "pause": lambda source, nic: source.pause(nic),
    "resume": lambda source, nic: source.resume(nic),
}


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
            "/v1/doctor": self.doctor,
        }
        return [
            *(web.get(path, handler, allow_head=False) for path, handler in read.items()),
            *(web.post(f"/v1/nics/{{nic}}/{verb}", self.order) for verb in (*ORDERS, "restore")),
            web.post("/v1/disarm", self.disarm),
        ]

    async def status(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        return one_object(moves.status_view(self._source.status(), time.time()))

    async def flows(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, "limit", "cursor", "state", "nic", "pid", "comm")
        limit = number(query, "limit", 100, 1, PAGE)
        slot = number(query, "cursor", 0, 0)
        state = query.get("state")
        states = [s.value for s in FlowState]
        if state is not None and state not in states:
            raise OperatorError(f"no such state: {state}", f"one of {', '.join(states)}")
        pid = number(query, "pid", 0, 1) if "pid" in query else None
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
        return await row_list(
            request, "flows", (views.flow_view(f, now_ns) for f in page), next=more
        )

    async def explain(self, request: web.Request) -> web.StreamResponse:
        selector = Selector.parse(query_of(request, "flow").get("flow", ""))
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
            told = explain(flow, nic, source.topology(), rss_queue, source.remarks(flow))
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
        return one_object(
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
        nics = self._nics(query_of(request, "nic"))
        rows = (row for nic in nics for row in views.queue_views(nic))
        return await row_list(request, "queues", rows)

    async def nics(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        return await row_list(request, "nics", map(views.nic_view, self._source.nics()))

    async def rules(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, "nic", "limit", "cursor")
        limit = number(query, "limit", 100, 1, PAGE)
        after = number(query, "cursor", -1, -1)
        nics = self._nics(query)
        if len(nics) != 1:
            names = ", ".join(nic.name for nic in nics) or "none"
            raise OperatorError("which interface's rules?", f"nic=NAME, one of: {names}")
        nic = nics[0]
        first = bisect_right(nic.rules, after, key=lambda rule: rule.location)
        page = nic.rules[first : first + limit]
        more = page[-1].location if first + limit < len(nic.rules) else None
        return await row_list(request, "rules", (views.rule_view(nic, r) for r in page), next=more)

    async def topology(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        nics = self._source.nics()
        topology = self._source.topology()
        nodes = [views.node_view(node, nics) for node in topology.nodes]
        rows = (views.cpu_view(cpu, nics) for cpu in topology.cpus)
        return await row_list(request, "cpus", rows, nodes=nodes)

    async def events(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, "after", "limit")
        after = number(query, "after", 0, 0)
        page = self._source.events(after, number(query, "limit", 100, 1, PAGE))
        return await row_list(
            request,
            "events",
            map(views.event_view, page),
            next=page[-1].seq if page else after,
            since_wall_s=self._source.status().since_wall_s,
        )

    async def doctor(self, request: web.Request) -> web.StreamResponse:
        name = query_of(request, "nic").get("nic")
        try:
            nics, findings = await self._source.doctor(name)
        except OSError as refusal:
            return _refused("look at", name or "the interfaces", refusal)
        return one_object(
            {
                "nics": [views.nic_view(nic) for nic in nics],
                "findings": [views.finding_view(finding) for finding in findings],
                "clear": not any(finding.level in IN_THE_WAY for finding in findings),
            }
        )

    async def order(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/nics/{nic}/{verb}."""
        query_of(request)
        nic, verb = self._nic(request.match_info["nic"]).name, request.path.rpartition("/")[2]
        restored: dict[str, object] = {}
        try:
            if verb == "restore":
                restored = views.restored_view(await self._source.restore(nic))
            else:
                await ORDERS[verb](self._source, nic)
        except KeyError:
            self._nic(nic)  # it may just have gone
            raise
        except OperatorError as refusal:
            return error(409, refusal.message, refusal.hint)
        except OSError as refusal:
            return _refused(verb, nic, refusal)
        view = self._nic(nic)
        answer = {"nic": nic, "armed": view.armed, "paused": view.paused}
        return one_object({**answer, **restored})

    async def disarm(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/disarm: nothing is changed any more, on any interface."""
        query_of(request)
        await self._source.disarm(None)
        return one_object({"armed": list(self._source.status().armed)})

    def _nic(self, name: str) -> NicView:
        nics = self._source.nics()
        for nic in nics:
            if nic.name == name:
                return nic
        known = ", ".join(nic.name for nic in nics) or "none"
        body = error(404, f"no such interface: {name}", f"interfaces atfnd watches: {known}")
        raise web.HTTPNotFound(text=body.text, content_type=JSON)

    def _nics(self, query: Mapping[str, str]) -> list[NicView]:
        return [self._nic(query["nic"])] if "nic" in query else list(self._source.nics())


def _refused(verb: str, nic: str, refusal: OSError) -> web.Response:
    name = errno.errorcode.get(refusal.errno or 0, str(refusal.errno))
    message = f"the kernel refused to {verb} {nic}: {refusal.strerror} ({name})"
    return error(409, message, "see `atfnctl events`")
