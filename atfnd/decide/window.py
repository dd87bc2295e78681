# SPDX-License-Identifier: GPL-2.0-or-later
"""What an application carried between two looks, for how much CPU time; two of them compared. Pure.

Bytes a second stand for latency, too: who waits for answers gets more of them the sooner they come
(Little's law).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from atfnd.model import FlowKey

__all__ = ["Figures", "Verdict", "Window", "compare", "rate_of"]


class Figures(NamedTuple):
    """Of one window."""

    bytes_per_s: float
    bytes_per_cpu_s: float

    def __str__(self) -> str:
        return f"{rate_of(self.bytes_per_s)} at {_si(self.bytes_per_cpu_s)}B a CPU-second"


class Window(NamedTuple):
    """What an application did between two looks."""

    began_ns: int
    ended_ns: int
    bytes: int  # of its flows, both ways
    spent_ns: Mapping[int, int]  # by CPU: softirq, NAPI threads, and the application's threads
    app_cpus: frozenset[int]  # its threads are used there
    rx_cpus: frozenset[int]  # its packets are led there
    flows: frozenset[FlowKey]
    there: bool  # at its end each flow was led where its placement asks
    nowhere: str | None = None  # why `llc` cannot be had
    void: str | None = None  # why it tells nothing

    @property
    def length_ns(self) -> int:
        return max(1, self.ended_ns - self.began_ns)

    @property
    def cpus(self) -> frozenset[int]:
        """All that it has to do with."""
        return self.app_cpus | self.rx_cpus

    def fullest(self) -> tuple[int | None, float]:
        """The busiest CPU of its threads, and the share of it that they and the network took."""
        cpu = max(self.app_cpus, key=lambda each: (self._on(each), -each), default=None)
        return cpu, 0.0 if cpu is None else self._on(cpu) / self.length_ns

    def figures(self, cpus: Iterable[int]) -> Figures:
        """By the time spent on these CPUs."""
        cost_ns = max(1, sum(map(self._on, cpus)))
        return Figures(self.bytes * 1e9 / self.length_ns, self.bytes * 1e9 / cost_ns)

    def _on(self, cpu: int) -> int:
        return self.spent_ns.get(cpu, 0)


class Verdict(NamedTuple):
    """Off its core against on it."""

    core: Figures
    llc: Figures

    @property
    def rate(self) -> float:
        return self.llc.bytes_per_s / max(1.0, self.core.bytes_per_s)

    @property
    def efficiency(self) -> float:
        return self.llc.bytes_per_cpu_s / max(1.0, self.core.bytes_per_cpu_s)

    @property
    def gain(self) -> float:
        """What decides. A core that is full carries more when its work is on two, mostly for more
        CPU a byte (Hanford et al., Future Generation Computer Systems, 2015): one gain may pay for
        the loss of the other."""
        return self.rate * self.efficiency

    def __str__(self) -> str:
        return (
            f"{self.efficiency:.2f} x the bytes a CPU-second and {self.rate:.2f} x the bytes a "
            "second of core"
        )

    def in_full(self) -> str:
        """With what was measured."""
        return f"{self}: core {self.core}, llc {self.llc}"


def compare(llc: Window, *core: Window) -> Verdict:
    """Against that window on the core which `llc` gained less on; each by what it spent on all
    CPUs that any of them has to do with."""
    cpus = frozenset(llc.cpus.union(*(each.cpus for each in core)))
    tried = llc.figures(cpus)
    return min((Verdict(each.figures(cpus), tried) for each in core), key=lambda each: each.gain)


def rate_of(bytes_per_s: float) -> str:
    """`1.31 GB/s`."""
    return f"{_si(bytes_per_s)}B/s"


def _si(value: float) -> str:
    for power, prefix in ((9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.2f} {prefix}"
    return f"{value:.0f} "
