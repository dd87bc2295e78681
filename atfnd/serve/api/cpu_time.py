# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/cpu-time`: how long CPUs have been busy, and how much of that was for the network."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from atfnd.model import CpuTime, NapiTime
from atfnd.serve import Source
from atfnd.serve.api.answers import one_object, query_of
from atfnd.serve.api.views import View

__all__ = ["CpuTimeRoutes", "cpu_time_view"]


class CpuTimeRoutes:
    """Handler over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/cpu-time", self.cpu_time, allow_head=False)]

    async def cpu_time(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        return one_object(cpu_time_view(*self._source.cpu_time()))


def cpu_time_view(spent: CpuTime, threads: Sequence[NapiTime]) -> View:
    """Counters, and when they were read."""
    return {
        "read_ns": spent.at_ns,
        "cpus": [
            {"cpu": cpu, "busy_ns": busy_ns, "softirq_ns": spent.softirq_ns[cpu]}
            for cpu, busy_ns in sorted(spent.busy_ns.items())
        ],
        "napi_threads": [thread._asdict() for thread in threads],
    }
