# SPDX-License-Identifier: GPL-2.0-or-later
"""How `bench ordering` goes about it on each bed: what is sent, stalled and moved."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from atfnd.move.timer import Times
from bench.moves import TIMES
from bench.ordering_report import Way
from bench.traffic.datagrams import Load

__all__ = ["LAB", "PERIOD_MS", "SIMNIC", "STALL_MS", "Pace"]

STALL_MS, PERIOD_MS = 3.0, 7.3


class Pace(NamedTuple):
    """What is sent, how one queue's CPU is taken, and which moves are made in a round."""

    counts: tuple[int, ...]
    load: Load
    stall_ms: float
    period_ms: float
    swap_s: float  # receivers change places so often, where the kernel follows them
    around_ns: int  # a flow with traffic so near to that was moved
    stall_ns: int  # no packet waits longer for its ring
    times: Times
    ways: tuple[Way, ...]


LAB = Pace(
    counts=(40, 200, 1000, 2000),
    load=Load(rate_pps=20_000, active=20, train=64),
    stall_ms=STALL_MS,
    period_ms=PERIOD_MS,
    swap_s=0.01,
    around_ns=4_000_000,
    stall_ns=20_000_000,
    times=TIMES,
    ways=(
        Way("none", 0, 0),
        Way("none, calm", 0, 0, stall=False),
        Way("immediate", 1000, 10),
        Way("bounded", 1300, 20),
        Way("gap", 400, 6),
        Way("strict", 4200, 40),
        Way("strict, calm", 500, 10, stall=False),
        Way("follow", 300, 10),
        Way("rfs", 200, 10),
    ),
)
SIMNIC = Pace(
    counts=(40,),
    load=Load(rate_pps=2000, active=8, train=128),
    stall_ms=8.0,
    period_ms=27.3,
    swap_s=0.1,
    around_ns=20_000_000,
    stall_ns=100_000_000,
    times=replace(
        TIMES, hold_max_ns=300_000_000, verify_ns=200_000_000, follow_ns=200_000_000
    ),  # as all is that is emulated
    ways=(
        Way("none", 0, 0),
        Way("immediate", 200, 30),
        Way("bounded", 150, 60),
        Way("gap", 60, 30),
        Way("strict", 300, 120),
        Way("follow", 60, 30),
        Way("rfs", 100, 0),
        Way("arfs", 100, 0),
    ),
)
