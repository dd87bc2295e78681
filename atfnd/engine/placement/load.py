# SPDX-License-Identifier: GPL-2.0-or-later
"""How busy CPUs are, and which of them are full. Pure.

Where packets are read is the cheapest place to deliver them, as long as that CPU has time left. A
CPU that is full has none: what its softirq takes, the thread that reads loses, while RSS would have
given this work to CPUs that rest. So flows with `near: core` are not brought to a CPU that is full,
unless their rule says `full_core: stay`.

1. A CPU is full when it was busy for `full` percent of the time at every look, for `full_ns`, and
   another one under its last-level cache for `room` at most. It was as busy without the packets,
   or busier: so what it was before says nothing.
2. It is full no longer when it was busy for less than `slack` percent at every look, for
   `slack_ns`: it has time to take the packets back. Whether others have room does not matter then.
3. If it is full again soon after that, it stays so for twice as long, up to 2 ** `doubled` times.

The load is measured by idle time, which the kernel counts exactly while it stops the tick of idle
CPUs (tick_nohz_idle_exit(), kernel/time/tick-sched.c). Other times of /proc/stat are samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.model import Cpu, CpuTime

__all__ = ["FullCpus", "FullTerms", "busy_percent", "quarter"]


def busy_percent(before: CpuTime, now: CpuTime) -> dict[int, int]:
    """For each CPU that was online all the time, from two looks at different times."""
    passed_ns = now.at_ns - before.at_ns
    return {
        cpu: min(100, max(0, 100 - 100 * (idle_ns - before.idle_ns[cpu]) // passed_ns))
        for cpu, idle_ns in now.idle_ns.items()
        if cpu in before.idle_ns
    }


def quarter(percent: int) -> int:
    """0 (less than a quarter of its time) to 3: coarse, for what a flow itself costs should seldom
    tell two CPUs apart."""
    return min(3, percent // 25)


class FullTerms(NamedTuple):
    """Percent of a CPU's time, and how long."""

    full: int = 95
    room: int = 90
    slack: int = 60
    full_ns: int = 1_500_000_000
    slack_ns: int = 10_000_000_000
    doubled: int = 6


@dataclass(slots=True)
class FullCpus:
    """Which CPUs are full. Changed by `look`."""

    terms: FullTerms = field(default_factory=FullTerms)
    cpus: frozenset[int] = frozenset()
    unfinished: bool = False  # a flow that such a CPU had is still on its way
    looked_ns: int | None = None
    busy_since_ns: dict[int, int] = field(default_factory=dict)
    slack_since_ns: dict[int, int] = field(default_factory=dict)
    times: dict[int, tuple[int, int]] = field(default_factory=dict)  # doubled, since it was full

    def look(self, busy: Mapping[int, int], cpus: Mapping[int, Cpu], now_ns: int) -> None:
        """What CPUs did since the last look, in percent; empty while nobody reads it. A CPU that is
        missing is not full."""
        before_ns, self.looked_ns = self.looked_ns, now_ns if busy else None
        if before_ns is None:
            return
        terms = self.terms
        _kept(self.busy_since_ns, {cpu for cpu, p in busy.items() if p >= terms.full}, before_ns)
        _kept(self.slack_since_ns, {cpu for cpu, p in busy.items() if p < terms.slack}, before_ns)
        full = {cpu for cpu in self.cpus if cpu in busy and not self._has_slack(cpu, now_ns)}
        for cpu in self.cpus - full:
            self.times[cpu] = self.times[cpu][0], now_ns
        for cpu, since_ns in self.busy_since_ns.items():
            if cpu in full or cpu not in cpus or now_ns - since_ns < terms.full_ns:
                continue
            others = (other for other in cpus[cpu].llc if other != cpu)
            if any(busy.get(other, 100) <= terms.room for other in others):
                full.add(cpu)
                times, was_ns = self.times.get(cpu, (-1, 0))
                again = times >= 0 and now_ns - was_ns < 2 * (terms.slack_ns << times)
                self.times[cpu] = min(times + 1, terms.doubled) if again else 0, now_ns
        self.cpus = frozenset(full)

    def _has_slack(self, cpu: int, now_ns: int) -> bool:
        since_ns = self.slack_since_ns.get(cpu)
        return (
            since_ns is not None and now_ns - since_ns >= self.terms.slack_ns << self.times[cpu][0]
        )


def _kept(since_ns: dict[int, int], now: set[int], before_ns: int) -> None:
    """The CPUs that are so `now`, and since when."""
    for cpu in since_ns.keys() - now:
        del since_ns[cpu]
    for cpu in now:
        since_ns.setdefault(cpu, before_ns)
