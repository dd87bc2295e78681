# SPDX-License-Identifier: GPL-2.0-or-later
"""The figures that are shown, from looks: flows, CPUs, queues with their rates, and the last moves.
Pure, except `figures_once`, which asks the daemon.

The network's share of a CPU is its softirq time and that of the NAPI threads of the queues that are
delivered there; the rest of the time that it is busy counts as its applications'.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atfnd.ctl.client import Row
from atfnd.ctl.top.look import Look, Looks

__all__ = [
    "MOVES",
    "WINDOW_NS",
    "CpuFigure",
    "Figures",
    "FlowFigure",
    "QueueFigure",
    "Rates",
    "Reading",
    "Series",
]

__all__ += ["figures_once", "is_move"]

MOVES = 50  # that are kept
_MOST_S = 5.0  # the bytes of flows are read every 2 s; in a big table less often
_MOVES = {"rewrite", "queue-cpu", "unproven", "violated", "no effect"}


@dataclass(frozen=True, slots=True)
class FlowFigure:
    """One flow. None: not known."""

    bits_per_s: float | None
    comm: str | None
    pid: int | None
    app_cpu: int | None
    rx_queue: int | None
    rx_cpu: int | None
    target_cpu: int | None
    placed: bool | None
    state: str
    proto: str
    local: str
    remote: str
    nic: str
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class CpuFigure:
    """Shares of one CPU's time, 0 to 1."""

    cpu: int
    network: float | None
    application: float | None


@dataclass(frozen=True, slots=True)
class QueueFigure:
    """One receive queue."""

    nic: str
    queue: int
    cpu: int | None
    packets_per_s: float | None
    bits_per_s: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures that are shown."""

    status: Row
    flows: Sequence[FlowFigure]
    flows_age_s: float
    cpus: Sequence[CpuFigure]
    queues: Sequence[QueueFigure]
    moves: Sequence[Row]  # events, the last one first

    def known(self) -> bool:
        """Every rate of flows and CPUs is."""
        rates = [*(flow.bits_per_s for flow in self.flows), *(cpu.network for cpu in self.cpus)]
        return None not in rates


class Series:
    """Looks, each with those before it."""

    def __init__(self) -> None:
        self._rates, self._flow_rates = Rates(), Rates()
        self._since_wall_s: float | None = None
        self._moves: deque[Row] = deque(maxlen=MOVES)
        self._rows: Sequence[Row] = ()
        self._flows: list[FlowFigure] = []

    def see(self, look: Look) -> Figures:
        """Figures by this look and the ones before. Another daemon has other counters."""
        if look.status["since_wall_s"] != self._since_wall_s:
            self._rates, self._flow_rates = Rates(), Rates()
            self._since_wall_s = look.status["since_wall_s"]
        self._rates.see(_readings(look))
        if look.flows is not self._rows:
            self._rows = look.flows
            self._flow_rates.see(map(_carried, look.flows))
            self._flows = [self._flow(row) for row in look.flows]
        self._moves.extendleft(event for event in look.events if is_move(event))
        return Figures(
            status=look.status,
            flows=self._flows,
            flows_age_s=look.flows_age_s,
            cpus=list(self._cpus(look.cpu_time)),
            queues=[self._queue(row) for row in look.queues],
            moves=list(self._moves),
        )

    def _flow(self, row: Row) -> FlowFigure:
        fields = {name: row[name] for name in _FLOW}
        return FlowFigure(
            _bits(self._flow_rates.per_s(_of_flow(row))),
            **fields,
            why=row["fell_back"] or row["why"],
        )

    def _queue(self, row: Row) -> QueueFigure:
        of = row["nic"], row["queue"]
        packets_per_s = self._rates.per_s(("packets", *of))
        bits_per_s = _bits(self._rates.per_s(("bytes", *of)))
        return QueueFigure(*of, row["cpu"], packets_per_s, bits_per_s)

    def _cpus(self, cpu_time: Row) -> Iterator[CpuFigure]:
        polled: defaultdict[int | None, float] = defaultdict(float)
        for row in cpu_time["napi_threads"]:
            polled[row["cpu"]] += self._rates.per_s(("ran", row["nic"], row["queue"])) or 0
        for row in cpu_time["cpus"]:
            cpu = row["cpu"]
            busy, softirq = (self._rates.per_s((what, cpu)) for what in ("busy", "softirq"))
            if busy is None or softirq is None:
                yield CpuFigure(cpu, None, None)
                continue
            network = min(busy, softirq + polled[cpu]) / 1e9  # softirqs may be charged to a thread
            yield CpuFigure(cpu, min(network, 1.0), min(busy / 1e9, 1.0) - min(network, 1.0))


def figures_once(looks: Looks, interval_s: float) -> Figures:
    """The figures of as many looks as it takes until every rate is known, or until it takes too
    long. OperatorError: the daemon does not answer, or refuses."""
    series, end_s = Series(), time.monotonic() + _MOST_S
    while not (figures := series.see(looks.look())).known() and time.monotonic() < end_s:
        time.sleep(interval_s)
    return figures


def is_move(event: Row) -> bool:
    """It led flows elsewhere: by a filter, with their queue, or with their entry of the table; or
    it says that this went wrong."""
    kind = event["kind"]
    placed = kind == "insert" and event["flow"] is not None
    return placed or kind in _MOVES or (kind == "setting" and event["what"].startswith("rss = "))


_FLOW = (
    "comm", "pid", "app_cpu", "rx_queue", "rx_cpu", "target_cpu", "placed", "state", "proto",
    "local", "remote", "nic", "rule",
)  # fmt: skip


def _of_flow(row: Row) -> Hashable:
    return "flow", row["nic"], row["cookie"], row["proto"], row["local"], row["remote"]


def _carried(row: Row) -> tuple[Hashable, Reading]:
    return _of_flow(row), Reading(row["read_ns"], row["bytes"])


def _bits(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s * 8


def _readings(look: Look) -> Iterator[tuple[Hashable, Reading]]:
    """Of every counter of queues and CPUs that the kernel tells."""
    for row in look.queues:
        for what in ("packets", "bytes"):
            if row[what] is not None and row["read_ns"] is not None:
                yield (what, row["nic"], row["queue"]), Reading(row["read_ns"], row[what])
    at_ns = look.cpu_time["read_ns"]
    for row in look.cpu_time["cpus"]:
        yield ("busy", row["cpu"]), Reading(at_ns, row["busy_ns"])
        yield ("softirq", row["cpu"]), Reading(at_ns, row["softirq_ns"])
    for row in look.cpu_time["napi_threads"]:
        yield ("ran", row["nic"], row["queue"]), Reading(at_ns, row["ran_ns"])


WINDOW_NS = 500_000_000  # a rate covers at least this time, if readings reach back so far


class Reading(NamedTuple):
    """A counter, and when it was read (CLOCK_MONOTONIC)."""

    at_ns: int
    total: int


class Rates:
    """Readings by counter: as many of each as a rate over WINDOW_NS needs."""

    def __init__(self) -> None:
        self._readings: dict[Hashable, tuple[Reading, ...]] = {}

    def see(self, readings: Iterable[tuple[Hashable, Reading]]) -> None:
        """The present values of all counters; a counter that is not among them is forgotten."""
        self._readings = {of: _grown(self._readings.get(of, ()), new) for of, new in readings}

    def per_s(self, of: Hashable) -> float | None:
        """Of one counter; None: it was read once."""
        known = self._readings.get(of, ())
        if len(known) < 2:
            return None
        first, last = known[0], known[-1]
        return (last.total - first.total) * 1e9 / (last.at_ns - first.at_ns)


def _grown(known: tuple[Reading, ...], new: Reading) -> tuple[Reading, ...]:
    """The readings, without those that are older than a rate needs. A counter that went down has
    started again."""
    if not known or new.total < known[-1].total:
        return (new,)
    if new.at_ns <= known[-1].at_ns:
        return known
    grown = (*known, new)
    while len(grown) > 2 and new.at_ns - grown[1].at_ns >= WINDOW_NS:
        grown = grown[1:]
    return grown
