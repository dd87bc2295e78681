# SPDX-License-Identifier: GPL-2.0-or-later
"""The engine hears of the CPUs' load while a rule may choose among CPUs, and of none after that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.daemon import loads
from atfnd.daemon.in_force import InForce
from atfnd.daemon.loads import Loads
from atfnd.engine.event import LoadRead
from atfnd.model import CpuTime, FlowRule, Placement, PlacementKind, Policy
from tests.values import RULE

__all__: list[str] = []

NEAR = replace(RULE, placement=Placement(PlacementKind.LLC))


def a_policy(rule: FlowRule) -> Policy:
    return Policy((), (rule,), "auto", 64, 0, ())


def test_a_load_is_reported_after_two_looks_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    read = iter([CpuTime(0, {0: 0, 1: 0}, {}, {}, {}), CpuTime(100, {0: 90, 1: 10}, {}, {}, {})])
    monkeypatch.setattr(loads, "cpu_time", lambda tasks: next(read))
    reported: list[LoadRead] = []
    in_force = InForce(a_policy(NEAR))
    known = Loads(in_force, reported.append)
    known.look()
    assert reported == []
    known.look()
    assert reported == [LoadRead({0: 3, 1: 0})]
    in_force.policy = a_policy(RULE)
    known.look()
    known.look()
    assert reported == [LoadRead({0: 3, 1: 0}), LoadRead({})]
