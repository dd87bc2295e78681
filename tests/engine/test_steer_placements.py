# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions for flows that are not to arrive on their application's own core; and the load that is
already there: of CPUs that are equally good, the least busy one, and none that is full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.placement import steer
from atfnd.engine.placement.load import FullCpus, FullTerms, busy_percent, quarter
from atfnd.engine.placement.place import guest
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import RulesInForce
from atfnd.model import (
    Cpu,
    CpuTime,
    Flow,
    FlowRule,
    NicView,
    Outcome,
    Placement,
    PlacementKind,
    Plan,
    Policy,
)
from tests.values import NIC, RULE, THREAD, key, memory_of, seen

__all__: list[str] = []

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
        event = seen(number, cpu, off_since_ns=self.now_ns, **changes)
        plan = steer.seen(event, self.nic, self.rule, self.memory, self.now_ns)
        return self.carry_out(plan)

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


NAMED = Placement(PlacementKind.CPUS, frozenset({1, 2, 3}))
TIMES = st.dictionaries(st.integers(0, 7), st.integers(0, 1 << 62))


def at(at_ns: int, idle_ns: dict[int, int]) -> CpuTime:
    return CpuTime(at_ns, {}, {}, {}, {}, idle_ns)


def test_it_is_reported_in_percent_and_compared_in_quarters() -> None:
    before, now = at(0, {0: 0, 1: 5, 2: 0, 3: 7}), at(100, {0: 76, 1: 80, 2: 0, 4: 100})
    assert busy_percent(before, now) == {0: 24, 1: 25, 2: 100}
    assert [quarter(percent) for percent in (0, 24, 25, 74, 75, 100)] == [0, 0, 1, 2, 3, 3]


@given(TIMES, TIMES, st.integers(1, 1 << 40))
def test_whatever_the_kernel_says(before: dict[int, int], now: dict[int, int], for_ns: int) -> None:
    """Clock ticks may be ahead of the time, and a CPU's may go back when it comes online again."""
    found = busy_percent(at(0, before), at(for_ns, now))
    assert found.keys() == before.keys() & now.keys()
    assert set(found.values()) <= {*range(101)}


def spot(busy: dict[int, int]) -> int | None:
    machine = Machine(replace(RULE, placement=NAMED))
    machine.memory.busy = busy
    return guest(NAMED, 0, THREAD, NIC, machine.memory).cpu


def test_the_least_busy_of_equals_is_taken() -> None:
    assert spot({}) == 1
    assert spot({1: 25, 2: 49, 3: 24}) == 3
    assert spot({1: 75, 2: 50}) == 3  # of which nothing is known yet


def test_a_queue_that_a_thread_owns_is_taken_last_however_idle_its_cpu_is() -> None:
    """It follows that thread, and would take the guest along."""
    machine = Machine(replace(RULE, placement=NAMED))
    machine.memory.busy = {2: 30, 3: 30}
    machine.memory.nics["nic"].owned = {1: Owned(("thread", 7), 0)}
    assert guest(NAMED, 0, THREAD, NIC, machine.memory).cpu == 2


# CPUs that are full while others are not: packets are not brought to them.

SECOND_NS = 10**9
LOOK_NS = 2 * SECOND_NS
FULL, CALM, BUSY = {0: 100, 1: 10}, {0: 10, 1: 10}, {0: 70, 1: 10}


class Looks:
    """Readings of the load, one every two seconds."""

    def __init__(self) -> None:
        self.full, self.now_ns = FullCpus(), 0
        self.look({0: 0, 1: 0, 2: 0, 3: 0})

    def look(self, busy: dict[int, int], times: int = 1) -> set[int]:
        for _ in range(times):
            self.full.look(busy, CPUS, self.now_ns)
            self.now_ns += LOOK_NS
        return set(self.full.cpus)

    def until_not_full(self, busy: dict[int, int], most: int = 1000) -> int:
        """How many looks it takes."""
        return next(n for n in range(1, most) if not self.look(busy))


def test_a_cpu_is_full_where_another_under_its_cache_has_room() -> None:
    assert Looks().look({0: 95, 1: 90, 2: 0, 3: 0}) == {0}
    assert Looks().look({0: 94, 1: 90}) == set()
    assert Looks().look({0: 100, 1: 91, 2: 0, 3: 0}) == set()  # that one is under another cache
    assert Looks().look({0: 100}) == set()  # CPU 1 is offline
    assert Looks().look({0: 100, 1: 0, 9: 100}) == {0}  # nothing is known of CPU 9


def test_what_lasts_only_for_a_moment_does_not_count() -> None:
    """Looks may come more often than usual."""
    looks = Looks()
    for _ in range(14):
        looks.now_ns += SECOND_NS // 10 - LOOK_NS
        assert looks.look(FULL) == set()
    looks.now_ns += SECOND_NS // 10 - LOOK_NS
    looks.look(CALM)
    looks.now_ns += SECOND_NS // 10 - LOOK_NS
    assert looks.look(FULL) == set()


def test_it_is_full_until_it_has_had_slack_for_long() -> None:
    looks = Looks()
    assert looks.look(FULL) == {0}
    assert looks.look(BUSY, 100) == {0}  # it could not take its packets back
    assert looks.look({0: 100, 1: 100}, 100) == {0}  # RSS has its packets, and stays as good
    assert looks.look(CALM, 4) == {0}
    assert looks.look(BUSY) == {0}
    assert looks.until_not_full(CALM) == 5
    assert looks.look(BUSY, 100) == set()


@given(st.lists(st.dictionaries(st.integers(0, 4), st.integers(0, 100)), max_size=60))
def test_whatever_is_read(busy: list[dict[int, int]]) -> None:
    looks = Looks()
    changes, before = 0, set[int]()
    for each in busy:
        now = looks.look(each)
        changes, before = changes + len(now - before), now
        assert now <= each.keys() & CPUS.keys()
    assert looks.full.times.keys() <= CPUS.keys()
    assert max((times for times, _ in looks.full.times.values()), default=0) <= FullTerms().doubled
