# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions for flows under `auto`, while their application is on its core and off it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.placement.auto import applications, placement_of
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.model import (
    ActionKind,
    Connecting,
    FlowState,
    Mode,
    Placement,
)
from atfnd.model.reason import UNSAID
from tests.engine.test_steer_placements import Machine
from tests.values import NIC, RULE, THREAD, key, seen

__all__: list[str] = []

AUTO = replace(RULE, placement=Placement.AUTO)
STRICT = replace(AUTO, order=Mode.STRICT)
APP = Application("nic", "rest", "app", None)
AGAIN = replace(THREAD, tid=200, pid=200)  # the same application, started anew


def away(machine: Machine, phase: TrialPhase = TrialPhase.KEPT) -> None:
    side = Placement.CORE if phase is TrialPhase.AGAIN else LLC
    trials = machine.memory.nics["nic"].trials
    trials.states[APP] = Trial(PLACING, side, UNSAID, phase)


def test_services_of_one_name_in_two_control_groups_are_two_applications() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1, thread=replace(THREAD, cgroup=7))
    machine.uses(cpu=0, number=2, thread=replace(THREAD, cgroup=8))
    found = applications(machine.memory, {"nic"})
    assert {each.cgroup: [flow.key for flow in flows] for each, flows in found.items()} == {
        7: [key(1)],
        8: [key(2)],
    }


def test_it_is_remembered_for_a_process_that_is_started_anew() -> None:
    machine = Machine(AUTO)
    away(machine)
    (action,) = machine.uses(cpu=2, thread=AGAIN, rx_cpu=2)
    assert action.new == 3
    assert str(action.why) == "its thread runs on CPU 2; near llc: queue 3 is delivered on CPU 3"


@pytest.mark.parametrize(
    "changes", [{"comm": "other"}, {"cgroup": 7}], ids=["its name", "its cgroup"]
)
def test_an_application_is_known_by(changes: dict[str, object]) -> None:
    machine = Machine(AUTO)
    away(machine)
    other = replace(THREAD, **changes)  # type: ignore[arg-type]
    (action,) = machine.uses(cpu=0, thread=other)
    assert action.new == 0


def test_on_its_core_a_queue_follows_its_thread_and_off_it_none_does() -> None:
    machine = Machine(STRICT)
    machine.uses(cpu=0)
    assert follow.owner_of(machine.flow(), machine.memory) == ("thread", THREAD.tid)
    assert [each.owner for each in machine.memory.nics["nic"].owned.values()] == [
        ("thread", THREAD.tid)
    ]
    away(machine)
    assert follow.owner_of(machine.flow(), machine.memory) is None
    machine.carry_out(steer.take_up(NIC, machine.memory, machine.now_ns))
    machine.carry_out(steer.own(NIC, frozenset(range(4)), machine.memory, machine.now_ns))
    assert machine.memory.nics["nic"].owned == {}
    assert machine.flow().target_cpu == 1
    assert all(action.kind is not ActionKind.QUEUE_CPU for action in machine.uses(cpu=2))
    del machine.memory.nics["nic"].trials.states[APP]
    machine.carry_out(steer.take_up(NIC, machine.memory, machine.now_ns))
    machine.carry_out(steer.own(NIC, frozenset(range(4)), machine.memory, machine.now_ns))
    assert [each.owner for each in machine.memory.nics["nic"].owned.values()] == [
        ("thread", THREAD.tid)
    ]
    assert machine.flow().target_cpu == 2


def test_a_flow_is_born_where_its_application_was_kept() -> None:
    machine = Machine(replace(AUTO, order=Mode.BOUNDED))
    away(machine)
    event = Connecting(0, 9, key(1), 0, THREAD, 0)
    made = birth.connecting(
        event, NIC, machine.rule, 3, Distances(), machine.memory, machine.now_ns
    )
    assert made is not None
    assert made.action.new == 1


def test_flows_that_are_manual_or_left_alone_are_no_applications() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1)
    machine.uses(cpu=0, number=2)
    machine.memory.table.put(machine.flow(1)._replace(state=FlowState.MANUAL))
    machine.memory.table.leave(key(2))
    assert applications(machine.memory, {"nic"}) == {}
    assert applications(machine.memory, set()) == {}


def test_an_adopted_flow_is_on_its_core_until_its_thread_is_known() -> None:
    machine = Machine(AUTO)
    away(machine)
    machine.uses(cpu=0)
    machine.memory.table.put(machine.flow()._replace(thread=None, rule_name=""))
    assert placement_of(machine.flow(), machine.memory) is Placement.CORE
    steer.seen(seen(1, 0), NIC, AUTO, machine.memory, machine.now_ns)
    assert placement_of(machine.flow(), machine.memory) == LLC
