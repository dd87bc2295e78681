# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy, in values: what is left alone goes, the rest takes its terms, none is evicted."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.ownership.owner import Lent
from atfnd.engine.placement import steer
from atfnd.engine.placement.renew import leave, renew
from atfnd.engine.prepare import homes
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    ActionKind,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    InterfaceRule,
    Mode,
    Outcome,
    Placement,
    Plan,
    Policy,
)
from tests.engine.test_birth import owning
from tests.serve.published import topology
from tests.values import NIC, RULE, THREAD, flow, memory_of

__all__: list[str] = []

NAMES = ["rest", "bulk", "other"]
STATES = [FlowState.STEERED, FlowState.WANTED, FlowState.OVERFLOW, FlowState.MANUAL]
SECOND_NS = 1_000_000_000
ANYWHERE = InterfaceRule("*", "test:1", True, None, 0)


def policy(*rules: FlowRule, table_max: int = 100, hold_down_ns: int = 0) -> Policy:
    return Policy((ANYWHERE,), rules, "auto", table_max, hold_down_ns, ("test",))


def rule(name: str, order: Mode = Mode.IMMEDIATE) -> FlowRule:
    return replace(RULE, name=name, order=order)


ALL = policy(*map(rule, NAMES))


def remembering(*flows: Flow, terms: Policy = ALL) -> Memory:
    memory = memory_of(FlowTable(terms.table_max), RulesInForce.of(terms))
    for each in flows:
        memory.table.put(each)
    return memory


def steered(number: int, **changes: object) -> Flow:
    """On queue 1, where its thread runs."""
    place = {"state": FlowState.STEERED, "app_cpu": 1, "target_queue": 1, "target_cpu": 1}
    return flow(number, **{"location": number, **place, **changes})


def settle(plan: Plan, memory: Memory, code: int = 0) -> None:
    for action in plan:
        location = action.location if action.location is not None else 1000
        audit.record(Outcome(action, 5, code, location, "refused" * bool(code)), memory)


def named(names: Mapping[FlowKey, str | None]) -> Callable[[Flow], str | None]:
    return lambda flow: names[flow.key]


def resting(key: FlowKey) -> bool:
    del key
    return False


def under_way(key: FlowKey) -> bool:
    del key
    return True


@st.composite
def known_flows(draw: st.DrawFn) -> Flow:
    number, state = draw(st.integers(1, 60)), draw(st.sampled_from(STATES))
    name = draw(st.sampled_from(NAMES))
    if state is FlowState.STEERED:
        return steered(number, rule_name=name)
    return flow(number, state=state, rule_name=name, app_cpu=draw(st.integers(0, 5)))


tables = st.lists(known_flows(), max_size=30, unique_by=lambda each: each.key)
judged = st.sampled_from([None, *NAMES])


@given(tables, st.data())
def test_each_flow_is_as_if_this_had_been_the_policy_all_along(
    flows: list[Flow], data: st.DataObject
) -> None:
    memory = remembering(*flows)
    names = {each.key: data.draw(judged) for each in flows}
    plan = renew(policy(*map(rule, NAMES), table_max=3), named(names), memory, resting)
    assert {action.kind for action in plan} <= {ActionKind.DELETE}
    settle(plan, memory)
    kept = {each.key: names[each.key] for each in flows if names[each.key] is not None}
    assert {each.key: each.rule_name for each in memory.table} == kept
    assert leave(memory, resting) == ()
    assert (len(memory.table.leaving()), memory.table.capacity) == (0, 3)
    for each in flows:
        if each.key in kept:  # nothing but its terms has changed
            now = memory.table.get(each.key)
            assert now == each._replace(rule_name=kept[each.key] or "")


@given(tables, st.data())
def test_the_same_policy_once_more_changes_nothing(flows: list[Flow], data: st.DataObject) -> None:
    memory = remembering(*flows)
    names = {each.key: data.draw(judged) for each in flows}
    settle(renew(ALL, named(names), memory, resting), memory)
    before = list(memory.table)
    assert renew(ALL, named(names), memory, resting) == ()
    assert list(memory.table) == before


@given(st.lists(st.sets(st.sampled_from(range(1, 9))), max_size=8))
def test_any_number_of_policies_end_as_the_last_one_alone(policies: list[set[int]]) -> None:
    """Each names the flows that it steers; a flow that comes back is observed anew."""
    every = [steered(number) for number in range(1, 9)]
    memory = remembering(*every)
    for steers in policies:
        names = {each.key: "rest" if n in steers else None for n, each in enumerate(every, 1)}
        settle(renew(ALL, named(names), memory, resting), memory)
        for n in steers:
            if memory.table.get(every[n - 1].key) is None:
                memory.table.put(every[n - 1])
    wanted = policies[-1] if policies else set(range(1, 9))
    assert {each.location for each in memory.table} == wanted


def test_a_rule_that_cannot_go_yet_is_asked_for_again_and_nothing_else_moves_it() -> None:
    there = steered(1)
    memory = remembering(there)
    plan = renew(ALL, lambda flow: None, memory, resting)
    settle(plan, memory, errno.EBUSY)
    memory.table.put(there._replace(app_cpu=2))  # its thread has moved
    assert steer.take_up(NIC, memory, 10, manual=True) == ()
    assert leave(memory, under_way) == ()
    again = leave(memory, resting)
    assert [action.kind for action in again] == [ActionKind.DELETE]
    settle(again, memory)
    assert len(memory.table) == 0
    assert leave(memory, resting) == ()
    assert not memory.table.leaving()


def test_a_move_that_is_under_way_comes_to_its_end_first() -> None:
    memory = remembering(flow(1))  # an insert is being written
    assert renew(ALL, lambda flow: None, memory, under_way) == ()
    assert len(memory.table) == 1
    memory.table.put(steered(1))  # it is
    (action,) = leave(memory, resting)
    assert (action.kind, action.location) == (ActionKind.DELETE, 1)


def test_what_leaves_goes_in_the_order_it_was_steered_with() -> None:
    strict, bounded = rule("rest", Mode.STRICT), rule("bulk", Mode.BOUNDED)
    memory = remembering(steered(1), steered(2, rule_name="bulk"), terms=policy(strict, bounded))
    left_alone = replace(RULE, name="bulk", placement=Placement.LEAVE)
    at_once = policy(left_alone, rule("everything"))
    plan = renew(at_once, lambda flow: None, memory, resting)
    orders = {action.rule_name: memory.in_force.order(action.rule_name) for action in plan}
    assert orders == {"rest": Mode.STRICT, "bulk": Mode.BOUNDED}
    assert {each.order for each in memory.in_force.steering()} == {Mode.IMMEDIATE}


def test_a_closed_socket_and_its_successor_are_told_apart() -> None:
    memory = remembering(steered(1))
    renew(ALL, lambda flow: None, memory, resting)
    memory.table.put(steered(1, cookie=77))  # the same addresses, and wanted
    assert leave(memory, resting) == ()
    assert len(memory.table) == 1


def test_flows_that_were_turned_away_are_judged_too() -> None:
    memory = remembering()
    for number in (1, 2):
        memory.turn_away(flow(number, state=FlowState.OVERFLOW))
    names = {flow(1).key: "other", flow(2).key: None}
    assert renew(ALL, named(names), memory, resting) == ()
    assert [each.rule_name for each in memory.table.overflowed.values()] == ["other"]


def test_a_flow_of_another_rule_is_placed_by_its_terms() -> None:
    moved_ns = 1_000_000
    memory = remembering(steered(1, app_cpu=2, moved_ns=moved_ns), terms=ALL)
    renew(policy(rule("bulk"), hold_down_ns=500), lambda flow: "bulk", memory, resting)
    assert steer.take_up(NIC, memory, moved_ns + 499) == ()
    (action,) = steer.take_up(NIC, memory, moved_ns + 500)
    assert (action.kind, action.new, action.rule_name) == (ActionKind.REWRITE, 2, "bulk")


def test_queues_go_home_when_nobody_owns_them_any_more() -> None:
    followed = tuple(replace(queue, cpu=4 + queue.index) for queue in NIC.queues)
    settings = {f"queue-cpu:{queue.index}": str(queue.cpu) for queue in followed}
    nic = replace(NIC, queues=followed, settings=settings, manual=frozenset({"queue-cpu:3"}))
    undo_journal = {
        "queue-cpu:0": "0",
        "queue-cpu:1": "5",
        "queue-cpu:2": "0-7",
        "queue-cpu:3": "3",
    }
    strict = policy(rule("rest", Mode.STRICT))
    memory = remembering(steered(1), terms=strict)
    memory.nics["nic"].owned = owning(dict.fromkeys(range(4), THREAD))
    online = frozenset(cpu.index for cpu in topology().cpus)
    memory.nics["nic"].lent = Lent(homes=homes(nic, undo_journal, topology()))
    assert memory.nics["nic"].lent.homes == {0: 0, 1: 5, 2: 2, 3: 7}
    renew(strict, lambda flow: "rest", memory, resting)
    assert memory.nics["nic"].owned
    renew(ALL, lambda flow: "rest", memory, resting)
    assert memory.nics["nic"].owned == {}
    assert memory.next_due_ns() == SECOND_NS
    assert steer.own(nic, online, memory, 11 * SECOND_NS) == ()
    plan = steer.own(nic, online, memory, 13 * SECOND_NS)
    assert [(each.queue, each.old, each.new) for each in plan] == [(0, 4, 0), (2, 6, 2)]


def test_the_home_of_a_queue_that_was_loose_is_where_arming_put_it() -> None:
    settings = {f"queue-cpu:{queue.index}": str(queue.cpu) for queue in NIC.queues}
    nic = replace(NIC, settings=settings)
    assert homes(nic, {"queue-cpu:2": "0-7"}, topology(), frozenset({7}))[2] == 7
    memory = remembering(terms=ALL)
    memory.in_force = replace(memory.in_force, dedicated=frozenset({7}))
    memory.nics["nic"].lent = Lent(homes={0: 0, 1: 1, 2: 7, 3: 3})
    online = frozenset(range(8))
    assert steer.own(nic, online, memory, SECOND_NS) == ()
    [home] = steer.own(nic, online, memory, 3 * SECOND_NS)
    assert (home.queue, home.new) == (2, 7)


def test_a_rule_is_not_brought_back_when_its_delete_came_first() -> None:
    memory = remembering(steered(1))
    key = flow(1).key
    delete = renew(ALL, named({key: None}), memory, lambda _: False)
    assert [action.kind for action in delete] == [ActionKind.DELETE]
    kept = renew(ALL, named({key: "rest"}), memory, lambda _: True)
    assert [action.kind for action in kept] == [ActionKind.REWRITE]
    assert audit.outlived(kept[0], memory, 5) is None
    settle(delete, memory)
    late = audit.outlived(kept[0], memory, 6)
    assert late is not None
    assert late.superseded
    again = steered(1)._replace(state=FlowState.WANTED, location=None, target_queue=None)
    memory.table.put(again)  # seen again meanwhile, and decided anew
    assert audit.outlived(kept[0], memory, 6) == late
    audit.record(late, memory)
    assert memory.table.get(key) == again


def test_a_rewrite_whose_rule_was_lost_before_its_turn_is_not_written() -> None:
    memory = remembering(steered(1))
    key = flow(1).key
    renew(ALL, named({key: None}), memory, lambda _: False)
    kept = renew(ALL, named({key: "rest"}), memory, lambda _: True)
    memory.table.put(steered(1)._replace(location=None, target_queue=None))
    late = audit.outlived(kept[0], memory, 6)
    assert late is not None
    assert (late.errno, late.location) == (errno.ENOENT, None)
    audit.record(late, memory)
    assert memory.table.take_due(10**12) == [key]  # it gets a rule of its own


def test_the_delete_of_a_closed_sockets_filter_is_not_revoked() -> None:
    memory = remembering(steered(1))
    renew(ALL, lambda flow: None, memory, resting)
    (delete,) = retire.gone(steered(1).cookie, memory)
    assert renew(ALL, lambda flow: "bulk", memory, under_way) == ()
    settle((delete,), memory)
    assert len(memory.table) == 0
