# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions: what is placed where, when it is held back, and that entries and rules never part."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.plan import copy_of, foreseen
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Filter,
    FlowState,
    Match,
    Outcome,
    Placement,
    Plan,
    Topology,
)
from atfnd.model.reason import Code
from atfnd.move.plan import in_order
from tests.values import NIC, RULE, key, memory_of, one_rule, seen

HOLD_NS = 100
T_DELETE_NS = 10_000


def memory(capacity: int = 100) -> Memory:
    return memory_of(FlowTable(capacity), one_rule(HOLD_NS, T_DELETE_NS))


def carried_out(plan: Plan, known: Memory, at_ns: int, location: int = 7) -> None:
    for action in plan:
        audit.record(Outcome(action, at_ns, 0, action.location or location, ""), known)


def steered(known: Memory, cpu: int = 1, at_ns: int = 1) -> None:
    carried_out(steer.seen(seen(1, cpu), NIC, RULE, known, at_ns), known, at_ns)


def test_a_move_that_waited_until_it_was_decided_otherwise_is_taken_back() -> None:
    """Its thread went to CPU 2 and came back before the move there had its turn."""
    known = memory()
    steered(known, cpu=1, at_ns=1)
    (late,) = steer.seen(seen(1, 2), NIC, RULE, known, 1000)
    assert steer.seen(seen(1, 1), NIC, RULE, known, 1001) == ()
    done = Outcome(late, 1002, 0, 7, "")
    audit.record(done, known)
    audit.overtaken(done, NIC, known)
    (back,) = steer.due({"nic": NIC}, known, 1002 + HOLD_NS)
    assert (back.kind, back.old, back.new) == (ActionKind.REWRITE, 2, 1)
    done = Outcome(back, 2000, 0, 7, "")
    audit.record(done, known)
    audit.overtaken(done, NIC, known)
    assert not known.table.deferred()


def test_a_policy_that_leaves_a_flow_gives_its_rule_back() -> None:
    known = memory()
    steered(known)
    leave = replace(RULE, placement=Placement.LEAVE)
    (action,) = steer.seen(seen(1, 2), NIC, leave, known, 2)
    assert action.kind is ActionKind.DELETE


def test_a_full_nic_leaves_the_flow_to_rss_and_counts_it_once() -> None:
    known = memory()
    left = "the NIC's filter table is full: delivered by RSS"
    (action,) = steer.seen(seen(1, 1), NIC, RULE, known, 1)
    audit.record(Outcome(action, 1, errno.ENOSPC, None, left), known)
    assert steer.seen(seen(1, 1), NIC, RULE, known, 2) == ()
    (entry,) = known.table
    assert (entry.state, entry.location, str(entry.why)) == (FlowState.OVERFLOW, None, left)
    assert known.overflow == 1


@pytest.mark.parametrize(("armed", "writes"), [(True, 0), (False, 1)])
def test_only_of_a_nic_that_is_not_armed_a_changed_filter_is_foreseen_to_be_ours_again(
    armed: bool, writes: int
) -> None:
    known = memory()
    steered(known)
    audit.check_filters(NIC, [Filter(7, Match.of(key(1)), queue=2)], known, 2)
    nic = replace(NIC, armed=armed)
    plan = foreseen(nic, Topology(()), copy_of(known, "nic"), known.table, 10 * HOLD_NS)
    assert sum(each.key == key(1) for each in plan) == writes


@given(st.lists(st.tuples(st.sampled_from(ActionKind), st.integers(0, 3)), max_size=30))
def test_a_schedule_has_one_operation_a_flow_and_frees_slots_first(
    wanted: list[tuple[ActionKind, int]],
) -> None:
    plan = [Action(kind, "nic", key(n), None, None, None, Code.UNSAID(), "") for kind, n in wanted]
    done: list[Action] = []

    def apply(action: Action) -> Outcome:
        done.append(action)
        return Outcome(action, 0, 0, None, "")

    for each in in_order(tuple(plan)):
        apply(each)
    assert len({action.key for action in done}) == len(done)
    kinds = [action.kind for action in done]
    if ActionKind.INSERT in kinds:
        assert ActionKind.DELETE not in kinds[kinds.index(ActionKind.INSERT) :]
