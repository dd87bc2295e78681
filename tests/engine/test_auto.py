# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions for flows that are not to arrive on their application's own core, also under `auto`,
with the windows of an application. And the load that is already there: of CPUs that are equally
good, the least busy one, and none that is full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.compare.window import Window
from atfnd.engine import audit
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.ownership import follow
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.placement import steer
from atfnd.engine.placement.auto import applications, placement_of
from atfnd.engine.placement.load import FullCpus, FullTerms, busy_percent, quarter
from atfnd.engine.placement.place import guest
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import RulesInForce
from atfnd.engine.trials.placing import application_looks
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.engine.trials.usage import UsageReading, windows
from atfnd.model import (
    ActionKind,
    Connecting,
    Cpu,
    CpuTime,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Mode,
    NicView,
    Outcome,
    Placement,
    PlacementKind,
    Plan,
    Policy,
)
from atfnd.model.reason import UNSAID, Code
from tests.values import NIC, RULE, THREAD, key, memory_of, seen

NEAR_LLC = replace(RULE, placement=Placement(PlacementKind.LLC))
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
    machine = Machine(NEAR_LLC)
    machine.memory.know_cpus(wide.values())
    queues = [action.new or 0 for n in range(6) for action in machine.uses(0, n, rx_cpu=0)]
    assert sorted(queues) == [1, 1, 2, 2, 3, 3]


def test_what_falls_back_says_so_until_it_fits() -> None:
    nic = replace(NIC, queues=(NIC.queues[0], NIC.queues[3]))
    machine = Machine(NEAR_LLC, nic=nic)
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


# Flows under `auto`, while their application is on its core and off it.

AUTO = replace(RULE, placement=Placement.AUTO)
STRICT = replace(AUTO, order=Mode.STRICT)
APP = Application("nic", "rest", "app", None)
AGAIN = replace(THREAD, tid=200, pid=200)  # the same application, started anew


def away(machine: Machine, phase: TrialPhase = TrialPhase.KEPT) -> None:
    side = Placement.CORE if phase is TrialPhase.AGAIN else LLC
    trials = machine.memory.nics["nic"].trials
    trials.states[APP] = Trial(PLACING, side, UNSAID, phase)


def test_it_is_remembered_for_a_process_that_is_started_anew() -> None:
    machine = Machine(AUTO)
    away(machine)
    (action,) = machine.uses(cpu=2, thread=AGAIN, rx_cpu=2)
    assert action.new == 3
    assert str(action.why) == "its thread runs on CPU 2; near llc: queue 3 is delivered on CPU 3"


@pytest.mark.parametrize("changes", [{"comm": "other"}, {"cgroup": 7}], ids=["name", "cgroup"])
def test_an_application_is_known_by(changes: dict[str, object]) -> None:
    machine = Machine(AUTO)
    away(machine)
    (action,) = machine.uses(cpu=0, thread=replace(THREAD, **changes))  # type: ignore[arg-type]
    assert action.new == 0


def test_on_its_core_a_queue_follows_its_thread_and_off_it_none_does() -> None:
    machine = Machine(STRICT)

    def owners() -> list[object]:
        return [each.owner for each in machine.memory.nics["nic"].owned.values()]

    def look() -> None:
        machine.carry_out(steer.take_up(NIC, machine.memory, machine.now_ns))
        machine.carry_out(steer.own(NIC, frozenset(range(4)), machine.memory, machine.now_ns))

    machine.uses(cpu=0)
    assert owners() == [follow.owner_of(machine.flow(), machine.memory)] == [("thread", THREAD.tid)]
    away(machine)
    assert follow.owner_of(machine.flow(), machine.memory) is None
    look()
    assert (owners(), machine.flow().target_cpu) == ([], 1)
    assert all(action.kind is not ActionKind.QUEUE_CPU for action in machine.uses(cpu=2))
    del machine.memory.nics["nic"].trials.states[APP]
    look()
    assert (owners(), machine.flow().target_cpu) == ([("thread", THREAD.tid)], 2)


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


# Windows of an application.

NAPI0, NAPI1 = 1000, 1001  # threads of queues 0 and 1
MB = 1_000_000
CARRIED = {key(1): MB}


def look(
    at_s: float, cpus_ms: Mapping[int, tuple[int, int]], ran_ms: Mapping[int, int],
    carried: Mapping[FlowKey, int] = CARRIED, lost: int = 0,
    waited_ms: Mapping[int, int] | None = None,
) -> UsageReading:  # fmt: skip
    """By CPU: busy, and of it in softirqs. A thread that is not reported to have waited has not."""
    spent = CpuTime(
        int(at_s * SECOND_NS),
        {cpu: busy * MB for cpu, (busy, _) in cpus_ms.items()},
        {cpu: softirq * MB for cpu, (_, softirq) in cpus_ms.items()},
        {tid: ran * MB for tid, ran in ran_ms.items()},
        {tid: ran * MB for tid, ran in {**dict.fromkeys(ran_ms, 0), **(waited_ms or {})}.items()},
        {},
    )
    return UsageReading(spent, carried, lost)


BEFORE = look(10, {0: (500, 100), 1: (0, 0)}, {THREAD.tid: 50, NAPI0: 5, NAPI1: 0})


def reported(now: UsageReading, machine: Machine | None = None) -> Window:
    if machine is None:
        machine = Machine(AUTO)
        machine.uses(cpu=0)
    flows = applications(machine.memory, {"nic"})
    return windows(BEFORE, now, NIC, flows, machine.memory)[APP]


def test_its_threads_softirqs_and_napi_threads_are_what_it_costs() -> None:
    now = look(
        12,
        {0: (2400, 200), 1: (900, 300)},
        {THREAD.tid: 1250, NAPI0: 305, NAPI1: 400},
        {key(1): 7 * MB},
        waited_ms={THREAD.tid: 300, NAPI0: 20, NAPI1: 7},
    )
    window = reported(now)
    assert (window.began_ns, window.ended_ns) == (10 * SECOND_NS, 12 * SECOND_NS)
    assert window.bytes == 6 * MB
    assert window.spent_ns == {0: (1200 + 100 + 300) * MB, 1: (300 + 400) * MB}
    assert window.waited_ns == {0: (300 + 20) * MB, 1: 7 * MB}
    assert window.fullest(window.app_cpus) == (0, 0.8)
    assert (set(window.app_cpus), set(window.rx_cpus)) == ({0}, {0})
    assert (window.there, window.void) == (True, None)


def test_nothing_goes_backwards() -> None:
    now = look(12, {0: (400, 50), 1: (0, 0)}, {THREAD.tid: 40, NAPI0: 0, NAPI1: 0}, {key(1): 5})
    window = reported(now)
    assert (window.bytes, window.spent_ns[0]) == (0, 0)


def test_lost_events_other_flows_and_other_threads_make_it_void() -> None:
    usual = {THREAD.tid: 60, NAPI0: 5, NAPI1: 0}
    cpus = {0: (600, 100), 1: (0, 0)}
    assert reported(look(12, cpus, usual)).void is None
    assert reported(look(12, cpus, usual, lost=1)).void == Code.EVENTS_LOST()
    assert reported(look(12, cpus, usual, {})).void == Code.FLOWS_CHANGED()
    assert reported(look(12, cpus, {})).void == Code.TIMES_UNKNOWN()
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1)
    machine.uses(cpu=0, number=2)
    both = {key(1): MB, key(2): MB}
    assert reported(look(12, cpus, usual, both), machine).void == Code.FLOWS_CHANGED()


def test_it_is_there_when_every_flow_is_led_where_its_placement_in_force_asks() -> None:
    machine, now = Machine(AUTO), look(12, {0: (600, 100)}, {THREAD.tid: 60})
    machine.uses(cpu=0)
    assert reported(now, machine).there
    trials = machine.memory.nics["nic"].trials
    trials.states[APP] = Trial(PLACING, LLC, UNSAID, TrialPhase.TRIED)
    assert not reported(now, machine).there
    led = machine.flow()._replace(target_queue=1)
    machine.memory.table.put(led)
    window = reported(now, machine)
    assert window.there
    assert (set(window.rx_cpus), set(window.cpus)) == ({1}, {0, 1})
    machine.memory.table.put(led._replace(location=None))
    assert not reported(now, machine).there


def test_where_no_queue_is_under_its_cache_nothing_can_be_tried() -> None:
    for nic, able in ((NIC, (LLC,)), (replace(NIC, queues=(NIC.queues[0], NIC.queues[2])), ())):
        machine, now = Machine(AUTO, nic=nic), look(12, {0: (600, 100)}, {THREAD.tid: 60})
        machine.uses(cpu=0)
        flows = applications(machine.memory, {"nic"})
        assert application_looks(BEFORE, now, nic, flows, machine.memory)[APP].able == able
