# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy, in values: what is left alone goes, the rest takes its terms, none is evicted."""

from __future__ import annotations

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
    FlowState,
    InterfaceRule,
    Outcome,
    Plan,
    Policy,
)
from tests.values import RULE, flow, memory_of

__all__: list[str] = []

NAMES = ["rest", "bulk", "other"]
STATES = [FlowState.STEERED, FlowState.WANTED, FlowState.OVERFLOW, FlowState.MANUAL]
ANYWHERE = InterfaceRule("*", "test:1", True, None, 0)


def policy(table_max: int = 100) -> Policy:
    rules = tuple(replace(RULE, name=each) for each in NAMES)
    return Policy((ANYWHERE,), rules, "auto", table_max, 0, ("test",))


def remembering(*flows: Flow) -> Memory:
    memory = memory_of(FlowTable(100), RulesInForce.of(policy()))
    for each in flows:
        memory.table.put(each)
    return memory


def steered(number: int, rule_name: str = "rest") -> Flow:
    """On queue 1, where its thread runs."""
    known = flow(number, state=FlowState.STEERED, location=number, rule_name=rule_name)
    return known._replace(app_cpu=1, target_queue=1, target_cpu=1)


def settle(plan: Plan, memory: Memory) -> None:
    for action in plan:
        audit.record(Outcome(action, 5, 0, action.location, ""), memory)


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
        return steered(number, name)
    return flow(number, state=state, rule_name=name, app_cpu=draw(st.integers(0, 5)))


tables = st.lists(known_flows(), max_size=30, unique_by=lambda each: each.key)
judged = st.sampled_from([None, *NAMES])


@given(tables, st.data())
def test_each_flow_is_as_if_this_had_been_the_policy_all_along(
    flows: list[Flow], data: st.DataObject
) -> None:
    memory = remembering(*flows)
    names = {each.key: data.draw(judged) for each in flows}
    plan = renew(policy(3), lambda flow: names[flow.key], memory, resting)
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
    assert renew(policy(), lambda flow: None, memory, under_way) == ()
    assert len(memory.table) == 1
    memory.table.put(steered(1))  # it is
    (action,) = leave(memory, resting)
    assert (action.kind, action.location) == (ActionKind.DELETE, 1)


def test_the_delete_of_a_closed_sockets_filter_is_not_revoked() -> None:
    memory = remembering(steered(1))
    renew(policy(), lambda flow: None, memory, resting)
    (delete,) = retire.gone(steered(1).cookie, memory)
    assert renew(policy(), lambda flow: "bulk", memory, under_way) == ()
    settle((delete,), memory)
    assert len(memory.table) == 0
