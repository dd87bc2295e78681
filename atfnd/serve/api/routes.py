# SPDX-License-Identifier: GPL-2.0-or-later
"""The resources under /v1 (docs/api.md): each reads the daemon's `Source` and answers JSON.

Long answers are paged.
"""

from __future__ import annotations

import asyncio
import errno
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from math import inf
from pathlib import Path

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.model import Finding, Flow, SocketFound
from atfnd.serve import Source
from atfnd.serve.api import moves, views
from atfnd.serve.api.answers import error, number, one_object, query_of, row_list, slices
from atfnd.serve.api.empty import NO_NIC, no_queues
from atfnd.serve.api.flows import PAGE, Walk
from atfnd.serve.api.interfaces import known, seen, seen_all
from atfnd.serve.api.selector import Selector
from atfnd.serve.explain.explain import (
    Explanation,
    explain,
    explain_absent,
    explain_several,
    explain_unsteered,
    explanation_view,
)

__all__ = ["FILE", "Api"]

FILE = Path(__file__).with_name("openapi.yaml")  # the description of the API for programs
LATEST_S = 60.0  # between two looks of a doctor for readers that ask again and again
LISTED = 100  # at most, when a selector names more than one flow
ORDERS: dict[str, Callable[[Source, str], Awaitable[None]]] = {
    "arm": lambda source, nic: source.arm(nic),
    "disarm": lambda source, nic: source.disarm(nic),
    "pause": lambda source, nic: source.pause(nic),
    "resume": lambda source, nic: source.resume(nic),
}


class Api:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._one_look = asyncio.Lock()  # a doctor's opens every interface
        self._looked_s, self._findings = -inf, list[Finding]()  # the latest look, and what it found
        self._openapi = FILE.read_text(encoding="utf-8")

    def routes(self) -> list[web.RouteDef]:
        read = {
            "/v1/status": self.status,
            "/v1/history": self.history,
            "/v1/explain": self.explain,
            "/v1/queues": self.queues,
            "/v1/nics": self.nics,
            "/v1/filters": self.filters,
            "/v1/topology": self.topology,
            "/v1/cpu-time": self.cpu_time,
            "/v1/doctor": self.doctor,
            "/v1/doctor/latest": self.latest_findings,
            "/v1/openapi.yaml": self.openapi,
        }
        return [
            *(web.get(path, handler, allow_head=False) for path, handler in read.items()),
            *(web.post(f"/v1/nics/{{nic}}/{verb}", self.order) for verb in (*ORDERS, "restore")),
            web.post("/v1/disarm", self.disarm),
        ]

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        return web.Response(text=self._openapi, content_type="application/yaml")

    async def cpu_time(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        return one_object(views.cpu_time_view(*self._source.cpu_time()))

    async def status(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        return one_object(moves.status_view(self._source.status(), time.monotonic_ns()))

    async def history(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        since_ns, found = self._source.status().since_ns, self._source.history()
        rows = (moves.sample_view(each, since_ns) for each in found.samples)
        return await row_list(request, "samples", rows, lambda: {"every_s": found.every_s})

    async def explain(self, request: web.Request) -> web.StreamResponse:
        selector, source = Selector.parse(query_of(request, "flow").get("flow", "")), self._source
        found = await self._select(request, selector, Walk(source.flows()))
        found = found or await self._select(request, selector, source.sockets())
        shown = list(map(self._view_of, found))
        if len(found) > 1:
            explanation = explain_several(selector.text, found[0].key, len(found), LISTED)
            return one_object({"flow": None, "flows": shown} | explanation_view(explanation))
        explanation = self._explained(selector, found[0] if found else None)
        view = shown[0] if shown else None
        return one_object({"flow": view, "flows": []} | explanation_view(explanation))

    async def _select(
        self,
        request: web.Request,
        selector: Selector,
        among: Iterable[Flow | SocketFound | None],
    ) -> list[Flow | SocketFound]:
        found = list[Flow | SocketFound]()
        matching = (each if each and selector.matches(each) else None for each in among)
        sliced: AsyncGenerator[list[Flow | SocketFound], None] = slices(request, matching)
        async with aclosing(sliced) as parts:
            async for part in parts:
                found += part
                if len(found) > LISTED:
                    break
        return found[:LISTED]

    def _view_of(self, found: Flow | SocketFound) -> views.View:
        if isinstance(found, Flow):
            return views.flow_view(found, time.monotonic_ns(), self._source.audited_ns)
        return views.socket_view(found, self._source.left_by(found.key))

    def _explained(self, selector: Selector, found: Flow | SocketFound | None) -> Explanation:
        source = self._source
        nics = {nic.name: nic for nic in source.nics()}
        if found is not None:
            nic = nics.get(found.nic)
            rss_queue = source.rss_queue(found.nic, found.key) if nic else None
            remarks = source.port_remarks(found.key)
            if isinstance(found, Flow):
                remarks = (*source.remarks(found), *remarks)
                return explain(found, nic, source.topology(), rss_queue, remarks)
            left_by = source.left_by(found.key)
            return explain_unsteered(found, nic, source.topology(), rss_queue, left_by, remarks)
        if selector.keys:
            key = selector.keys[0]
            there = [(nic, source.rss_queue(nic.name, key)) for nic in nics.values()]
            return explain_absent(key, there, source.left_by(key), source.port_remarks(key))
        return Explanation(
            (),
            f"No flow through a watched interface has {selector.text}.",
            "atfnctl flows --all lists them; name both ends to see where RSS sends a flow",
        )

    async def queues(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, "nic")
        nics = seen_all(self._source, query)
        rows = (row for nic in nics for row in views.queue_views(nic))
        why = None if any(nic.queues for nic in nics) else no_queues(query.get("nic"))
        return await row_list(request, "queues", rows, lambda: {"why_empty": why})

    async def nics(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        nics = self._source.nics()
        why = None if nics else NO_NIC
        return await row_list(
            request, "nics", map(views.nic_view, nics), lambda: {"why_empty": why}
        )

    async def filters(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, "nic", "limit", "cursor")
        limit = number(query, "limit", 100, 1, PAGE)
        after = number(query, "cursor", -1, -1)
        nics = seen_all(self._source, query)
        if len(nics) != 1:
            names = ", ".join(nic.name for nic in nics) or "none"
            raise OperatorError("which interface's filters?", f"nic=NAME, one of: {names}")
        nic = nics[0]
        first = bisect_right(nic.filters, after, key=lambda each: each.location)
        page = nic.filters[first : first + limit]
        more = page[-1].location if first + limit < len(nic.filters) else None
        rows = (views.filter_view(nic, each) for each in page)
        return await row_list(request, "filters", rows, lambda: {"next": more})

    async def topology(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        nics = self._source.nics()
        topology = self._source.topology()
        nodes = [views.node_view(node, nics) for node in topology.nodes]
        rows = (views.cpu_view(cpu, nics) for cpu in topology.cpus)
        return await row_list(request, "cpus", rows, lambda: {"nodes": nodes})

    async def doctor(self, request: web.Request) -> web.StreamResponse:
        name = query_of(request, "nic").get("nic")
        try:
            async with self._one_look:
                nics, findings = await self._source.doctor(name)
        except OSError as refusal:
            return _refused("look at", name or "the interfaces", refusal)
        return one_object(views.doctor_view(nics, findings))

    async def latest_findings(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/doctor/latest: looks at most once in LATEST_S, however many readers ask."""
        query_of(request)
        async with self._one_look:
            if time.monotonic() - self._looked_s > LATEST_S:
                try:
                    _, findings = await self._source.doctor(None)
                except OSError as refusal:
                    return _refused("look at", "the interfaces", refusal)
                self._findings, self._looked_s = views.in_the_way(findings), time.monotonic()
        rows = [views.finding_view(each) for each in self._findings]
        age_s = round(time.monotonic() - self._looked_s, 3)
        return one_object({"findings": rows, "age_s": age_s})

    async def order(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/nics/{nic}/{verb}."""
        query_of(request)
        nic, verb = known(self._source, request.match_info["nic"]), request.path.rpartition("/")[2]
        restored: dict[str, object] = {}
        try:
            if verb == "restore":
                restored = views.restored_view(await self._source.restore(nic))
            else:
                await ORDERS[verb](self._source, nic)
        except KeyError:
            known(self._source, nic)  # it may just have gone
            raise
        except OperatorError as refusal:
            return error(409, refusal.message, refusal.hint)
        except OSError as refusal:
            return _refused(verb, nic, refusal)
        view = seen(self._source, nic)
        answer = {"nic": nic, "armed": view.armed, "paused": view.paused}
        return one_object({**answer, **restored})

    async def disarm(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/disarm: nothing is changed any more, on any interface."""
        query_of(request)
        try:
            await self._source.disarm(None)
        except OperatorError as refusal:
            return error(409, refusal.message, refusal.hint)
        return one_object({"armed": list(self._source.status().armed)})


def _refused(verb: str, nic: str, refusal: OSError) -> web.Response:
    name = errno.errorcode.get(refusal.errno or 0, str(refusal.errno))
    message = f"the kernel refused to {verb} {nic}: {refusal.strerror} ({name})"
    return error(409, message, "see `atfnctl events`")
