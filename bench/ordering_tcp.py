# SPDX-License-Identifier: GPL-2.0-or-later
"""What moves cost TCP: throughput beside that of flows that stay, and TCP's own counters.

Eight streams on a lab NIC, one exact rule each, moved in turn by the daemon's machine and actuator
(bench/moves.py); contenders take turns of a second on the same streams, in an order drawn anew for
each round: its throughput drifts by more than what is measured. `full`: as fast as TCP can.
`stalled`:
50 MB/s, and the CPU of queue 0 is taken for 3 of every 7.3 ms; what then counts as out of order
came so by the moves, as long as no ring dropped anything. Eight moves a second are those of
applications that change their core every second; a hundred, twelve times a second.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.kernel.system.netns import path_of
from atfnd.move.verdict import Mode
from bench.bed import Bed, lab_bed
from bench.connections import connections
from bench.locality import streams
from bench.moves import Move, Steering, steering
from bench.report import Report, Target
from bench.stats import median, ratios
from bench.tcp_reordering import Counters, TcpReordering
from bench.traffic.datagrams import Stream
from bench.traffic.sequence import stalled

__all__ = ["run"]

STREAMS = 8
PACED_BYTES_PER_S = 50_000_000
SECONDS, TURNS = 1.0, 10  # each contender's turns in a round
STALL_MS, PERIOD_MS = 3.0, 7.3
TARGET = 0.98


class Case(NamedTuple):
    """One contender: how often flows are moved, and how."""

    name: str
    mode: Mode
    moves_per_s: int


NONE = Case("none", Mode.STRICT, 0)
CASES = (
    NONE,
    Case("strict, 8 moves/s", Mode.STRICT, 8),
    Case("strict, 100 moves/s", Mode.STRICT, 100),
    Case("immediate, 100 moves/s", Mode.IMMEDIATE, 100),
)


class Run(NamedTuple):
    """One case for one turn. `counters` are host's and peer's together."""

    load: str
    case: str
    bytes_per_s: float
    moves: int
    deferred: int
    ring_drops: int
    counters: Counters


def run(rounds: int) -> Report:
    """`rounds` rounds of every load and case."""
    runs = []
    with lab_bed() as bed:
        for turn in range(rounds):
            order = [*CASES * TURNS]
            random.Random(turn).shuffle(order)
            for load in ("full", "stalled"):
                runs += measured(bed, load, order, SECONDS)
    return report(runs)


def measured(bed: Bed, load: str, cases: Sequence[Case], seconds: float) -> list[Run]:
    """The same streams, in one case after the other for so many seconds."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        paced = PACED_BYTES_PER_S if load == "stalled" else None
        stack.enter_context(streams(bed, STREAMS, paced))
        ends = [
            stack.enter_context(contextlib.closing(TcpReordering(path)))
            for path in (path_of(bed.peer), path_of(bed.host) if bed.host else None)
        ]
        flows = [Stream(key, each.cookie) for key, each in connections(bed).items()]
        if len(flows) != STREAMS:
            raise OperatorError(f"{len(flows)} streams are there, not {STREAMS}", exit_code=1)
        moved = stack.enter_context(steering(bed, Path(folder), flows, range(len(bed.cpus))))
        if load == "stalled":
            stack.enter_context(stalled(bed.cpus[0], STALL_MS, PERIOD_MS))
        return [_run(bed, load, case, seconds, moved, ends) for case in cases]


def _run(
    bed: Bed,
    load: str,
    case: Case,
    seconds: float,
    moved: Steering,
    ends: Sequence[TcpReordering],
) -> Run:
    drops, counters = bed.ring_drops() or 0, _counters(ends)
    before, began = _bytes(bed), time.monotonic()
    moves: list[Move] = []
    if case.moves_per_s:
        moved.actuator.start()
        due = _due(case.moves_per_s, STREAMS)
        count, every_s = int(case.moves_per_s * seconds), 1 / case.moves_per_s
        moves = moved.move(case.mode, count, seconds, STREAMS, due, every_s)
    moved.actuator.rest()
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    taken = (_bytes(bed) - before) / (time.monotonic() - began)
    found = Counters(*(b - a for a, b in zip(counters, _counters(ends), strict=True)))
    done = sum(move.done for move in moves)
    dropped = (bed.ring_drops() or 0) - drops
    return Run(load, case.name, taken, done, len(moves) - done, dropped, found)


def _due(moves_per_s: int, flows: int) -> Callable[[], Sequence[int]]:
    """The flow whose turn it is to be moved, once each."""
    began, asked = time.monotonic(), 0

    def due() -> Sequence[int]:
        nonlocal asked
        if asked >= (time.monotonic() - began) * moves_per_s:
            return ()
        asked += 1
        return (asked % flows,)

    return due


def _bytes(bed: Bed) -> int:
    return sum(each.bytes for each in connections(bed).values())


def _counters(ends: Sequence[TcpReordering]) -> Counters:
    return Counters(*map(sum, zip(*(end.counters() for end in ends), strict=True)))


def report(runs: Sequence[Run]) -> Report:
    """Ratios are of a case's turns and the unmoved ones, the first to the first and so on."""
    report = Report("ordering-tcp", "TCP beside moves of its flows")
    report.samples["runs"] = [
        {**each._asdict(), "counters": each.counters._asdict()} for each in runs
    ]
    groups: dict[tuple[str, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.load, each.case), []).append(each)
    for (load, name), found in groups.items():
        still = [each.bytes_per_s for each in groups[load, NONE.name]]
        ours = [each.bytes_per_s for each in found]
        report.add(f"{load}, throughput", name, "MB/s", median(each / 1e6 for each in ours))
        if name != NONE.name:
            ratio = report.add(f"{load}, moved / unmoved", name, "×", ratios(ours, still))
            if load == "full" and name.startswith("strict"):
                what = f"throughput, {name} / none"
                report.targets.append(Target(what, ratio.value, TARGET, True, "×"))
        for field in Counters._fields:
            counts = median(getattr(each.counters, field) for each in found)
            report.add(f"{load}, {field}", name, f"in {SECONDS:g} s", counts)
        moves, deferred = (sum(getattr(each, n) for each in found) for n in ("moves", "deferred"))
        drops = sum(each.ring_drops for each in found)
        words = f"{moves} moves, {deferred} deferred, {drops} packets lost to full rings"
        report.notes.append(f"{load}, {name}: {words}")
    return report
