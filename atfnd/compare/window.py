# SPDX-License-Identifier: GPL-2.0-or-later
"""What an application, or a receive queue, carried between two looks, for how much CPU time and how
quickly; two of them compared. Pure.

Latency has two measures. An application that waits for answers gets more of them the sooner they
come (Little's law): bytes a second. What the peer sends at its own rate arrives at that rate
wherever it is delivered: there, the measure is the time per byte that threads ran, or were ready
and waited for a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from atfnd.model import FlowKey
from atfnd.model.reason import Code, Why

__all__ = ["Comparison", "Window", "WindowFigures", "paid", "rate_of"]


class WindowFigures(NamedTuple):
    """Of one window."""

    bytes_per_s: float
    bytes_per_cpu_s: float
    ns_per_byte: float  # run, or waited for a CPU

    def __str__(self) -> str:
        return (
            f"{rate_of(self.bytes_per_s)} at {_si(self.bytes_per_cpu_s)}B a CPU-second and "
            f"{self.ns_per_byte:.3g} ns a byte"
        )


class Window(NamedTuple):
    """What an application, or a queue, did between two looks."""

    began_ns: int
    ended_ns: int
    bytes: int  # of its flows, both ways; of a queue: received
    spent_ns: Mapping[int, int]  # by CPU: softirq, NAPI threads, and its threads
    waited_ns: Mapping[int, int]  # by CPU: these threads, ready to run there
    app_cpus: frozenset[int]  # where its threads run
    rx_cpus: frozenset[int]  # where its packets are led
    there: bool  # at its end all was as is to be measured
    void: Why | None = None  # why it says nothing
    flows: frozenset[FlowKey] = frozenset()
    packets: int = 0  # of a queue
    threads: frozenset[int] = frozenset()  # of a queue: those that use its flows
    # The same two with all that CPUs were busy with; None: no other figures are known.
    of_all: tuple[Mapping[int, int], Mapping[int, int]] | None = None

    @property
    def length_ns(self) -> int:
        return max(1, self.ended_ns - self.began_ns)

    @property
    def bytes_per_s(self) -> float:
        return self.bytes * 1e9 / self.length_ns

    @property
    def cpus(self) -> frozenset[int]:
        """All CPUs involved."""
        return self.app_cpus | self.rx_cpus

    def fullest(self, cpus: Iterable[int]) -> tuple[int | None, float]:
        """The busiest of these CPUs, and the share of it that was spent."""
        cpu = max(cpus, key=lambda each: (self._spent(each), -each), default=None)
        return cpu, 0.0 if cpu is None else self._spent(cpu) / self.length_ns

    def beside(self, other: Window) -> Window:
        """To be compared with that one: where other threads had a part, all of the CPUs counts."""
        if self.of_all is None or self.threads == other.threads:
            return self
        return self._replace(spent_ns=self.of_all[0], waited_ns=self.of_all[1])

    def figures(self, cpus: Iterable[int]) -> WindowFigures:
        """By the time spent and waited on these CPUs."""
        on = tuple(cpus)
        spent_ns = max(1, sum(map(self._spent, on)))
        took_ns = spent_ns + sum(self.waited_ns.get(cpu, 0) for cpu in on)
        return WindowFigures(
            self.bytes_per_s,
            self.bytes * 1e9 / spent_ns,
            took_ns / max(1, self.bytes),
        )

    def _spent(self, cpu: int) -> int:
        return self.spent_ns.get(cpu, 0)


class Comparison(NamedTuple):
    """What is tried against what it is to replace."""

    usual: WindowFigures
    tried: WindowFigures
    names: tuple[str, str] = ("the usual", "it")

    @property
    def rate(self) -> float:
        """Times the bytes a second."""
        return self.tried.bytes_per_s / max(1.0, self.usual.bytes_per_s)

    @property
    def efficiency(self) -> float:
        """Times the bytes a CPU-second."""
        return self.tried.bytes_per_cpu_s / max(1.0, self.usual.bytes_per_cpu_s)

    @property
    def time(self) -> float:
        """Times the time a byte, run and waited."""
        return self.tried.ns_per_byte / max(1e-9, self.usual.ns_per_byte)

    @property
    def quickness(self) -> float:
        """How much lower latency is, by the measure that says more."""
        return max(self.rate, 1 / max(1e-9, self.time))

    @property
    def gain(self) -> float:
        """Below 1, the loss in one outweighs the gain in the other. A full core carries more when
        its work is spread over two, mostly at more CPU per byte (Hanford et al., Future Generation
        Computer Systems, 2015)."""
        return self.efficiency * self.quickness

    def pays(self, margin: float) -> bool:
        """More bytes a CPU-second or lower latency, by `margin` at least; not at the cost of as
        much of the other; and it carries no less than before, within the margin."""
        gained = max(self.efficiency, self.quickness) >= 1 + margin
        return gained and self.gain >= 1 and self.rate >= 1 / (1 + margin)

    def why(self) -> Why:
        return Code.COMPARED(self.efficiency, self.rate, self.time, self.names[0])

    def in_full(self) -> Why:
        """With the measured figures."""
        usual, tried = self.names
        return Code.COMPARED_IN_FULL(self.why(), usual, self.usual, tried, self.tried)


def paid(
    margin: float, tried: Window, *usual: Window, names: tuple[str, str] = ("the usual", "it")
) -> Comparison:
    """Compared with the usual window that speaks most against it; each by what it spent on all CPUs
    involved in either."""
    verdicts = []
    for each in usual:
        cpus = tried.cpus | each.cpus
        figures = each.beside(tried).figures(cpus), tried.beside(each).figures(cpus)
        verdicts.append(Comparison(*figures, names))
    return min(verdicts, key=lambda each: (each.pays(margin), each.gain))


def rate_of(bytes_per_s: float) -> str:
    """`1.31 GB/s`."""
    return f"{_si(bytes_per_s)}B/s"


def _si(value: float) -> str:
    for power, prefix in ((9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.2f} {prefix}"
    return f"{value:.0f} "
