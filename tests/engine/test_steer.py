# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions: what is placed where, when it is held back, and that entries and rules never part."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.filters import budget
from atfnd.engine.placement import steer
from atfnd.engine.plan import copy_of, foreseen
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Distance,
    Filter,
    FlowState,
    Match,
    Move,
    Outcome,
    Placement,
    Plan,
    SocketUse,
    Thread,
    Topology,
)
from atfnd.model.reason import Code
from atfnd.move.plan import in_order
from tests.values import NIC, RULE, key, memory_of, one_rule, seen

HOLD_NS = 100
SECOND_NS = 1_000_000_000
T_DELETE_NS = 10_000


def memory(capacity: int = 100) -> Memory:
    return memory_of(FlowTable(capacity), one_rule(HOLD_NS, T_DELETE_NS))


def carried_out(plan: Plan, known: Memory, at_ns: int, location: int = 7) -> None:
    for action in plan:
        audit.record(Outcome(action, at_ns, 0, action.location or location, ""), known)


def steered(known: Memory, cpu: int = 1, at_ns: int = 1) -> None:
    carried_out(steer.seen(seen(1, cpu), NIC, RULE, known, at_ns), known, at_ns)


def test_a_flow_goes_to_the_queue_of_its_threads_cpu() -> None:
    known = memory()
    (action,) = steer.seen(seen(1, app_cpu=1), NIC, RULE, known, 1)
    assert (action.kind, action.old, action.new) == (ActionKind.INSERT, 3, 1)
    assert "CPU 1" in action.why
    assert action.rule_name == "rest"
    entry = known.table.get(key(1))
    assert entry is not None
    assert entry.state is FlowState.WANTED  # believed only when the outcome is known
    carried_out((action,), known, 1)
    entry = known.table.get(key(1))
    assert entry is not None
    assert (entry.state, entry.location, entry.target_queue) == (FlowState.STEERED, 7, 1)


def test_a_flow_that_rss_got_right_costs_no_rule_and_no_entry() -> None:
    known = memory()
    assert steer.seen(seen(1, app_cpu=3), NIC, RULE, known, 1) == ()
    assert len(known.table) == 0


def test_an_unarmed_nic_is_only_watched() -> None:
    known = memory()
    assert steer.seen(seen(1, 1), replace(NIC, armed=False), RULE, known, 1) == ()
    assert [flow.state for flow in known.table] == [FlowState.OBSERVED]
    (action,) = steer.take_up(NIC, known, 2)
    assert action.kind is ActionKind.INSERT


def test_a_second_move_waits_for_the_hold_down() -> None:
    known = memory()
    steered(known, cpu=1, at_ns=1)
    assert steer.seen(seen(1, 2), NIC, RULE, known, 50) == ()
    assert steer.due({"nic": NIC}, known, 100) == ()
    (action,) = steer.due({"nic": NIC}, known, 101)
    assert (action.kind, action.old, action.new) == (ActionKind.REWRITE, 1, 2)
    assert not known.table.deferred()


def test_a_thread_that_moved_takes_its_flows_along() -> None:
    known = memory()
    for number in (1, 2, 3):
        event = seen(number, 1, off_since_ns=1)
        carried_out(steer.seen(event, NIC, RULE, known, 1), known, 1, location=number)
    event = seen(2, 2, off_since_ns=500)
    plan = steer.seen(event, NIC, RULE, known, 600)
    assert {(action.key, action.new) for action in plan} == {(key(n), 2) for n in (1, 2, 3)}
    carried_out(plan, known, 600)
    late = seen(1, 1, off_since_ns=400)  # of before the thread moved: moves nobody else
    moved = steer.seen(late, NIC, RULE, known, 900)
    assert {action.key for action in moved} == {key(1)}


def test_another_threads_flows_are_not_taken_along() -> None:
    known = memory()
    steered(known, cpu=1)
    other = Thread(tid=200, pid=200, comm="other", cgroup=None)
    (action,) = steer.seen(seen(2, 2, thread=other, off_since_ns=5), NIC, RULE, known, 1000)
    assert action.key == key(2)


def test_a_thread_that_came_back_before_the_hold_down_ended_moves_nothing() -> None:
    known = memory()
    steered(known, cpu=1, at_ns=1)
    steer.seen(seen(1, 2), NIC, RULE, known, 50)
    assert steer.seen(seen(1, 1), NIC, RULE, known, 60) == ()
    assert steer.due({"nic": NIC}, known, 1000) == ()
    assert not known.table.deferred()


@pytest.mark.parametrize("now_on", [1, 3], ids=["it came back", "it went on"])
def test_a_move_that_waits_is_not_done_once_its_thread_has_moved(now_on: int) -> None:
    known = memory()
    steered(known, cpu=1, at_ns=1)
    (late,) = steer.seen(seen(1, 2), NIC, RULE, known, 1000)
    assert audit.outlived(late, known, 1000) is None
    steer.seen(seen(1, now_on), NIC, RULE, known, 1001)
    assert (outcome := audit.outlived(late, known, 1002)) is not None
    assert outcome.superseded
    (again,) = steer.seen(seen(1, 2), NIC, RULE, known, 1003)
    assert audit.outlived(again, known, 1003) is None


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


def test_a_rules_own_dwell_is_waited_for() -> None:
    known = memory()
    slow = replace(RULE, dwell_ns=500)
    assert steer.seen(seen(1, 1, off_since_ns=100), NIC, slow, known, 200) == ()
    assert steer.due({"nic": NIC}, known, 599) == ()
    assert len(steer.due({"nic": NIC}, known, 600)) == 1


def test_a_cpu_without_a_queue_is_said_so() -> None:
    known = memory()
    assert steer.seen(seen(1, app_cpu=9), NIC, RULE, known, 1) == ()
    (entry,) = known.table
    assert entry.state is FlowState.WANTED
    assert "no queue is delivered there" in entry.why


def test_a_full_table_turns_newcomers_away_and_evicts_nobody() -> None:
    known = memory(capacity=1)
    steered(known)
    assert steer.seen(seen(2, 1), NIC, RULE, known, 2) == ()
    assert known.overflow == 1
    assert [flow.key for flow in known.table] == [key(1)]
    (shown,) = known.table.overflowed.values()
    assert shown.state is FlowState.OVERFLOW


def test_a_full_nic_leaves_the_flow_to_rss_and_counts_it_once() -> None:
    known = memory()
    left = "the NIC's filter table is full: delivered by RSS"
    (action,) = steer.seen(seen(1, 1), NIC, RULE, known, 1)
    audit.record(Outcome(action, 1, errno.ENOSPC, None, left), known)
    assert steer.seen(seen(1, 1), NIC, RULE, known, 2) == ()
    (entry,) = known.table
    assert (entry.state, entry.location, entry.why) == (FlowState.OVERFLOW, None, left)
    assert known.overflow == 1


def test_a_nic_that_found_itself_full_is_asked_less_and_less_often() -> None:
    """It does not say how many filters it takes: one more is tried after 10, 20, 40 s."""
    known, asked_s = memory(), list[int]()
    nic = replace(NIC, budget=None, caps=replace(NIC.caps, filter_slots=None))
    now_ns, plan = 0, steer.seen(seen(1, 1), nic, RULE, known, 0)
    while now_ns < 100 * SECOND_NS:
        for action in plan:
            asked_s.append(now_ns // SECOND_NS)
            audit.record(Outcome(action, now_ns, errno.ENOSPC, None, ""), known)
        now_ns += SECOND_NS
        budget.weigh(nic, Topology(()), lambda key: None, known, now_ns)
        plan = steer.retry({"nic": nic}, known, now_ns)
    assert asked_s == [0, 10, 30, 70]


def test_a_flow_that_found_the_nic_full_is_tried_again_when_there_is_room() -> None:
    known = memory()
    small = replace(NIC, budget=1)
    steered(known)
    assert steer.seen(seen(2, 1), small, RULE, known, 1) == ()
    assert steer.retry({"nic": small}, known, 2) == ()
    carried_out(retire.gone(1001, known), known, 3)
    (again,) = steer.retry({"nic": small}, known, 4)
    assert (again.kind, again.key) == (ActionKind.INSERT, key(2))


def test_an_entry_ends_with_its_socket() -> None:
    known = memory()
    steered(known)
    (action,) = retire.gone(1001, known)
    assert (action.kind, action.location) == (ActionKind.DELETE, 7)
    audit.record(Outcome(action, 2, 0, None, ""), known)
    assert len(known.table) == 0


def test_a_policy_that_leaves_a_flow_gives_its_rule_back() -> None:
    known = memory()
    steered(known)
    leave = replace(RULE, placement=Placement.LEAVE)
    (action,) = steer.seen(seen(1, 2), NIC, leave, known, 2)
    assert action.kind is ActionKind.DELETE


def test_a_filter_that_somebody_changed_is_left_alone_until_armed_again() -> None:
    known = memory()
    steered(known)
    foreign = [Filter(7, Match.of(key(1)), queue=2)]
    (manual,) = audit.check_filters(NIC, foreign, known, 2)
    assert manual.state is FlowState.MANUAL
    assert "queue 2" in manual.why
    assert steer.seen(seen(1, 2), NIC, RULE, known, 10_000) == ()
    assert steer.take_up(NIC, known, 10_000) == ()
    assert len(steer.take_up(NIC, known, 10_000, manual=True)) == 1


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


def test_an_idle_flow_ages_out_and_a_used_one_does_not() -> None:
    known = memory()
    steered(known)
    use = SocketUse(1001, key(1), 1, 101, 1, 5)
    views = {"nic": NIC}
    assert audit.check_sockets([use], views, known, T_DELETE_NS) == ()  # bytes changed: used
    assert audit.check_sockets([use], views, known, 2 * T_DELETE_NS) == ()
    (action,) = audit.check_sockets([use], views, known, 2 * T_DELETE_NS + 1)
    assert action.kind is ActionKind.DELETE
    assert "idle" in action.why


def test_a_dual_stack_socket_ends_both_its_flows() -> None:
    known = memory()
    for number in (1, 2):
        event = seen(number, 1, cookie=5)
        carried_out(steer.seen(event, NIC, RULE, known, 1), known, 1, location=number)
    assert {action.key for action in retire.gone(5, known)} == {key(1), key(2)}


@given(st.lists(st.tuples(st.sampled_from(ActionKind), st.integers(0, 3)), max_size=30))
def test_a_schedule_has_one_operation_a_flow_and_frees_slots_first(
    wanted: list[tuple[ActionKind, int]],
) -> None:
    plan = [Action(kind, "nic", key(n), None, None, None, "", "") for kind, n in wanted]
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


def test_an_adopted_filter_keeps_its_place_until_its_thread_has_stayed_somewhere() -> None:
    """A daemon that has just begun knows of no thread that it stays."""
    known, match = memory(), Match.of(key(1))
    use = SocketUse(1001, key(1), None, None, None, 0)
    audit.adopt(NIC, [Filter(7, match, 1)], {match: use}, known, 0)
    wanders = seen(1, app_cpu=2, home=Distance.MACHINE, pinned=False)
    for at_ns in (1, SECOND_NS):
        assert steer.seen(wanders, NIC, RULE, known, at_ns) == ()
        assert steer.take_up(NIC, known, at_ns) == ()
    settled = wanders._replace(home=Distance.CPU)
    (action,) = steer.seen(settled, NIC, RULE, known, 2 * SECOND_NS)
    assert (action.kind, action.new) == (ActionKind.REWRITE, 2)
    carried_out((action,), known, 2 * SECOND_NS)
    (action,) = steer.seen(wanders, NIC, RULE, known, 3 * SECOND_NS)
    assert (action.kind, action.why) == (
        ActionKind.DELETE,
        "its thread wanders: left to RSS",
    )


@pytest.mark.parametrize("delete_is", ["waiting", "put off", "refused"])
def test_a_filter_that_is_to_go_follows_its_thread_once_that_settles(delete_is: str) -> None:
    known = memory()
    settled = seen(1, 1, home=Distance.CPU, pinned=False)
    carried_out(steer.seen(settled, NIC, RULE, known, 1), known, 1)
    wanders = settled._replace(app_cpu=2, home=Distance.MACHINE)
    (delete,) = steer.seen(wanders, NIC, RULE, known, SECOND_NS)
    if delete_is == "refused":
        audit.record(Outcome(delete, SECOND_NS, errno.EIO, delete.location, ""), known)
    elif delete_is == "put off":
        move = Move("none", "deferred", Code.SEVERAL_TARGETS(), 0, 0)
        audit.moved(key(1), move, known, SECOND_NS, deferred=True)
    (action,) = steer.seen(settled._replace(app_cpu=2), NIC, RULE, known, 10 * SECOND_NS)
    assert (action.kind, action.new) == (ActionKind.REWRITE, 2)
    assert known.table.due_ns(key(1)) is None
    assert (late := audit.outlived(delete, known, 10 * SECOND_NS)) is not None
    assert late.superseded
