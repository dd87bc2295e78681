# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU times, read again only when the last reading is too old, so that asking costs little.

Reads /proc/stat, and schedstat of the NAPI threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from atfnd.model import CpuTime, NapiTime, NicView
from atfnd.observe.processes.cpu_time import cpu_time

__all__ = ["CpuTimeReader"]

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
