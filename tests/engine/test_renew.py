# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy, in values: what is left alone goes, the rest takes its terms, none is evicted."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.placement.renew import leave, renew
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
    Plan,
    Policy,
)
from tests.values import RULE, flow, memory_of

__all__: list[str] = []

NAMES = ["rest", "bulk", "other"]
STATES = [FlowState.STEERED, FlowState.WANTED, FlowState.OVERFLOW, FlowState.MANUAL]
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


def test_a_move_that_is_under_way_comes_to_its_end_first() -> None:
    memory = remembering(flow(1))  # an insert is being written
    assert renew(ALL, lambda flow: None, memory, under_way) == ()
    assert len(memory.table) == 1
    memory.table.put(steered(1))  # it is
    (action,) = leave(memory, resting)
    assert (action.kind, action.location) == (ActionKind.DELETE, 1)


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
