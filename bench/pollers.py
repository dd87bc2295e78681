# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the time of NAPI threads goes: by BPF (bench/extension/pollers.bpf.c), and by /proc.

Reads tracepoints napi:napi_poll and sched:sched_switch, and /proc/PID/{status,schedstat};
changes nothing. A poll counts from when the thread got the CPU, or
from the end of the poll before it. A softirq that interrupts it polls on its account. schedstat of
a real-time thread is no measure on 6.18: a thread that is woken seems to run while another one
still has the CPU, and its time is taken from that one.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atfnd.bpf.layout import layout_of
from bench.extension import _bench

__all__ = ["PollerTotals", "Pollers", "ThreadUse", "thread_use"]


class PollerTotals(NamedTuple):
    """Fields of `struct poller_totals`."""

    polls: int
    empty_polls: int
    packets: int
    work_ns: int
    empty_ns: int
    other_ns: int
    off_ns: int
    sleeps: int

    @property
    def ran_ns(self) -> int:
        """On a CPU. Of another thread, `work_ns` has what it does between polls, too."""
        return self.work_ns + self.empty_ns + self.other_ns

    def since(self, earlier: PollerTotals) -> PollerTotals:
        """What was counted between two readings."""
        return PollerTotals(*(now - was for now, was in zip(self, earlier, strict=True)))


class Pollers:
    """These threads, from now on. OSError: the kernel refuses."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pollers = _bench.Pollers(array("I", pids).tobytes())
        self._layout = layout_of(*_bench.layout("pollers", "poller_totals"))
        self._columns = [self._layout.fields.index(name) for name in PollerTotals._fields]

    def totals(self, pid: int) -> PollerTotals:
        """Of one thread, so far."""
        values = self._layout.codec.unpack(self._pollers.totals(pid))
        return PollerTotals(*(values[at] for at in self._columns))

    def close(self) -> None:
        """Detach and free; a second close does nothing."""
        self._pollers.close()


class ThreadUse(NamedTuple):
    """One thread at one time."""

    at_ns: int  # CLOCK_MONOTONIC
    wakes: int  # it has given its CPU away by itself as often
    ran_ns: int

    def wakes_per_s(self, earlier: ThreadUse) -> float:
        return (self.wakes - earlier.wakes) * 1e9 / (self.at_ns - earlier.at_ns)

    def share(self, earlier: ThreadUse) -> float:
        """Of a CPU, 0 to 1."""
        return (self.ran_ns - earlier.ran_ns) / (self.at_ns - earlier.at_ns)


def thread_use(pid: int) -> ThreadUse:
    """Of a thread, now: voluntary_ctxt_switches and schedstat, proc(5). FileNotFoundError: it is
    gone."""
    status = Path(f"/proc/{pid}/status").read_text()
    wakes = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    ran_ns = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return ThreadUse(time.monotonic_ns(), wakes, ran_ns)
