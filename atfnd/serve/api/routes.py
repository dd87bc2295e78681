# SPDX-License-Identifier: GPL-2.0-or-later
"""The resources under /v1 (docs/api.md): each reads the daemon's `Source` and answers JSON.

Long answers are paged.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from math import inf
from typing import Annotated

from aiohttp import web
from pydantic import Field
from typing_extensions import TypedDict

from atfnd.errors import OperatorError
from atfnd.model import Finding, Flow, SocketFound
from atfnd.serve import Source
from atfnd.serve.api import machine_views, moves, nic_views
from atfnd.serve.api.answers import one_object, row_list, slices
from atfnd.serve.api.empty import NO_NIC, no_queues
from atfnd.serve.api.findings import Diagnosis, FindingShown, doctor_view, finding_view, in_the_way
from atfnd.serve.api.flows import LIMIT, PAGE, Walk
from atfnd.serve.api.interfaces import NIC, seen_all
from atfnd.serve.api.orders import kernel_refused
from atfnd.serve.api.route import Route, Text, Whole
from atfnd.serve.api.selector import Selector
from atfnd.serve.api.values import Amount
from atfnd.serve.api.views import FlowShown, flow_view, socket_view
from atfnd.serve.explain.explain import (
    Explanation,
    ExplanationShown,
    explain,
    explain_absent,
    explain_several,
    explain_unsteered,
    explanation_view,
)

__all__ = ["Api"]

LATEST_S = 60.0  # between two looks of a doctor for readers that ask again and again
LISTED = 100  # at most, when a selector names more than one flow
FLOW = Text(
    "flow",
    "`tcp LOCAL REMOTE`, `:PORT`, `cookie:NUMBER`; docs/api.md has all forms.",
    required=True,
    example="tcp 10.0.0.2:5201 10.9.0.1:40000",
)
LOOKED_AT = Text("nic", "Observed or not. If left out, all observed interfaces and the machine.")
BEHIND = Whole("cursor", -1, default=-1, about="`next` of the previous page.")


class HistoryShown(TypedDict):
    """Samples, oldest first."""

    samples: Annotated[list[moves.SampleShown], Field(max_length=360)]
    every_s: Annotated[float, Field(gt=0)]
    """Between two samples."""


class FlowExplanation(ExplanationShown):
    """The chain from filter to thread, and the verdict."""

    flow: FlowShown | None
    flows: Annotated[list[FlowShown], Field(max_length=LISTED)]
    """Those that match, if there are several; `flow` is null then."""


class QueuesShown(TypedDict):
    """Queues of one interface, or of all."""

    queues: list[nic_views.QueueShown]
    why_empty: str | None
    """Why there is no row, in a sentence; null, there are rows."""


class NicsShown(TypedDict):
    """All observed interfaces."""

    nics: list[nic_views.NicShown]
    why_empty: str | None
    """Why there is no row, in a sentence; null, there are rows."""


class FilterPage(TypedDict):
    """Filters, and the cursor of the next page."""

    filters: Annotated[list[nic_views.FilterShown], Field(max_length=PAGE)]
    next: int | None


class TopologyShown(TypedDict):
    """CPUs and NUMA nodes, as sysfs shows them now."""

    cpus: list[machine_views.CpuShown]
    nodes: list[machine_views.NodeShown]


class LatestFindings(TypedDict):
    """Findings of the levels `blocker` and `warning`, worst first."""

    findings: list[FindingShown]
    age_s: Amount
    """Since the look."""


class Api:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._one_look = asyncio.Lock()  # a doctor's opens every interface
        self._looked_s, self._findings = -inf, list[Finding]()  # the latest look, and what it found

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/status", "status", self.status, moves.StatusShown),
            Route("GET", "/v1/history", "history", self.history, HistoryShown),
            Route("GET", "/v1/explain", "explain", self.explain, FlowExplanation, (FLOW,)),
            Route("GET", "/v1/queues", "queues", self.queues, QueuesShown, (NIC,)),
            Route("GET", "/v1/nics", "nics", self.nics, NicsShown),
            Route("GET", "/v1/filters", "filters", self.filters, FilterPage, (NIC, LIMIT, BEHIND)),
            Route("GET", "/v1/topology", "topology", self.topology, TopologyShown),
            Route("GET", "/v1/cpu-time", "cpuTime", self.cpu_time, machine_views.CpuTimesShown),
            Route("GET", "/v1/doctor", "doctor", self.doctor, Diagnosis, (LOOKED_AT,)),
            Route("GET", "/v1/doctor/latest", "latestFindings", self.latest, LatestFindings),
        ]

    async def cpu_time(self, request: web.Request) -> web.StreamResponse:
        """How long CPUs and NAPI threads have been busy.

        Counters. Load is the difference of two answers divided by that of their `read_ns`."""
        return one_object(machine_views.cpu_time_view(*self._source.cpu_time()))

    async def status(self, request: web.Request) -> web.StreamResponse:
        """Summary of the daemon."""
        return one_object(moves.status_view(self._source.status(), time.monotonic_ns()))

    async def history(self, request: web.Request) -> web.StreamResponse:
        """The last hour of the daemon, as the page draws it.

        The daemon keeps it in memory. It begins with the daemon."""
        since_ns, found = self._source.status().since_ns, self._source.history()
        rows = (moves.sample_view(each, since_ns) for each in found.samples)
        return await row_list(request, "samples", rows, lambda: {"every_s": found.every_s})

    async def explain(self, request: web.Request) -> web.StreamResponse:
        """Why the packets of a flow arrive where they do."""
        selector, source = Selector.parse(FLOW.of(request) or ""), self._source
        found = await self._select(request, selector, Walk(source.flows()))
        found = found or await self._select(request, selector, source.sockets())
        shown = list(map(self._view_of, found))
        several = len(found) > 1
        if several:
            explanation = explain_several(selector.text, found[0].key, len(found), LISTED)
        else:
            explanation = self._explained(selector, found[0] if found else None)
        answer: FlowExplanation = {
            "flow": shown[0] if shown and not several else None,
            "flows": shown if several else [],
            **explanation_view(explanation),
        }
        return one_object(answer)

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

    def _view_of(self, found: Flow | SocketFound) -> FlowShown:
        if isinstance(found, Flow):
            return flow_view(found, time.monotonic_ns(), self._source.audited_ns)
        return socket_view(found, self._source.left_by(found.key))

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
        """Receive queues, their interrupts and threads."""
        nics = seen_all(self._source, request)
        rows = (row for nic in nics for row in nic_views.queue_views(nic))
        why = None if any(nic.queues for nic in nics) else no_queues(NIC.of(request))
        return await row_list(request, "queues", rows, lambda: {"why_empty": why})

    async def nics(self, request: web.Request) -> web.StreamResponse:
        """Interfaces, what they can do, and whether they are armed."""
        nics = self._source.nics()
        rows, why = map(nic_views.nic_view, nics), None if nics else NO_NIC
        return await row_list(request, "nics", rows, lambda: {"why_empty": why})

    async def filters(self, request: web.Request) -> web.StreamResponse:
        """A page of the filters in an interface, ours and others', in the order of locations."""
        limit, after = LIMIT.of(request), BEHIND.of(request)
        nics = seen_all(self._source, request)
        if len(nics) != 1:
            names = ", ".join(nic.name for nic in nics) or "none"
            raise OperatorError("which interface's filters?", f"nic=NAME, one of: {names}")
        nic = nics[0]
        first = bisect_right(nic.filters, after, key=lambda each: each.location)
        page = nic.filters[first : first + limit]
        more = page[-1].location if first + limit < len(nic.filters) else None
        rows = (nic_views.filter_view(nic, each) for each in page)
        return await row_list(request, "filters", rows, lambda: {"next": more})

    async def topology(self, request: web.Request) -> web.StreamResponse:
        """CPUs and what is delivered on each; NUMA nodes."""
        nics = self._source.nics()
        topology = self._source.topology()
        nodes = [machine_views.node_view(node, nics) for node in topology.nodes]
        rows = (machine_views.cpu_view(cpu, nics) for cpu in topology.cpus)
        return await row_list(request, "cpus", rows, lambda: {"nodes": nodes})

    async def doctor(self, request: web.Request) -> web.StreamResponse:
        """What atfnd can do, what prevents it, and what to do."""
        name = LOOKED_AT.of(request)
        try:
            async with self._one_look:
                nics, findings = await self._source.doctor(name)
        except OSError as refusal:
            return kernel_refused("look at", name or "the interfaces", refusal)
        return one_object(doctor_view(nics, findings))

    async def latest(self, request: web.Request) -> web.StreamResponse:
        """What prevents steering, for a reader that asks again and again.

        Of the last look, which is at most a minute old, however many readers ask."""
        async with self._one_look:
            if time.monotonic() - self._looked_s > LATEST_S:
                try:
                    _, findings = await self._source.doctor(None)
                except OSError as refusal:
                    return kernel_refused("look at", "the interfaces", refusal)
                self._findings, self._looked_s = in_the_way(findings), time.monotonic()
        answer: LatestFindings = {
            "findings": [finding_view(each) for each in self._findings],
            "age_s": round(time.monotonic() - self._looked_s, 3),
        }
        return one_object(answer)
