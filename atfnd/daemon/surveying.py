# SPDX-License-Identifier: GPL-2.0-or-later
"""Looks for some seconds at what each thread reads and where, on request, and says what arming
would gain.

Writes nothing to a NIC. One survey runs at a time: a request meanwhile gets the answer of that one.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from atfnd.daemon.session import Sessions
from atfnd.diagnose.gain import Around, not_measured, summarised
from atfnd.model import ActionKind, CpuTime, Gain, NicView, Planned, Survey, WouldDo
from atfnd.observe import Observer
from atfnd.observe.machine.topology import CpuWatch
from atfnd.observe.processes.cpu_time import cpu_time
from atfnd.observe.processes.cpuset import cpuset_of

__all__ = ["Surveying", "pinned_by"]


class _Seen(NamedTuple):
    seconds: float
    parts: Sequence[Callable[[], Survey]]
    busy: Mapping[int, float]


class Surveying:
    """Holds the survey that runs, if one does."""

    def __init__(
        self,
        observer: Observer,
        sessions: Sessions,
        cpus: CpuWatch,
        plan: Callable[[str], Awaitable[Sequence[Planned]]],
        shared_ports: Callable[[str], frozenset[int]],
    ) -> None:
        self._observer, self._sessions, self._cpus = observer, sessions, cpus
        self._plan, self._shared_ports = plan, shared_ports
        self._running: asyncio.Task[_Seen | None] | None = None

    async def gain(self, nic: str | None, seconds: float) -> Gain:
        """As `serve.Source.gain`."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._survey(seconds))
        seen = await asyncio.shield(self._running)
        if seen is None:
            why = f"the {self._observer.name} observer does not see where packets are processed"
            return not_measured(why, self._cpus.known())
        names = [name for name in self._sessions if nic in (None, name)]
        would_do = {name: each for name in names if (each := await self._would_do(name))}
        views = [self._sessions[name].view for name in names if name in self._sessions]
        shared = {name: self._shared_ports(name) for name in names if name in self._sessions}
        around = Around(self._cpus.known(), seen.busy, shared, would_do, pinned_by)
        return await asyncio.to_thread(_summarised, seen, views, around)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._running is not None:
            self._running.cancel()

    async def _survey(self, seconds: float) -> _Seen | None:
        """None: the observer cannot see it."""
        if not self._observer.begin_survey():
            return None
        before = cpu_time(())
        try:
            await asyncio.sleep(seconds)
        finally:
            counted = self._observer.end_survey()
        after, parts = cpu_time(()), []
        for part in counted:
            parts.append(part)
            await asyncio.sleep(0)
        return _Seen((after.at_ns - before.at_ns) / 1e9, parts, _busy(before, after))

    async def _would_do(self, nic: str) -> WouldDo | None:
        try:
            planned = await self._plan(nic)
        except (KeyError, OSError):
            return None  # it has just gone
        kinds = Counter(each.action.kind for each in planned)
        return WouldDo(
            kinds[ActionKind.INSERT], kinds[ActionKind.QUEUE_CPU], kinds[ActionKind.SETTING]
        )


def _summarised(seen: _Seen, nics: Sequence[NicView], around: Around) -> Gain:
    survey = Survey.of(part() for part in seen.parts)
    return summarised(survey, seen.seconds, nics, around)


def _busy(before: CpuTime, after: CpuTime) -> dict[int, float]:
    """Of a CPU that was online at both times."""
    took_ns = max(after.at_ns - before.at_ns, 1)
    return {
        cpu: min((busy_ns - before.busy_ns[cpu]) / took_ns, 1.0)
        for cpu, busy_ns in after.busy_ns.items()
        if cpu in before.busy_ns
    }


def pinned_by(tid: int) -> str | None:
    """What keeps a thread on one CPU: `cpuset`, which an affinity cannot leave, or `affinity`.
    Reads its cpuset and sched_getaffinity(2). None: nothing does, or it is gone."""
    try:
        if len(os.sched_getaffinity(tid)) > 1:
            return None
    except ProcessLookupError:
        return None
    cpus = cpuset_of(tid)
    return "cpuset" if cpus is not None and len(cpus) == 1 else "affinity"
