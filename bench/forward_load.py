# SPDX-License-Identifier: GPL-2.0-or-later
"""What a forwarding host carries, loses and takes, at shares of what it can carry.

Its capacity is found first: the most that comes out while the load grows by steps, until a tenth is
lost. What is read of it meanwhile depends on who polls its rings, and is the bed's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from atfnd.errors import OperatorError
from bench.forwarder import RECEIVERS, SENDER, Forwarder, Frames, Offered, offered, sent

__all__ = ["SIZES", "Bed", "Load", "Reading", "Reception", "Run", "placed"]

SIZES = ("64", "mix")
LOST = 0.1
SETTLE_S = 0.1
LOOK_S, LOOKS = 0.02, 50


class Load(NamedTuple):
    """Shares of the capacity that are offered, and for how long; where a capacity is looked for."""

    name: str  # of the report
    shares: tuple[float, ...]
    window_s: float
    least_pps: float
    most_pps: float
    step: float = 1.3
    patience: int = 1  # so many rates in a row lose before the search ends


class Reading(NamedTuple):
    """A bed at one time; None where it cannot know. By interface: `wakes`, `used_ns` (the CPU time
    of its thread) and `cpus` (of its interrupt); by CPU: `idle_ns`."""

    at_ns: int
    wakes: Mapping[str, int]
    used_ns: Mapping[str, int] | None = None
    cpus: Mapping[str, int] | None = None
    idle_ns: Mapping[int, int] | None = None
    ring_waits: int | None = None  # of the receivers, for the producers' lock of the Tx ring
    received: int = 0  # by their threads
    squeezes: int | None = None  # softirqs that ended with work left


class Bed(Protocol):
    """A forwarding host, and what can be read of it."""

    @property
    def host(self) -> Forwarder: ...

    @property
    def generators_cpu(self) -> int: ...

    def dropped(self) -> int:
        """Frames that its rings had no room for, so far."""
        ...

    def read(self) -> Reading:
        """Now."""
        ...


class Run(NamedTuple):
    """One placement and reception at one load. None: its bed cannot know."""

    sizes: str
    placement: str
    reception: str
    load: float  # of the capacity
    capacity_pps: float
    offered_pps: float
    out_pps: float
    out_bytes_per_s: float
    loss: float  # 0 to 1
    unexplained: float  # lost, and counted by no ring: share of what was offered
    skipped: float  # share of what the generator was asked for
    p50_ns: float
    p99_ns: float
    rx_wakes_per_s: float  # of both receivers: of their threads, or interrupts
    tx_wakes_per_s: float
    rx1_rx2: float  # frames that came in by e0, to those by e1
    rx_share: float | None = None  # of a CPU, both receivers' threads
    tx_share: float | None = None
    rx_idle: float | None = None  # of the CPUs of the receivers' interrupts, on average
    tx_idle: float | None = None
    ring_waits: float | None = None  # for the producers' lock of the Tx ring, per 1000 frames
    squeezes_per_s: float | None = None
    cpus: str | None = None  # of the interrupts of e0, e1 and s2, at the end

    @property
    def subject(self) -> str:
        return f"{self.placement}, {self.reception}"


Reception = Callable[[], AbstractContextManager[None]]


def placed(
    bed: Bed, placement: str, receptions: Mapping[str, Reception], sizes: str, load: Load
) -> Iterator[Run]:
    """Of a bed that is placed: its capacity, and all receptions at shares of it."""
    capacity_pps = _capacity_pps(bed, sizes, load)
    for name, reception in receptions.items():
        with reception():
            for share in load.shares:
                yield _one(bed, placement, name, sizes, share, capacity_pps, load.window_s)


def _capacity_pps(bed: Bed, sizes: str, load: Load) -> float:
    best_pps, rate_pps, lost = 0.0, load.least_pps, 0
    while rate_pps < load.most_pps and lost < load.patience:
        tries = [_out_pps(bed, rate_pps, sizes, load.window_s)]
        if tries[0] < (1 - LOST) * rate_pps:  # or something else has had the CPU
            tries.append(_out_pps(bed, rate_pps, sizes, load.window_s))
        best_pps = max(best_pps, *tries)
        lost = lost + 1 if max(tries) < (1 - LOST) * rate_pps else 0
        rate_pps *= load.step
    return best_pps


def _out_pps(bed: Bed, rate_pps: float, sizes: str, window_s: float) -> float:
    before = _count(bed)
    with offered(bed.host, rate_pps, window_s, sizes, bed.generators_cpu) as generator:
        given = sent(generator, 60)
    return _drained(bed, before, given).arrived.since(before.arrived).frames / given.seconds


class _Count(NamedTuple):
    arrived: Frames
    dropped: int


def _count(bed: Bed) -> _Count:
    return _Count(bed.host.arrived(), bed.dropped())


def _drained(bed: Bed, before: _Count, given: Offered) -> _Count:
    """Once each frame is counted, or nothing has moved for a while."""
    last, still = _count(bed), 0
    while still < LOOKS:
        out = last.arrived.since(before.arrived).frames + last.dropped - before.dropped
        if out + given.refused >= given.frames:
            break
        time.sleep(LOOK_S)
        was, last = last, _count(bed)
        still = still + 1 if was == last else 0
    return last


def _one(
    bed: Bed,
    placement: str,
    reception: str,
    sizes: str,
    share: float,
    capacity_pps: float,
    window_s: float,
) -> Run:
    rate_pps = share * capacity_pps
    before = _count(bed)
    seconds = window_s + 2 * SETTLE_S
    with offered(bed.host, rate_pps, seconds, sizes, bed.generators_cpu) as generator:
        time.sleep(SETTLE_S)
        began = bed.read()
        time.sleep(window_s)
        ended = bed.read()
        given = sent(generator, 60)
    after = _drained(bed, before, given)
    out, lost = after.arrived.since(before.arrived), after.dropped - before.dropped
    if not out.frames or not given.frames:
        raise OperatorError("nothing was forwarded", exit_code=1)
    elapsed_ns = ended.at_ns - began.at_ns
    rx_wakes, tx_wakes = _sums(_grown_each(ended.wakes, began.wakes)) or (0, 0)
    used = _sums(_grown_each(ended.used_ns, began.used_ns))
    idle = _sums(_idle_ns(ended, began))
    waits = _grown(ended.ring_waits, began.ring_waits)
    squeezes = _grown(ended.squeezes, began.squeezes)
    return Run(
        sizes=sizes,
        placement=placement,
        reception=reception,
        load=share,
        capacity_pps=capacity_pps,
        offered_pps=given.frames / given.seconds,
        out_pps=out.frames / given.seconds,
        out_bytes_per_s=out.bytes / given.seconds,
        loss=1 - out.frames / given.frames,
        unexplained=(given.frames - given.refused - lost - out.frames) / given.frames,
        skipped=given.skipped / (given.frames + given.skipped),
        p50_ns=out.delay_ns(0.5) or 0.0,
        p99_ns=out.delay_ns(0.99) or 0.0,
        rx_wakes_per_s=1e9 * rx_wakes / elapsed_ns,
        tx_wakes_per_s=1e9 * tx_wakes / elapsed_ns,
        rx1_rx2=out.of_ports[0] / max(1, out.of_ports[1]),
        rx_share=None if used is None else used[0] / elapsed_ns,
        tx_share=None if used is None else used[1] / elapsed_ns,
        rx_idle=None if idle is None else idle[0] / len(RECEIVERS) / elapsed_ns,
        tx_idle=None if idle is None else idle[1] / elapsed_ns,
        ring_waits=None
        if waits is None
        else 1000 * waits / max(1, ended.received - began.received),
        squeezes_per_s=None if squeezes is None else 1e9 * squeezes / elapsed_ns,
        cpus=None if ended.cpus is None else ", ".join(map(str, ended.cpus.values())),
    )


def _grown(now: int | None, was: int | None) -> int | None:
    return None if now is None or was is None else now - was


def _grown_each(
    now: Mapping[str, int] | None, was: Mapping[str, int] | None
) -> dict[str, int] | None:
    return None if now is None or was is None else {name: now[name] - was[name] for name in now}


def _idle_ns(now: Reading, was: Reading) -> dict[str, int] | None:
    """Of the CPU that each interrupt goes to now."""
    if now.cpus is None or now.idle_ns is None or was.idle_ns is None:
        return None
    return {name: now.idle_ns[cpu] - was.idle_ns[cpu] for name, cpu in now.cpus.items()}


def _sums(of: Mapping[str, int] | None) -> tuple[int, int] | None:
    """Of both receivers, and of the sender."""
    return None if of is None else (sum(of[name] for name in RECEIVERS), of[SENDER])
