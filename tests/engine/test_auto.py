# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions for flows under `auto`, while their application is on its core and off it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.indirection import entries
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.placement.auto import applications, placement_of, said
from atfnd.engine.placement.place import belongs
from atfnd.engine.plan import copy_of, foreseen
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.model import (
    ActionKind,
    Connecting,
    FlowKey,
    FlowState,
    Mode,
    Placement,
    SteeringMethod,
    Topology,
)
from atfnd.model.reason import Code
from tests.engine.test_steer_placements import CPUS, Machine
from tests.values import NIC, RULE, THREAD, key, seen

__all__: list[str] = []

AUTO = replace(RULE, placement=Placement.AUTO)
STRICT = replace(AUTO, order=Mode.STRICT)
APP = Application("nic", "rest", "app", None)
AGAIN = replace(THREAD, tid=200, pid=200)  # the same application, started anew
OTHER = replace(THREAD, tid=300, pid=300, comm="other")


def waiting(machine: Machine) -> set[FlowKey]:
    """To have their entries looked at."""
    return {*machine.memory.table.planned("nic")}


def away(machine: Machine, phase: TrialPhase = TrialPhase.KEPT) -> None:
    side = Placement.CORE if phase is TrialPhase.AGAIN else LLC
    trials = machine.memory.nics["nic"].trials
    trials.states[APP] = Trial(PLACING, side, "", phase)


def test_a_flow_goes_to_its_core_at_first() -> None:
    machine = Machine(AUTO)
    (action,) = machine.uses(cpu=0)
    assert action.new == 0
    assert (machine.flow().target_cpu, machine.flow().fell_back) == (0, None)
    assert belongs(machine.event(0), AUTO, machine.memory) == 0
    assert belongs(machine.event(0, number=2, rx_cpu=3), AUTO, machine.memory) == 0  # turned away


def test_it_takes_a_filter_where_rss_is_right_too_for_it_has_to_be_measured() -> None:
    machine = Machine(AUTO)
    (action,) = machine.uses(cpu=3, rx_cpu=3)
    assert (action.kind, action.new) == (ActionKind.INSERT, 3)
    assert [flow.key for flow in applications(machine.memory, {"nic"})[APP]] == [key(1)]


def test_services_of_one_name_in_two_control_groups_are_two_applications() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1, thread=replace(THREAD, cgroup=7))
    machine.uses(cpu=0, number=2, thread=replace(THREAD, cgroup=8))
    found = applications(machine.memory, {"nic"})
    assert {each.cgroup: [flow.key for flow in flows] for each, flows in found.items()} == {
        7: [key(1)],
        8: [key(2)],
    }


def test_its_flows_and_no_others_go_where_its_trial_has_them() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1)
    machine.uses(cpu=0, number=2, thread=OTHER)
    away(machine, TrialPhase.TRIED)
    (action,) = steer.take_up(NIC, machine.memory, machine.now_ns, only=[key(1)])
    assert (action.kind, action.key, action.new) == (ActionKind.REWRITE, key(1), 1)
    machine.carry_out((action,))
    assert steer.take_up(NIC, machine.memory, machine.now_ns) == ()
    assert (machine.flow(1).target_cpu, machine.flow(2).target_cpu) == (1, 0)
    machine.uses(cpu=0, number=3)
    machine.uses(cpu=0, number=4)
    away(machine, TrialPhase.AGAIN)
    some = steer.take_up(NIC, machine.memory, machine.now_ns, only=[key(1), key(3), key(99)])
    assert [(action.key, action.new) for action in some] == [(key(1), 0), (key(3), 0)]


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


@pytest.mark.parametrize("method", [SteeringMethod.RSS, SteeringMethod.RFS])
def test_without_filters_it_is_core(method: SteeringMethod) -> None:
    nic = replace(
        NIC,
        method=method,
        method_why=Code.KERNEL("no filters"),
        caps=replace(NIC.caps, filters=False),
    )
    machine = Machine(AUTO, nic=nic)
    assert machine.uses(cpu=0) == ()
    assert machine.flow().fell_back is None
    if method is SteeringMethod.RSS:
        assert waiting(machine) == {key(1)}
        machine.memory.nics["nic"].buckets = None
        entries.look(nic, machine.memory)
        assert waiting(machine) == {key(1)}


def test_flows_that_are_manual_or_left_alone_are_no_applications() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1)
    machine.uses(cpu=0, number=2)
    machine.memory.table.put(machine.flow(1)._replace(state=FlowState.MANUAL))
    machine.memory.table.leave(key(2))
    assert applications(machine.memory, {"nic"}) == {}
    assert applications(machine.memory, set()) == {}


def test_nothing_is_said_of_other_placements() -> None:
    usual = Machine(RULE)
    usual.uses(cpu=0)
    assert said(usual.flow(), usual.memory, 0) is None
    machine = Machine(AUTO)
    machine.uses(cpu=0)
    clause = said(machine.flow(), machine.memory, 0)
    assert clause is not None
    assert clause.startswith("auto: near core")


def test_an_adopted_flow_is_on_its_core_until_its_thread_is_known() -> None:
    machine = Machine(AUTO)
    away(machine)
    machine.uses(cpu=0)
    machine.memory.table.put(machine.flow()._replace(thread=None, rule_name=""))
    assert placement_of(machine.flow(), machine.memory) is Placement.CORE
    steer.seen(seen(1, 0), NIC, AUTO, machine.memory, machine.now_ns)
    assert placement_of(machine.flow(), machine.memory) == LLC


def test_a_plan_knows_what_is_in_force_and_the_cpus() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0)
    away(machine)
    machine.memory.busy = {1: 4}
    topology, known = Topology(tuple(CPUS.values())), copy_of(machine.memory, "nic")
    assert known.memory.busy == {1: 4}
    assert known.memory.full is machine.memory.full
    spending = machine.memory.nics["nic"].spending
    known.memory.nics["nic"].spending.covers.add(key(9))
    assert spending.covers == set()  # what a plan would spend is not spent
    (action,) = foreseen(NIC, topology, known, machine.memory.table, machine.now_ns)
    assert (action.key, action.new) == (key(1), 1)


def test_an_application_is_of_one_nic_and_without_its_thread_a_flow_is_on_its_core() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0)
    flow = machine.memory.table.get(key(1))
    assert flow is not None
    assert applications(machine.memory, {"other"}) == {}
    assert placement_of(flow._replace(thread=None), machine.memory) is Placement.CORE
