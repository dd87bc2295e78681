# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU times: as the engine hears of them, of all CPUs and of the daemon itself; and as they are
shown: read again only when the last reading is too old, so that asking costs little.

Reads /proc/stat, schedstat of the NAPI threads, CLOCK_PROCESS_CPUTIME_ID, and getrusage(2) of the
children that were waited for.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterable, Sequence

from atfnd.daemon.in_force import InForce
from atfnd.engine.event import CpuSpent, LoadRead
from atfnd.engine.placement.load import busy_percent
from atfnd.model import CpuTime, NapiTime, NicView
from atfnd.observe.processes.cpu_time import cpu_time

__all__ = ["CpuTimeReader", "Loads", "keep", "spent_ns"]

_FRESH_NS = 100_000_000  # a reading that is shown may be this old
_SHARE = 0.01  # of one core that reading it to be shown may cost


class CpuTimeReader:
    """As last read."""

    def __init__(self) -> None:
        self._shown: tuple[CpuTime, Sequence[NapiTime]] | None = None
        self._fresh_until_ns = 0

    def shown(self, nics: Iterable[NicView]) -> tuple[CpuTime, Sequence[NapiTime]]:
        """The times of every CPU, and of the threads that poll these NICs' queues. A reading is
        never older than a tenth of a second, or than a hundred times the time it takes to read.
        OSError: /proc cannot be read."""
        now_ns = time.monotonic_ns()
        if self._shown is None or now_ns > self._fresh_until_ns:
            self._shown = _read(nics)
            took_ns = time.monotonic_ns() - now_ns
            self._fresh_until_ns = now_ns + max(_FRESH_NS, int(took_ns / _SHARE))
        return self._shown


def _read(nics: Iterable[NicView]) -> tuple[CpuTime, Sequence[NapiTime]]:
    polled = {
        queue.pid: (nic.name, queue.index, queue.cpu)
        for nic in nics
        for queue in nic.queues
        if queue.pid is not None
    }
    spent = cpu_time((pid, pid) for pid in polled)
    return spent, [NapiTime(*polled[tid], ran_ns) for tid, ran_ns in spent.ran_ns.items()]


class Loads:
    """The load between looks. Reads /proc/stat while the policy has a rule that depends on it.
    `tell` gives it to the engine."""

    def __init__(self, in_force: InForce, tell: Callable[[LoadRead], object]) -> None:
        self._in_force, self._tell = in_force, tell
        self._before: CpuTime | None = None

    def look(self) -> None:
        """What CPUs did since the last look. OSError: /proc cannot be read."""
        if not self._in_force.policy.by_load():
            if self._before is not None:
                self._tell(LoadRead({}))
            self._before = None
            return
        now = cpu_time(())
        if self._before is not None:
            self._tell(LoadRead(busy_percent(self._before, now)))
        self._before = now


_EVERY_S = 1.0


def spent_ns() -> int:
    """Since the start of the process."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * 1e9)


async def keep(tell: Callable[[CpuSpent], object]) -> None:
    """Until it is cancelled. What the start took is not part of the account."""
    while True:
        tell(CpuSpent(spent_ns()))
        await asyncio.sleep(_EVERY_S)
