# SPDX-License-Identifier: GPL-2.0-or-later
"""The engine hears of the CPU time of this process, and of the CPUs' load while a rule may choose
among CPUs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from atfnd.daemon import cpu_times
from atfnd.daemon.cpu_times import Loads
from atfnd.daemon.in_force import InForce
from atfnd.engine.event import CpuSpent, LoadRead
from atfnd.model import CpuTime, FlowRule, Placement, PlacementKind, Policy
from tests.values import RULE

STAYS = replace(RULE, full_core="stay")
NEAR = replace(RULE, placement=Placement(PlacementKind.LLC))
BUSY_NS = 30_000_000
BURN = f"""
import time
end = time.process_time_ns() + {BUSY_NS}
while time.process_time_ns() < end:
    pass
"""


def a_policy(rule: FlowRule) -> Policy:
    return Policy((), (rule,), "auto", 64, 0, ())


def a_reading(at_ns: int, idle_ns: dict[int, int]) -> CpuTime:
    return CpuTime(at_ns, {}, {}, {}, {}, idle_ns)


@pytest.mark.parametrize("rule", [NEAR, RULE], ids=["may choose", "spares full cores"])
def test_a_load_is_reported_after_two_looks_and_taken_back(
    rule: FlowRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = iter([a_reading(0, {0: 0, 1: 0}), a_reading(100, {0: 10, 1: 90})])
    monkeypatch.setattr(cpu_times, "cpu_time", lambda tasks: next(read))
    reported: list[LoadRead] = []
    in_force = InForce(a_policy(rule))
    known = Loads(in_force, reported.append)
    known.look()
    assert reported == []
    known.look()
    assert reported == [LoadRead({0: 90, 1: 10})]
    in_force.policy = a_policy(STAYS)
    known.look()
    known.look()
    assert reported == [LoadRead({0: 90, 1: 10}), LoadRead({})]


def test_our_own_time_and_that_of_our_children_is_told_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_times, "_EVERY_S", 0.0)
    told: list[int] = []

    def tell(event: CpuSpent) -> None:
        told.append(event.spent_ns)
        if len(told) == 1:
            exec(BURN)
        elif len(told) == 2:
            subprocess.run([sys.executable, "-c", BURN], check=True)
        else:
            raise StopAsyncIteration

    with pytest.raises(StopAsyncIteration):
        asyncio.run(cpu_times.keep(tell))
    assert all(later - earlier >= BUSY_NS for earlier, later in pairwise(told))
