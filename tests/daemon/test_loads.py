# SPDX-License-Identifier: GPL-2.0-or-later
"""The engine hears of the CPUs' load while a rule may choose among CPUs, and of none after that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.daemon import cpu_times
from atfnd.daemon.cpu_times import Loads
from atfnd.daemon.in_force import InForce
from atfnd.engine.event import LoadRead
from atfnd.model import CpuTime, FlowRule, Placement, PlacementKind, Policy
from tests.values import RULE

__all__: list[str] = []

STAYS = replace(RULE, full_core="stay")
NEAR = replace(RULE, placement=Placement(PlacementKind.LLC))


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
