# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads that leave each CPU before a move of their flows has paid: these are left to RSS."""

from __future__ import annotations

import errno
from dataclasses import replace

from atfnd.engine import audit
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.placement.place import belongs
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    Distance,
    Flow,
    FlowState,
    Mode,
    Outcome,
    Placement,
    PlacementKind,
)
from tests.values import NIC, RULE, flow, key, memory_of, one_rule, seen

__all__: list[str] = []

NOW_NS = 10**11
WANDERS = "its thread wanders: left to RSS"


def memory(*flows: Flow) -> Memory:
    known = memory_of(FlowTable(100), one_rule(0, 1 << 60, Mode.STRICT))
    for each in flows:
        known.table.put(each)
    return known


def entry(known: Memory) -> Flow:
    found = known.table.get(key(1))
    assert found is not None
    return found


def steered() -> Flow:
    return flow(1, state=FlowState.STEERED, app_cpu=1, location=7, target_queue=1, target_cpu=1)


def reported(known: Memory, *, wanders: bool, cpu: int = 2) -> list[ActionKind]:
    event = seen(1, cpu, home=Distance.MACHINE if wanders else Distance.CPU)
    return [each.kind for each in steer.seen(event, NIC, RULE, known, NOW_NS)]


def ended(known: Memory, error: int = 0) -> None:
    """The filter has been deleted, or the NIC refuses."""
    generation = known.table.generation(key(1))
    action = Action(
        ActionKind.DELETE, "nic", key(1), 7, 1, None, WANDERS, "rest", generation=generation
    )
    location, left = (7, "refused") if error else (None, "")
    audit.record(Outcome(action, NOW_NS, error, location, left), known)


def test_a_new_flow_of_a_thread_that_wanders_gets_no_filter_and_the_reason() -> None:
    known = memory()
    assert reported(known, wanders=True) == []
    assert (str(entry(known).left), entry(known).location) == (WANDERS, None)
    assert follow.owner_of(entry(known), known) is None


def test_its_filter_goes_and_its_entry_stays() -> None:
    known = memory(steered())
    assert reported(known, wanders=True) == [ActionKind.DELETE]
    ended(known)
    found = entry(known)
    assert (str(found.left), found.location) == (WANDERS, None)
    assert found.state is FlowState.WANTED  # `observed` is for NICs that are not armed


def test_a_delete_that_was_put_off_is_tried_again() -> None:
    known = memory(steered())
    reported(known, wanders=True)
    known.table.defer(key(1), NOW_NS)
    plan = steer.due({"nic": NIC}, known, NOW_NS)
    assert [each.kind for each in plan] == [ActionKind.DELETE]
    assert plan[0].why == WANDERS


def test_a_delete_that_the_nic_refuses_leaves_the_flow_steered() -> None:
    known = memory(steered())
    reported(known, wanders=True)
    ended(known, errno.EIO)
    assert (entry(known).state, entry(known).location) == (FlowState.STEERED, 7)


def test_a_flow_that_another_program_steers_stays_its_own_when_its_thread_has_wandered() -> None:
    known = memory(flow(1, state=FlowState.MANUAL, app_cpu=1))
    for wanders in (True, False, False):
        assert reported(known, wanders=wanders) == []
        assert entry(known).state is FlowState.MANUAL


def test_a_thread_that_settles_has_its_flows_placed_again() -> None:
    known = memory(steered())
    reported(known, wanders=True)
    assert ActionKind.DELETE not in reported(known, wanders=False)  # before its filter has gone
    assert (entry(known).left, entry(known).state) == (None, FlowState.STEERED)
    reported(known, wanders=True)
    ended(known)
    assert set(reported(known, wanders=False)) == {ActionKind.INSERT}
    assert (entry(known).left, entry(known).state) == (None, FlowState.WANTED)


def test_where_packets_belong_once_the_thread_stays_is_elsewhere_than_on_its_cpu() -> None:
    """RSS brings them to the thread's CPU, which its policy does not want: it is not forgotten."""
    rule = replace(RULE, placement=Placement(PlacementKind.CPUS, frozenset({3})))
    known = memory_of(FlowTable(100), RulesInForce(0, 1 << 60, {"rest": rule}))
    known.know_cpus(Cpu(at, True, 0, 0, at, (at,), (0, 1, 2, 3)) for at in range(4))
    event = seen(1, 2, rx_cpu=2, home=Distance.MACHINE)
    steer.seen(event, NIC, rule, known, NOW_NS)
    assert entry(known).target_cpu is None
    assert belongs(event, rule, known) == 3
    assert belongs(event, RULE, known) == 2
    known.table.put(steered())
    for home in (Distance.MACHINE, Distance.CPU):  # it settles before its filter has gone
        event = event._replace(home=home)
        steer.seen(event, NIC, rule, known, NOW_NS)
        assert belongs(event, rule, known) == 3


CPUS = [Cpu(at, True, 0, 0, at, (at,), (0, 1) if at < 2 else (2, 3)) for at in range(4)]


def two_caches(*flows: Flow) -> Memory:
    known = memory(*flows)
    known.know_cpus(CPUS)
    return known


def within(known: Memory, number: int, cpu: int, rx_cpu: int) -> list[tuple[ActionKind, object]]:
    event = seen(number, cpu, rx_cpu=rx_cpu, home=Distance.LLC, pinned=False)
    return [(each.kind, each.new) for each in steer.seen(event, NIC, RULE, known, NOW_NS)]


def test_packets_of_a_thread_that_wanders_within_a_cache_are_brought_there_once() -> None:
    known = two_caches()
    [(kind, queue)] = within(known, 1, 0, 3)
    assert (kind, queue in (0, 1)) == (ActionKind.INSERT, True)
    assert "wanders within the last-level cache of CPUs 0-1" in entry(known).why
    assert follow.owner_of(entry(known), known) is None


def test_nothing_is_written_while_they_arrive_anywhere_in_it() -> None:
    known = two_caches()
    assert within(known, 1, 0, 1) == []
    led = flow(1, state=FlowState.STEERED, app_cpu=1, location=7, target_queue=1, target_cpu=1)
    known = two_caches(led)
    assert within(known, 1, 0, 1) == []


def test_a_placement_that_names_cpus_or_is_wider_than_its_home_holds() -> None:
    rule = replace(RULE, placement=Placement(PlacementKind.CPUS, frozenset({3})))
    known = memory_of(FlowTable(100), RulesInForce(0, 1 << 60, {"rest": rule}))
    known.know_cpus(CPUS)
    event = seen(1, 0, rx_cpu=0, home=Distance.LLC)
    [action] = steer.seen(event, NIC, rule, known, NOW_NS)
    assert (action.new, "wanders" in action.why) == (3, False)


def test_cpus_outside_its_cpuset_and_isolated_ones_are_no_home() -> None:
    known = two_caches()
    known.know_cpus([replace(CPUS[0], isolated=True), *CPUS[1:]])
    assert [queue for _, queue in within(known, 1, 1, 3)] == [1]
    known = two_caches()
    event = seen(1, 0, rx_cpu=3, home=Distance.LLC)
    assert event.thread is not None
    known.cpusets[event.thread.tid] = frozenset({1, 2, 3})
    assert [each.new for each in steer.seen(event, NIC, RULE, known, NOW_NS)] == [1]


def test_further_flows_of_a_guest_that_may_leave_again_wait_until_they_have_paid() -> None:
    for pinned, moved in ((False, 1), (True, 2), (None, 2)):
        others = [
            flow(n, state=FlowState.STEERED, app_cpu=1, location=n, target_queue=1, target_cpu=1)
            for n in (1, 2)
        ]
        known = two_caches(*others)
        known.nics["nic"].lent.crowded = True  # nobody owns a queue
        event = seen(1, 2, rx_cpu=1, pinned=pinned, off_since_ns=1)
        plan = steer.seen(event, NIC, RULE, known, NOW_NS)
        assert len({each.key for each in plan}) == moved
