# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/gain`: how far from its packets each application reads, what arming would gain."""

from __future__ import annotations

from aiohttp import web

from atfnd.model import (
    ApplicationGain,
    Distance,
    Gain,
    Habit,
    NicGain,
    ReadSpread,
    ThreadGain,
)
from atfnd.serve import Source
from atfnd.serve.api.answers import JSON, number, query_of, row_list_in, streaming
from atfnd.serve.api.interfaces import known
from atfnd.serve.api.views import View

__all__ = ["GainRoutes", "gain_view"]

SECONDS = 10
OFF = (Distance.CPU, Distance.CORE, Distance.LLC, Distance.NODE)


class GainRoutes:
    """Handler over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/gain", self.gain, allow_head=False)]

    async def gain(self, request: web.Request) -> web.StreamResponse:
        """The answer begins at once, and goes on when the time is over."""
        query = query_of(request, "nic", "seconds")
        seconds = number(query, "seconds", SECONDS, 1, 60)
        nic = known(self._source, query["nic"]) if "nic" in query else None
        response = await streaming(request, JSON)
        found = await self._source.gain(nic, seconds)
        rest = gain_view(found)
        rows = map(_thread_view, found.threads)
        return await row_list_in(request, response, "threads", rows, lambda: rest)


def gain_view(gain: Gain) -> View:
    """All but its threads."""
    return {
        "seconds": round(gain.seconds, 3),
        "why_not": gain.why_not,
        "missed_bytes": gain.missed,
        "machine": gain.levels._asdict(),
        "note": gain.note,
        "applications": [_application_view(each) for each in gain.applications],
        "more_applications": gain.more_applications,
        "more_threads": gain.more_threads,
        "nics": [_nic_view(each) for each in gain.nics],
    }


def _spread_view(reads: ReadSpread) -> View:
    shares = {f"off_{level.value}": reads.off(level) for level in OFF}
    return {"bytes": {**reads._asdict(), "total": sum(reads)}, **shares}


def _application_view(each: ApplicationGain) -> View:
    return {
        "application": each.application,
        "processes": each.processes,
        "threads": {habit.value: each.threads.get(habit, 0) for habit in Habit},
        **_spread_view(each.reads),
    }


def _thread_view(each: ThreadGain) -> View:
    return {
        "tid": each.tid,
        "pid": each.pid,
        "application": each.application,
        "habit": each.habit.value,
        "pinned_by": each.pinned_by,
        "home": None if each.home is None else each.home.value,
        "cpus": list(each.cpus),
        "allowed": each.allowed,
        "calls": each.calls,
        **_spread_view(each.reads),
    }


def _nic_view(each: NicGain) -> View:
    would_do = each.would_do
    return {
        "nic": each.nic,
        "armed": each.armed,
        "method": each.method.value,
        "method_why": each.method_why,
        "probed": each.probed,
        **_spread_view(each.reads),
        "off_cpu_bytes": {
            **{habit.value: each.off.get(habit, 0) for habit in Habit},
            "left_alone": each.left,
        },
        "would_do": None if would_do is None else would_do._asdict(),
        "verdict": each.verdict.value,
        "advice": each.advice,
    }
