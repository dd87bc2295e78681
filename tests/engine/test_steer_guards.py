# SPDX-License-Identifier: GPL-2.0-or-later
"""What is made of one event of a socket, each rule of `engine.placement.steer` by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import ActionKind, Flow, FlowState, Mode, NicView, SteeringMethod
from tests.values import NIC, RULE, flow, key, memory_of, one_rule, seen

__all__: list[str] = []

NOW_NS = 10**11
ONLINE = frozenset(range(4))


def memory(*flows: Flow, capacity: int = 100, **changes: Any) -> Memory:
    known = memory_of(FlowTable(capacity), one_rule(100, 1 << 60, **changes))
    for each in flows:
        known.table.put(each)
    return known


def entry(known: Memory, number: int = 1) -> Flow | None:
    return known.table.get(key(number))


def test_where_nobody_sees_packets_arrive_rss_says_where_they_do() -> None:
    for rss_cpu, has_entry in ((1, False), (2, True), (None, True)):
        known = memory()
        event = seen(1, 1, rx_cpu=None)
        plan = steer.seen(event, NIC, RULE, known, NOW_NS, rss_cpu)
        assert [each.new for each in plan] == ([1] if has_entry else [])
        assert (entry(known) is not None) is has_entry


def test_where_packets_are_seen_to_arrive_counts_before_what_rss_says() -> None:
    known = memory()
    assert steer.seen(seen(1, 1, rx_cpu=1), NIC, RULE, known, NOW_NS, rss_cpu=3) == ()
    assert entry(known) is None


@pytest.mark.parametrize(
    ("state", "stays"),
    [
        (FlowState.MANUAL, True),
        (FlowState.RSS, True),
        (FlowState.SHARED, True),
        (FlowState.RFS, True),
        (FlowState.PORT, True),
        (FlowState.WANTED, False),
        (FlowState.OVERFLOW, False),
    ],
)
def test_a_flow_that_arrives_where_it_is_used_ends_unless_something_leads_it_there(
    state: FlowState, stays: bool
) -> None:
    known = memory(flow(1, state=state, app_cpu=3))
    steer.seen(seen(1, 3, rx_cpu=3), NIC, RULE, known, NOW_NS)
    assert (entry(known) is not None) is stays


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        ({}, False),
        ({"method": SteeringMethod.RSS}, True),  # evidence for the entry that it shares with others
        ({"method": SteeringMethod.RSS, "armed": False}, False),
        ({"armed": False}, False),
    ],
)
def test_a_flow_that_is_right_already_is_kept_only_where_it_is_evidence(
    changes: dict[str, Any], is_kept: bool
) -> None:
    known = memory()
    steer.seen(seen(1, 3, rx_cpu=3), replace(NIC, **changes), RULE, known, NOW_NS)
    assert (entry(known) is not None) is is_kept


@pytest.mark.parametrize(("pinned", "goes_along"), [(True, True), (None, True), (False, False)])
def test_the_other_flows_of_a_pinned_thread_go_along_though_the_reported_one_needs_nothing(
    pinned: bool | None, goes_along: bool
) -> None:
    """One report stands for all of them."""
    known = memory(flow(2, state=FlowState.STEERED, location=7, target_queue=0, target_cpu=0))
    plan = steer.seen(seen(1, 3, rx_cpu=3, pinned=pinned), NIC, RULE, known, NOW_NS)
    assert [each.key for each in plan] == ([key(2)] if goes_along else [])
    assert entry(known) is None


def test_a_flow_that_is_left_alone_keeps_its_reason() -> None:
    known = memory(flow(1, state=FlowState.MANUAL, why="another program removed its filter"))
    assert steer.seen(seen(1, 1), NIC, RULE, known, NOW_NS) == ()
    found = entry(known)
    assert found is not None
    assert (found.app_cpu, found.why) == (1, "another program removed its filter")


def test_a_full_table_turns_newcomers_away_and_nobody_else() -> None:
    known = memory(flow(1), capacity=1)
    assert [each.key for each in steer.seen(seen(1, 1), NIC, RULE, known, NOW_NS)] == [key(1)]
    assert steer.seen(seen(2, 1), NIC, RULE, known, NOW_NS) == ()
    assert known.table.overflowed.keys() == {key(2)}


def test_who_was_turned_away_is_not_any_more_once_there_is_room() -> None:
    known = memory(flow(1), capacity=1)
    steer.seen(seen(2, 1), NIC, RULE, known, NOW_NS)
    known.table.remove(key(1))
    assert [each.key for each in steer.seen(seen(2, 1), NIC, RULE, known, NOW_NS)] == [key(2)]
    assert known.table.overflowed == {}


def owning(nic: NicView, *flows: Flow) -> list[tuple[ActionKind, object]]:
    known = memory(*flows, order=Mode.STRICT)
    known.audited_ns = NOW_NS
    plan = steer.own(nic, ONLINE, known, NOW_NS)
    return [(each.kind, each.key) for each in plan]


def test_who_owns_a_queue_has_its_flows_of_that_nic_placed_and_no_others() -> None:
    here, there = (flow(n, app_cpu=1, used_ns=NOW_NS) for n in (1, 2))
    there = there._replace(nic="other")
    assert owning(NIC, here, there) == [(ActionKind.INSERT, key(1))]
    idle = here._replace(used_ns=NOW_NS - 3 * 10**9)
    assert owning(NIC, idle, there) == []


def test_a_flow_that_finds_no_filter_left_is_counted_once_however_often_it_is_used() -> None:
    known, full = memory(), replace(NIC, budget=0)
    for cpu in (1, 2, 1):
        assert steer.seen(seen(1, cpu), full, RULE, known, NOW_NS) == ()
    assert known.overflow == 1
    steer.seen(seen(2, 1), full, RULE, known, NOW_NS)
    assert known.overflow == 2
