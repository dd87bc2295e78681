# SPDX-License-Identifier: GPL-2.0-or-later
"""Packets out of order by moves of their flows, for each mode and the paper's stream counts.

As the paper's Table 6, with the daemon's own machine and actuator (bench/moves.py) on a lab NIC,
and numbered datagrams whose receivers are the judges (bench/lateness.py). The CPU of queue 0 is
taken for 3 of every 7.3 ms, above every NAPI thread, so that a move which does not wait for its old
ring shows; the sender and the wire stand for another machine, and are kept from that CPU. Twenty
flows send at a time, 1000 datagrams a second each, in trains of 64; then the next twenty. Only
flows that are sending are moved.

`strict` and `bounded` are the modes as they are here, where a queue can be held; `gap` is bounded
on a NIC without NAPI threads; `follow` moves the queue with all its flows; `rfs` moves no queue:
the kernel follows the receivers, which change places every 10 ms. `none` is the same traffic
unmoved. `calm` is without the stall.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from atfnd.move.frozenmap import FrozenMap
from atfnd.move.verdict import Mode
from bench.bed import Bed, lab_bed
from bench.children import pin
from bench.contenders import in_turn, rfs
from bench.lateness import Moved, seen
from bench.moves import Move, Steering, seen_for_long, steering
from bench.ordering_report import Run, Way, report
from bench.queues import apart
from bench.report import Report
from bench.traffic.datagrams import Load, Traffic, built, received, sent
from bench.traffic.sequence import stalled

__all__ = ["LOAD", "PERIOD_MS", "STALL_MS", "WAYS", "measured", "run"]

COUNTS = (40, 200, 1000, 2000)
LOAD = Load(rate_pps=20_000, active=20, train=64)
STALL_MS, PERIOD_MS = 3.0, 7.3
LONGEST_NS = 20_000_000  # no packet waits longer for its ring
SWAP_S = 0.01
WAYS = (
    Way("none", 0, 0),
    Way("none, calm", 0, 0, stall=False),
    Way("immediate", 1000, 10),
    Way("bounded", 1300, 20),
    Way("gap", 400, 6),
    Way("strict", 4200, 40),
    Way("strict, calm", 500, 10, stall=False),
    Way("follow", 300, 10),
    Way("rfs", 200, 10),
)
NONE_S = 2.0
AT_ONCE = 12  # holds take their turns, and a flow's turn to send is short
MODES = {"immediate": Mode.IMMEDIATE, "bounded": Mode.BOUNDED, "gap": Mode.BOUNDED}
MODES |= {"strict": Mode.STRICT, "strict, calm": Mode.STRICT}
NO_HOLD = ("gap", "immediate")
NUMBERS = re.compile(r"\d+")


def run(rounds: int) -> Report:
    """`rounds` rounds on a lab NIC; in each, every count is moved in every way, in turn. As a
    daemon does, `gap` remembers the T_A it has learned of each queue."""
    runs = []
    learned: dict[int, FrozenMap[int, int]] = {}
    with tempfile.TemporaryDirectory() as folder, lab_bed() as bed:
        program = built(Path(folder))
        for turn in range(rounds):
            for count in COUNTS:
                for way in in_turn(WAYS, turn):
                    known = learned.get(count, FrozenMap()) if way.name == "gap" else FrozenMap()
                    runs.append(measured(program, bed, way, count, known))
                    if way.name == "gap":
                        learned[count] = FrozenMap(runs[-1].timers_ns)
    return report(runs)


def measured(
    program: Path,
    bed: Bed,
    way: Way,
    streams: int,
    timers_ns: FrozenMap[int, int] = FrozenMap(),  # noqa: B008 (a value)
) -> Run:
    """One run: so many streams, moved this way. `timers_ns`: T_A by queue, as learned before."""
    dropped, bed = bed.ring_drops() or 0, apart(bed, bed.cpus[1:])
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        traffic = stack.enter_context(received(program, bed, streams, LOAD))
        rules = stack.enter_context(_prepared(bed, Path(folder), traffic, way))
        # none is sent before the rules stand or after they go: that moves flows too
        traffic = stack.enter_context(sent(program, bed, traffic, bed.spare))
        moves = _moved(bed, traffic, way, rules, timers_ns)
        tally = traffic.finish()
        if rules is not None:
            timers_ns = rules.mover.device.timers_ns
        writes = 0 if rules is None else rules.writes
        moved = [_as_moved(move) for move in moves if move.done]
        found = seen(moved, traffic.datagrams())
    done = [move for move in moves if move.done]
    reported = sum(move.ended.violations for move in done if move.ended is not None)
    why = Counter(
        NUMBERS.sub("N", str(move.ended.why)) for move in moves if move.ended and not move.done
    )
    verdicts = Counter(move.ended.verdict.value for move in moves if move.ended)
    took_ns = [move.done_ns - move.began_ns for move in done]
    return Run(
        way=way.name,
        streams=streams,
        seconds=(moves[-1].done_ns - moves[0].began_ns) / 1e9 if moves else NONE_S,
        moves=found.moves,
        reordered=dict(found.reordered),
        queue_moves=sum(move.flow is None for move in done),
        writes=writes,
        late=found.late,
        reported=reported,
        disagreed=found.disagreed,
        stray=found.stray,
        late_after_ns=found.late_after_ns,
        received=tally.received,
        lost=tally.lost,
        ring_drops=(bed.ring_drops() or 0) - dropped,
        verdicts=dict(verdicts),
        deferred=dict(why),
        took_ns=_quantiles(took_ns),
        delays_ns=_quantiles(found.delays_ns),
        moved_ns=_quantiles(found.moved_ns),
        neighbours_ns=_quantiles(found.neighbours_ns),
        timers_ns=dict(timers_ns),
    )


@contextlib.contextmanager
def _prepared(bed: Bed, folder: Path, traffic: Traffic, way: Way) -> Iterator[Steering | None]:
    """The kernel's steering, or ours with a rule a flow."""
    if way.name == "rfs":
        with rfs(bed):
            yield None
        return
    queues = (0,) if way.name == "follow" else range(len(bed.cpus))
    holds = way.name not in NO_HOLD
    with steering(bed, folder, traffic.streams, queues, holds) as rules:
        if way.name == "immediate":
            seen_for_long(rules, LONGEST_NS)
        yield rules


def _moved(
    bed: Bed,
    traffic: Traffic,
    way: Way,
    rules: Steering | None,
    timers_ns: FrozenMap[int, int],
) -> list[Move]:
    """The moves of one run, under its stall."""
    stall: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if way.stall:
        stall = stalled(bed.cpus[0], STALL_MS, PERIOD_MS)
    no_hold = way.name in NO_HOLD
    cpus = bed.cpus[1:] if no_hold else bed.cpus  # not to be stalled with the queue
    with stall, _running_on(cpus):
        if rules is None:
            return _swapped(bed, traffic, way.moves)
        device = rules.mover.device
        rules.mover.device = device._replace(timers_ns=timers_ns)
        if way.name == "follow":
            return rules.follow(0, bed.cpus, way.moves)
        if not way.moves:
            time.sleep(NONE_S)
            return []
        at_once = LOAD.active if no_hold else AT_ONCE
        return rules.move(MODES[way.name], way.moves, way.limit_s, at_once, traffic.sending)


def _swapped(bed: Bed, traffic: Traffic, count: int) -> list[Move]:
    """The receivers change places; each moves all of its flows."""
    moves = []
    for turn in range(count):
        began_ns = time.time_ns()
        for number, checker in enumerate(traffic.checkers):
            pin(checker.pid, [bed.cpus[(number + turn) % len(bed.cpus)]])
        moves.append(Move(None, began_ns, time.time_ns(), False, None))
        time.sleep(SWAP_S)
    return moves


def _as_moved(move: Move) -> Moved:
    watched = move.ended is not None and move.flow is not None
    reported = move.ended.violations if move.ended is not None and watched else None
    verdict = "by the kernel" if move.ended is None else move.ended.verdict.value
    return Moved(move.flow, move.began_ns, move.done_ns, move.held, reported, verdict)


def _quantiles(samples: Sequence[int]) -> tuple[int, int] | None:
    """p50 and p99."""
    if not samples:
        return None
    ordered = sorted(samples)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


@contextlib.contextmanager
def _running_on(cpus: Sequence[int]) -> Iterator[None]:
    """Confines this process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
