# SPDX-License-Identifier: GPL-2.0-or-later
"""What moves cost TCP: throughput beside that of flows that stay, and TCP's own counters.

Eight streams on a lab NIC, one exact rule each, moved in turn by the daemon's machine and actuator
(bench/moves.py); contenders take turns of a second on the same streams, in an order drawn anew for
each round: its throughput drifts by more than what is measured. `full`: as fast as TCP can.
`stalled`:
50 MB/s, and the CPU of queue 0 is taken for 3 of every 7.3 ms; what then counts as out of order
came so by the moves, as long as no ring dropped anything. Eight moves a second are those of
applications that change their core every second; a hundred, twelve times a second.

Two cases say where a loss comes from. `holds alone`: a queue is held as often as by a hundred
strict moves a second, until the other one has drained, and nothing is written. `their CPU alone`: a
loop takes as much CPU as the strict moves did (all threads of this process, so spinners count), in
as many pieces, and nothing is moved or held. On two CPUs that are fully used, that time is lost to
TCP whatever it is spent on.
"""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.kernel.system.netns import path_of
from atfnd.move.verdict import Mode
from bench.bed import Bed, lab_bed
from bench.connections import connections
from bench.locality import streams
from bench.moves import Steering, steering
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
PIPE_NS = 20_000  # as move/timer.py has it for a queue without interrupts
LONGEST_HOLD_NS = 50_000_000
SPENT_S = 0.0015  # by a strict move, until one was measured


class Case(NamedTuple):
    """One contender: how often flows are moved, and how. `mode` None: they are not, and what comes
    so often is a hold, or as much CPU."""

    name: str
    mode: Mode | None
    moves_per_s: int


NONE = Case("none", Mode.STRICT, 0)
CASES = (
    NONE,
    Case("strict, 8 moves/s", Mode.STRICT, 8),
    OFTEN := Case("strict, 100 moves/s", Mode.STRICT, 100),
    Case("immediate, 100 moves/s", Mode.IMMEDIATE, 100),
    HOLDS := Case("holds alone, 100/s", None, 100),
    CPU := Case("their CPU alone, 100/s", None, 100),
)


class Run(NamedTuple):
    """One case for one turn. `counters` are host's and peer's together."""

    load: str
    case: str
    bytes_per_s: float
    moves: int
    deferred: int
    ring_drops: int
    cpu_s: float  # of this process, which moves the flows
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
        runs = list[Run]()
        for case in cases:
            runs.append(_run(bed, load, case, seconds, moved, ends, _spent_s(runs)))
        return runs


def _spent_s(runs: Sequence[Run]) -> float:
    """CPU time of a strict move, by those before."""
    often = [each for each in runs if each.case == OFTEN.name and each.moves]
    moves = sum(each.moves for each in often)
    return sum(each.cpu_s for each in often) / moves if moves else SPENT_S


def _run(
    bed: Bed,
    load: str,
    case: Case,
    seconds: float,
    moved: Steering,
    ends: Sequence[TcpReordering],
    spent_s: float,
) -> Run:
    drops, counters = bed.ring_drops() or 0, _counters(ends)
    before, began, cpu_s = _bytes(bed), time.monotonic(), time.process_time()
    done = failed = 0
    if case is HOLDS:
        moved.actuator.start()
        done, failed = _hold(moved, case.moves_per_s, seconds)
    elif case is CPU:
        done = _spend(spent_s, case.moves_per_s, seconds)
    elif case.mode is not None and case.moves_per_s:
        moved.actuator.start()
        due = _due(case.moves_per_s, STREAMS)
        count, every_s = int(case.moves_per_s * seconds), 1 / case.moves_per_s
        moves = moved.move(case.mode, count, seconds, STREAMS, due, every_s)
        done = sum(move.done for move in moves)
        failed = len(moves) - done
    cpu_s = time.process_time() - cpu_s
    moved.actuator.rest()
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    taken = (_bytes(bed) - before) / (time.monotonic() - began)
    found = Counters(*(b - a for a, b in zip(counters, _counters(ends), strict=True)))
    dropped = (bed.ring_drops() or 0) - drops
    return Run(load, case.name, taken, done, failed, dropped, cpu_s, found)


def _hold(moved: Steering, per_s: int, seconds: float) -> tuple[int, int]:
    """Holds each queue in turn until the others have drained; how many held, and how many could
    not."""
    actuator, queues = moved.actuator, range(len(moved.watch.facts.queues))
    held = refused = 0
    for turn in _turns(per_s, seconds):
        queue = queues[turn % len(queues)]
        old = queues[(turn + 1) % len(queues)]
        try:
            actuator.hold(queue, actuator.now_ns() + LONGEST_HOLD_NS, frozenset({old}))
        except OSError as refusal:
            if refusal.errno not in (errno.EAGAIN, errno.ETIMEDOUT):
                raise
            refused += 1
            continue
        actuator.drain_evidence(old, actuator.now_ns() + PIPE_NS, hands_on=False)
        while not actuator.evidence(actuator.now_ns() + LONGEST_HOLD_NS):
            pass
        actuator.release(queue)
        held += 1
    return held, refused


def _spend(spent_s: float, per_s: int, seconds: float) -> int:
    """Takes CPU time in pieces; how many."""
    taken = 0
    for _ in _turns(per_s, seconds):
        until = time.thread_time() + spent_s
        while time.thread_time() < until:
            pass
        taken += 1
    return taken


def _turns(per_s: int, seconds: float) -> Iterator[int]:
    """Counts up so often, for so long; one that is late is not made up for."""
    began = time.monotonic()
    for turn in range(int(per_s * seconds)):
        time.sleep(max(0.0, began + turn / per_s - time.monotonic()))
        if time.monotonic() - began >= seconds:
            return
        yield turn


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
            spent = median(1000 * each.cpu_s for each in found)
            report.add(f"{load}, CPU of the mover", name, f"ms in {SECONDS:g} s", spent)
            if load == "full" and name == OFTEN.name:
                alone = [each.bytes_per_s for each in groups[load, CPU.name]]
                report.add("full, moved / their CPU alone", name, "×", ratios(ours, alone))
        for field in Counters._fields:
            counts = median(getattr(each.counters, field) for each in found)
            report.add(f"{load}, {field}", name, f"in {SECONDS:g} s", counts)
        moves, deferred = (sum(getattr(each, n) for each in found) for n in ("moves", "deferred"))
        drops = sum(each.ring_drops for each in found)
        words = f"{moves} moves, {deferred} deferred, {drops} packets lost to full rings"
        report.notes.append(f"{load}, {name}: {words}")
    return report
