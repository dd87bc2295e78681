# SPDX-License-Identifier: GPL-2.0-or-later
"""Packets out of order by moves of their flows, for each mode and the paper's stream counts.

As the paper's Table 6, with the daemon's own machine and actuator (bench/moves.py) on a lab NIC,
and numbered datagrams whose receivers are the judges (bench/lateness.py). The CPU of queue 0 is
taken for 3 of every 7.3 ms, above every NAPI thread, so that a move which does not wait for its old
ring shows; the sender and the wire stand for another machine, and are kept from that CPU. Twenty
flows send at a time, 1000 datagrams a second each, in trains of 64; then the next twenty. Only
flows that are sending are moved.

`strict` and `bounded` are the modes as they are here, where a queue can be held; `follow` moves the
queue with all its flows; `none` is the same traffic unmoved.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from atfnd.move.verdict import Mode
from bench.bed import Bed, apart, lab_bed
from bench.contenders import in_turn
from bench.lateness import Moved, seen
from bench.moves import Move, Steering, seen_for_long, steering
from bench.ordering_report import Run, Way, report
from bench.report import Report
from bench.traffic.datagrams import Load, Traffic, built, received, sent
from bench.traffic.sequence import stalled

__all__ = ["LOAD", "WAYS", "measured", "run"]

COUNTS = (40, 200, 1000, 2000)
LOAD = Load(rate_pps=20_000, active=20, train=64)
STALL_MS, PERIOD_MS = 3.0, 7.3
LONGEST_NS = 20_000_000  # no packet waits longer for its ring
WAYS = (
    Way("none", 0, 0),
    Way("immediate", 1000, 10),
    Way("bounded", 1300, 20),
    Way("strict", 4200, 40),
    Way("follow", 300, 10),
)
NONE_S = 2.0
AT_ONCE = 12  # holds take their turns, and a flow's turn to send is short
MODES = {"immediate": Mode.IMMEDIATE, "bounded": Mode.BOUNDED, "strict": Mode.STRICT}
NUMBERS = re.compile(r"\d+")


def run(rounds: int) -> Report:
    """`rounds` rounds on a lab NIC; in each, every count is moved in every way, in turn."""
    with tempfile.TemporaryDirectory() as folder, lab_bed() as bed:
        program = built(Path(folder))
        return report(
            [
                measured(program, bed, way, count)
                for turn in range(rounds)
                for count in COUNTS
                for way in in_turn(WAYS, turn)
            ]
        )


def measured(program: Path, bed: Bed, way: Way, streams: int) -> Run:
    """One run: so many streams, moved this way."""
    dropped, bed = bed.ring_drops() or 0, apart(bed, bed.cpus[1:])
    queues = (0,) if way.name == "follow" else range(len(bed.cpus))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        traffic = stack.enter_context(received(program, bed, streams, LOAD))
        holds = way.name != "immediate"
        rules = stack.enter_context(steering(bed, folder, traffic.streams, queues, holds))
        # none is sent before the rules stand or after they go: that moves flows too
        traffic = stack.enter_context(sent(program, bed, traffic, bed.spare))
        began_s = time.monotonic()
        moves = _moved(bed, traffic, way, rules)
        seconds = time.monotonic() - began_s
        tally = traffic.finish()
        done = [move for move in moves if move.done]
        found = seen(list(map(_as_moved, done)), traffic.datagrams())
    return Run(
        way=way.name,
        streams=streams,
        seconds=seconds,
        moves=len(done),
        reordered=dict(found.reordered),
        late=found.late,
        reported=sum(move.ended.violations for move in done),
        disagreed=found.disagreed,
        stray=found.stray,
        received=tally.received,
        lost=tally.lost,
        ring_drops=(bed.ring_drops() or 0) - dropped,
        verdicts=dict(Counter(move.ended.verdict.value for move in moves)),
        deferred=dict(
            Counter(NUMBERS.sub("N", str(move.ended.why)) for move in moves if not move.done)
        ),
    )


def _moved(bed: Bed, traffic: Traffic, way: Way, rules: Steering) -> list[Move]:
    """The moves of one run, under its stall."""
    immediate = way.name == "immediate"
    cpus = bed.cpus[1:] if immediate else bed.cpus  # not to be stalled with the queue
    with ExitStack() as stack:
        stack.enter_context(stalled(bed.cpus[0], STALL_MS, PERIOD_MS))
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, cpus)
        if way.name == "follow":
            return rules.follow(0, bed.cpus, way.moves)
        if not way.moves:
            time.sleep(NONE_S)
            return []
        if immediate:
            seen_for_long(rules, LONGEST_NS)
        at_once = LOAD.active if immediate else AT_ONCE
        return rules.move(MODES[way.name], way.moves, way.limit_s, at_once, traffic.sending)


def _as_moved(move: Move) -> Moved:
    reported = None if move.flow is None else move.ended.violations
    return Moved(move.flow, move.began_ns, reported, move.ended.verdict.value)
