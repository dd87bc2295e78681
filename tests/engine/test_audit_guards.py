# SPDX-License-Identifier: GPL-2.0-or-later
"""What an outcome, a list of rules and an earlier run's rules do to the table, each case by
itself."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine import audit
from atfnd.engine.table.flow_table import FlowTable, t_delete_in_force_ns
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    Filter,
    Flow,
    FlowState,
    Match,
    Move,
    Outcome,
    SocketUse,
)
from atfnd.model.reason import Code
from tests.values import NIC, flow, key, memory_of, one_rule

__all__: list[str] = []

NOW_NS = 10**11
RULE = Filter(7, Match.of(key(1)), 1)
USE = SocketUse(1001, key(1), 1, 101, 1, 0)


def memory(*flows: Flow, capacity: int = 100) -> Memory:
    known = memory_of(FlowTable(capacity), one_rule(100, 10**9))
    for each in flows:
        known.table.put(each)
    return known


def steered(**changes: Any) -> Flow:
    """Flow 1, by the rule at location 7 to queue 1."""
    ruled = flow(1, state=FlowState.STEERED, location=7, target_queue=1, target_cpu=1, app_cpu=1)
    return ruled._replace(moved_ns=1, used_ns=NOW_NS, **changes)


def action(kind: ActionKind, location: int | None = 7) -> Action:
    return Action(kind, "nic", key(1), location, None, 2, "decided", "rest")


def entry(known: Memory) -> Flow | None:
    return known.table.get(key(1))


@pytest.mark.parametrize(
    ("code", "location", "queue", "gone"),
    [
        (0, 9, None, (9, 2)),
        (errno.EEXIST, 9, 3, (9, 3)),  # it was there, and points to queue 3
        (errno.EEXIST, None, None, None),
        (errno.ENOSPC, None, None, None),
    ],
)
def test_a_rule_that_is_there_and_has_no_flow_any_more_is_deleted(
    code: int, location: int | None, queue: int | None, gone: tuple[int, int] | None
) -> None:
    outcome = Outcome(action(ActionKind.INSERT, None), NOW_NS, code, location, "", queue)
    delete = audit.record(outcome, memory())
    assert (delete and (delete.location, delete.old)) == gone
    assert delete is None or (delete.kind, delete.new) == (ActionKind.DELETE, None)
    other = Outcome(action(ActionKind.REWRITE), NOW_NS, code, location, "", queue)
    assert audit.record(other, memory()) is None


@pytest.mark.parametrize("code", [0, errno.ENOENT])
def test_an_entry_ends_with_its_rule_whoever_deleted_that(code: int) -> None:
    known = memory(steered())
    audit.record(Outcome(action(ActionKind.DELETE), NOW_NS, code, None, ""), known)
    assert entry(known) is None


def test_an_entry_whose_rule_could_not_be_deleted_stays_and_says_why() -> None:
    known = memory(steered())
    audit.record(Outcome(action(ActionKind.DELETE), NOW_NS, errno.EIO, 7, "it refused"), known)
    assert entry(known) == steered(why="it refused")


def test_what_a_write_leaves_in_the_entry() -> None:
    known = memory(steered())
    audit.record(Outcome(action(ActionKind.REWRITE), NOW_NS, 0, 8, ""), known)
    found = entry(known)
    assert found is not None
    assert (found.state, found.location, found.target_queue) == (FlowState.STEERED, 8, 2)
    assert (found.moved_ns, found.why) == (NOW_NS, "decided")


@pytest.mark.parametrize(
    ("code", "state", "turned_away"),
    [(errno.ENOSPC, FlowState.OVERFLOW, 1), (errno.EIO, FlowState.WANTED, 0)],
)
def test_a_refused_insert_waits_for_room_or_is_wanted(
    code: int, state: FlowState, turned_away: int
) -> None:
    known = memory(flow(1))
    audit.record(Outcome(action(ActionKind.INSERT, None), NOW_NS, code, None, "refused"), known)
    found = entry(known)
    assert found is not None
    assert (found.state, found.why, known.overflow) == (state, "refused", turned_away)


def test_a_refused_rewrite_that_lost_the_rule_is_wanted_and_tried_again() -> None:
    known = memory(steered())
    outcome = Outcome(action(ActionKind.REWRITE), NOW_NS, errno.EIO, None, "refused, and lost")
    audit.record(outcome, known)
    found = entry(known)
    assert found is not None
    assert (found.state, found.location, found.target_queue) == (FlowState.WANTED, None, None)
    assert known.table.deferred() == {key(1): NOW_NS + 100}


def test_a_rewrite_that_lost_nothing_leaves_the_entry_as_it_was() -> None:
    known = memory(steered())
    audit.record(Outcome(action(ActionKind.REWRITE), NOW_NS, errno.EIO, 7, "refused"), known)
    assert (entry(known), known.table.deferred()) == (steered(why="refused"), {})


@pytest.mark.parametrize(
    ("rule", "state", "why"),
    [
        (RULE, FlowState.STEERED, ""),
        (None, FlowState.MANUAL, "another program removed its filter at location 7"),
        (RULE._replace(match=Match.of(key(2))), FlowState.MANUAL,
         "another program removed its filter at location 7"),
        (RULE._replace(queue=3), FlowState.MANUAL, "another program pointed its filter to queue 3"),
    ],
)  # fmt: skip
def test_a_rule_of_ours_is_the_one_at_its_location_with_its_match_and_queue(
    rule: Filter | None, state: FlowState, why: str
) -> None:
    known = memory(steered())
    changed = audit.check_filters(NIC, [rule] if rule else [], known, NOW_NS)
    assert [each.key for each in changed] == ([key(1)] if why else [])
    found = entry(known)
    assert found is not None
    assert (found.state, found.why) == (state, why)


def test_an_earlier_runs_rule_is_taken_over_with_its_socket() -> None:
    known = memory()
    [flow_of], plan = audit.adopt(NIC, [RULE], {Match.of(key(1)): USE}, known, NOW_NS)
    assert (flow_of.location, flow_of.target_queue, flow_of.app_cpu) == (7, 1, 1)
    assert (plan, entry(known)) == ((), flow_of)


def test_an_earlier_runs_rule_stays_on_a_queue_whose_cpu_went_offline() -> None:
    """The kernel lets that queue run on several."""
    known = memory()
    known.cpus = {n: Cpu(n, n != 1, 0, 0, n, (n,), (n,)) for n in (1, 2, 3)}
    nic = replace(NIC, queues=tuple(replace(each, cpu=None) for each in NIC.queues))
    [flow_of], plan = audit.adopt(nic, [RULE], {Match.of(key(1)): USE}, known, NOW_NS)
    assert plan == ()
    assert (flow_of.location, flow_of.target_queue, flow_of.target_cpu) == (7, 1, None)
    assert flow_of.app_cpu == 2


@pytest.mark.parametrize("why", ["no socket", "no queue", "no room"])
def test_an_earlier_runs_rule_that_cannot_be_kept_is_deleted(why: str) -> None:
    known = memory(*(flow(number) for number in range(5, 5 + 3)), capacity=3 + (why != "no room"))
    sockets = {} if why == "no socket" else {Match.of(key(1)): USE}
    rule = RULE._replace(queue=9) if why == "no queue" else RULE
    adopted, [delete] = audit.adopt(NIC, [rule], sockets, known, NOW_NS)
    assert adopted == []
    assert (delete.kind, delete.location, delete.old, delete.live) == (
        ActionKind.DELETE, 7, rule.queue, False,
    )  # fmt: skip
    assert entry(known) is None


def test_a_move_that_was_put_off_leaves_a_flow_without_a_rule_without_a_queue() -> None:
    move = Move("none", "deferred", Code.KERNEL("its queue is held"), 0, 0)
    for before, target, why in (
        (flow(1, target_queue=2), None, "not moved yet: its queue is held"),
        (
            steered(why="as it was"),
            1,
            "its filter still leads it to queue 1; not moved yet: its queue is held",
        ),
    ):
        known = memory(before)
        assert audit.moved(key(1), move, known, NOW_NS, deferred=True)
        found = entry(known)
        assert found is not None
        assert (found.target_queue, found.why, found.move) == (target, why, move)
        assert not audit.moved(key(1), move, known, NOW_NS, deferred=True)  # no news


def test_a_flow_that_is_led_elsewhere_than_decided_meanwhile_is_looked_at_again() -> None:
    done = Outcome(action(ActionKind.REWRITE), NOW_NS, 0, 7, "")
    for target_cpu, deferred in ((1, {}), (2, {key(1): NOW_NS + 100})):
        known = memory(steered()._replace(target_cpu=target_cpu))
        audit.overtaken(done, NIC, known)
        assert known.table.deferred() == deferred


def test_a_rewrite_of_a_rule_that_is_gone_is_not_carried_out() -> None:
    rewrite = action(ActionKind.REWRITE)
    assert audit.outlived(rewrite, memory(steered()), NOW_NS) is None
    for known in (memory(flow(1)), memory()):
        outcome = audit.outlived(rewrite, known, NOW_NS)
        assert outcome is not None
        assert (outcome.errno, outcome.location) == (errno.ENOENT, None)


def test_a_setting_that_another_program_changed_while_the_write_waited_is_not_written() -> None:
    known = memory(steered())
    late = Action.of_setting("nic", "gro-flush-timeout:2", "0", "asked for")
    follow = Action(ActionKind.QUEUE_CPU, "nic", None, None, 0, 1, "its owner", "rest", 2)
    changed = {late: "gro-flush-timeout:2", follow: "queue-cpu:2"}
    for waits, setting in changed.items():
        for manual in (frozenset[str](), frozenset({setting})):
            known.nics["nic"].view = replace(known.nics["nic"].view, manual=manual)
            outcome = audit.outlived(waits, known, NOW_NS)
            assert (outcome is not None) == bool(manual)
            assert outcome is None or outcome.errno == errno.ESTALE


def test_an_idle_entry_ends_but_not_one_that_is_left_alone() -> None:
    use = USE._replace(bytes=0)
    for state, used_ns, ends in (
        (FlowState.WANTED, NOW_NS - 10**9, False),
        (FlowState.WANTED, NOW_NS - 10**9 - 1, True),
        (FlowState.MANUAL, NOW_NS - 10**10, False),
    ):
        known = memory(flow(1, state=state, used_ns=used_ns))
        audit.check_sockets([use], {"nic": NIC}, known, NOW_NS)
        assert (entry(known) is None) is ends


def test_an_idle_filter_that_cannot_go_in_order_is_not_asked_for_at_each_look() -> None:
    known = memory(steered()._replace(used_ns=NOW_NS - 10**10))
    use = USE._replace(bytes=0)

    def asked(now_ns: int) -> bool:
        return bool(audit.check_sockets([use], {"nic": NIC}, known, now_ns))

    assert asked(NOW_NS)
    found = entry(known)
    assert found is not None
    known.put_off(found, Code.KERNEL("no hold"), NOW_NS, barred=False)
    due_ns = known.table.due_ns(key(1))
    assert due_ns is not None
    assert not asked(due_ns - 1)
    assert asked(due_ns)


def test_a_full_table_forgets_only_as_many_idle_flows_as_make_it_less_full() -> None:
    """T_delete grows as the table empties: one audit does not forget them all."""
    idle = [flow(n, used_ns=NOW_NS - 5 * 10**8) for n in range(100)]
    uses = [SocketUse(1000 + n, key(n), 1, 101, 1, 0) for n in range(100)]
    known = memory(*idle)
    audit.check_sockets(uses, {"nic": NIC}, known, NOW_NS)
    left = len(known.table)
    rests_ns = [t_delete_in_force_ns(10**9, count, 100) for count in (left, left + 1)]
    assert rests_ns[1] < 5 * 10**8 <= rests_ns[0]
    half_dead = memory(*idle)
    audit.check_sockets(uses[:50], {"nic": NIC}, half_dead, NOW_NS)
    assert len(half_dead.table) == 50  # with those it was full enough


def test_the_socket_that_has_a_flows_addresses_now_does_not_keep_an_earlier_ones_alive() -> None:
    known = memory(flow(1, used_ns=NOW_NS))
    audit.check_sockets([USE._replace(cookie=5)], {"nic": NIC}, known, NOW_NS)
    assert entry(known) is None


def test_a_rule_that_was_in_the_list_and_is_not_was_removed_by_somebody() -> None:
    later = replace(NIC, caps=replace(NIC.caps, asynchronous=True))
    for was_listed, state in ((True, FlowState.MANUAL), (False, FlowState.WANTED)):
        known = memory(steered())
        if was_listed:
            known.nics["nic"].listed_ns = NOW_NS - 1
        [changed] = audit.check_filters(later, [], known, NOW_NS)
        assert changed.state is state
