# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions for flows that are not to arrive on their application's own core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import RulesInForce
from atfnd.model import (
    Cpu,
    Flow,
    FlowRule,
    NicView,
    Outcome,
    Placement,
    PlacementKind,
    Plan,
    Policy,
    SocketSeen,
)
from tests.values import NIC, RULE, key, memory_of, seen

LLC = replace(RULE, placement=Placement(PlacementKind.LLC))
CPUS = {  # two caches: 0,1 and 2,3
    index: Cpu(index, True, index // 2, 0, index, (index,), (index & 2, (index & 2) + 1))
    for index in range(4)
}


class Machine:
    """A NIC that does what is decided for one rule of the policy (or several)."""

    def __init__(self, *rules: FlowRule, nic: NicView = NIC) -> None:
        policy = Policy((), rules, "auto", 100, 0, ())
        self.memory = memory_of(FlowTable(100), RulesInForce.of(policy))
        self.memory.know_cpus(CPUS.values())
        self.rule, self.nic, self.now_ns = rules[0], nic, 10**9

    def carry_out(self, plan: Plan) -> Plan:
        for action in plan:
            location = action.location or 100 + len(self.memory.table)
            audit.record(Outcome(action, self.now_ns, 0, location, ""), self.memory)
        return plan

    def uses(self, cpu: int, number: int = 1, **changes: Any) -> Plan:
        event = self.event(cpu, number, **changes)
        plan = steer.seen(event, self.nic, self.rule, self.memory, self.now_ns)
        return self.carry_out(plan)

    def event(self, cpu: int, number: int = 1, **changes: Any) -> SocketSeen:
        return seen(number, cpu, off_since_ns=self.now_ns, **changes)

    def flow(self, number: int = 1) -> Flow:
        found = self.memory.table.get(key(number))
        assert found is not None
        return found


def test_one_for_its_node_goes_away_from_its_core_in_every_case() -> None:
    """Its thread came to the core on which its packets arrive, or was there from the start."""
    node = replace(RULE, placement=Placement(PlacementKind.NODE))
    for before in ((), (1,)):
        machine = Machine(node)
        machine.memory.know_cpus([replace(cpu, node=index // 2) for index, cpu in CPUS.items()])
        assert [machine.uses(cpu=cpu, rx_cpu=0) for cpu in before] == [() for _ in before]
        (action,) = machine.uses(cpu=0, rx_cpu=0)
        assert action.new == 1


def test_flows_are_spread_over_equally_good_queues() -> None:
    wide = {i: replace(cpu, llc=(0, 1, 2, 3), node=0) for i, cpu in CPUS.items()}
    machine = Machine(LLC)
    machine.memory.know_cpus(wide.values())
    queues = [action.new or 0 for n in range(6) for action in machine.uses(0, n, rx_cpu=0)]
    assert sorted(queues) == [1, 1, 2, 2, 3, 3]


def test_what_falls_back_says_so_until_it_fits() -> None:
    nic = replace(NIC, queues=(NIC.queues[0], NIC.queues[3]))
    machine = Machine(LLC, nic=nic)
    (action,) = machine.uses(cpu=0)
    assert action.new == 0
    said = machine.flow().fell_back
    assert said is not None
    assert str(said).endswith("on its own CPU instead")
    machine.nic = NIC  # a queue came to CPU 1
    machine.carry_out(steer.take_up(NIC, machine.memory, machine.now_ns))
    entry = machine.flow()
    assert (entry.target_queue, entry.target_cpu, entry.fell_back) == (1, 1, None)


def test_a_fixed_set_takes_its_flows_from_every_cpu_and_keeps_them() -> None:
    fixed = replace(RULE, placement=Placement(PlacementKind.CPUS, frozenset({1, 2})))
    machine = Machine(fixed)
    assert sorted(a.new or 0 for n in range(4) for a in machine.uses(n, n)) == [1, 1, 2, 2]
    before = [machine.flow(n).target_queue for n in range(4)]
    assert [machine.uses(3 - n, n) for n in range(4)] == [()] * 4
    assert [machine.flow(n).target_queue for n in range(4)] == before
