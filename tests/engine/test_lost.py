# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules that are missing, or have no effect: what the NIC lost comes back, what somebody took out
does not, and a rule the NIC only pretends to have is written anew, not for ever."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.filters.lost import lost
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import Filter, FlowState, Match
from tests.values import NIC, flow, memory_of, one_rule

SECOND_NS = 1_000_000_000


def memory(flows: int, **changes: object) -> Memory:
    known = memory_of(FlowTable(100), one_rule(0, 30 * SECOND_NS))
    for number in range(flows):
        placed = {"state": FlowState.STEERED, "location": number, "target_queue": 1, **changes}
        known.table.put(flow(number, **placed))
    return known


def rules(known: Memory) -> list[Filter]:
    return [
        Filter(entry.location, Match.of(entry.key), 1)
        for entry in known.table
        if entry.location is not None
    ]


@given(st.integers(1, 8), st.sets(st.integers(0, 7)), st.booleans())
def test_a_rule_is_lost_when_the_nic_was_disturbed_or_all_are_gone(
    flows: int, kept: set[int], disturbed: bool
) -> None:
    known = memory(flows)
    there = [rule for rule in rules(known) if rule.location in kept]
    missing = flows - len(there)
    found = lost(NIC, there, known, disturbed=disturbed)
    wiped = not there and flows > 1
    assert len(found) == (missing if disturbed or wiped else 0)
    for entry in found:
        now = known.table.get(entry.key)
        assert now is not None
        assert (now.state, now.location) == (FlowState.WANTED, None)
        assert "lost its filter" in str(now.why)
    assert known.table.filters_in("nic") == flows - len(found)


def test_a_rule_alone_that_is_gone_was_taken_out_by_somebody() -> None:
    assert lost(NIC, [], memory(1), disturbed=False) == []


def test_somebody_elses_rules_do_not_hide_a_disturbance() -> None:
    foreign = [Filter(50, Match.of(flow(60).key), 0)]
    assert len(lost(NIC, foreign, memory(2), disturbed=True)) == 2
    assert lost(NIC, foreign, memory(2), disturbed=False) == []


def test_a_filter_that_an_asynchronous_driver_never_showed_is_not_lost() -> None:
    """It may have been dropped: that is counted, and tried again later each time."""
    nic = replace(NIC, caps=replace(NIC.caps, asynchronous=True))
    known = memory(2)
    known.nics["nic"].listed_ns = 10 * SECOND_NS
    (first, second) = known.table
    known.table.put(second._replace(moved_ns=10 * SECOND_NS))
    assert [each.key for each in lost(nic, [], known, disturbed=True)] == [first.key]
