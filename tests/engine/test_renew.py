# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy, in values: what is left alone goes, the rest takes its terms, none is evicted.
And another socket: the rule of a flow that is gone is the newcomer's that has its 5-tuple."""

from __future__ import annotations

import errno
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.handshake import birth
from atfnd.engine.placement import steer
from atfnd.engine.placement.renew import leave, renew
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import ActionKind, Flow, FlowKey, FlowState, InterfaceRule, Outcome, Plan, Policy
from atfnd.move import device as machine
from atfnd.move.command import Ended, Write
from atfnd.move.device import NicMoves
from atfnd.move.event import FlowClosed, TimerDue, Wanted, Written
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from tests.engine.test_birth import STRICT, syn
from tests.engine.test_birth import memory as strict_memory
from tests.move.test_move_mover import LIKELY
from tests.values import NIC, RULE, flow, key, memory_of, seen

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


def test_a_rewrite_whose_rule_was_lost_before_its_turn_is_not_written() -> None:
    memory = remembering(steered(1))
    renew(policy(), lambda flow: None, memory, resting)
    [kept] = renew(policy(), lambda flow: "rest", memory, under_way)
    memory.table.put(steered(1)._replace(location=None, target_queue=None))
    late = audit.outlived(kept, memory, 6)
    assert late is not None
    assert (late.errno, late.location) == (errno.ENOENT, None)
    audit.record(late, memory)
    assert memory.table.take_due(10**12) == [key(1)]  # it gets a rule of its own


def test_the_delete_of_a_closed_sockets_filter_is_not_revoked() -> None:
    memory = remembering(steered(1))
    renew(policy(), lambda flow: None, memory, resting)
    (delete,) = retire.gone(steered(1).cookie, memory)
    assert renew(policy(), lambda flow: "bulk", memory, under_way) == ()
    settle((delete,), memory)
    assert len(memory.table) == 0


# The rule of a flow that is gone is the newcomer's that has its 5-tuple: table and move.

STEERED = flow(1, state=FlowState.STEERED, location=7, target_queue=2, app_cpu=2)
NEW = 5000  # the first newcomer's cookie


@given(
    st.lists(st.sampled_from(["close", "connect", "accept", "use", "wait"]), max_size=30),
    st.booleans(),
)
def test_no_living_sockets_rule_is_ever_deleted(steps: list[str], reported_at_once: bool) -> None:
    """The kernel here is a fake: which socket lives. Ends of sockets are reported late, or at
    once."""
    known, moves, now_ns = strict_memory(), NicMoves(LIKELY, Times()), 10**9
    known.table.put(STEERED)
    cookie_now: int | None = STEERED.cookie
    unreported: list[int] = []
    cookies = iter(range(NEW, NEW + 99))

    def want(cookie: int) -> None:
        nonlocal moves
        for action in retire.gone(cookie, known):
            for event in (FlowClosed(key(1)), Wanted(action, Mode.STRICT, live=False)):
                moves, commands = machine.step(moves, event, now_ns)
                assert not any(isinstance(each, Write) for each in commands)

    for step in [*steps, "wait", "wait"]:
        if step == "close" and cookie_now is not None:
            unreported, cookie_now = [*unreported, cookie_now], None
        elif step == "connect" and cookie_now is None:
            cookie_now = next(cookies)
            again_ = syn(1, 2)._replace(cookie=cookie_now)
            birth.again(again_, NIC, STRICT, known, now_ns)
        elif step == "accept" and cookie_now is None:
            cookie_now = next(cookies)  # told by nobody
        elif step == "use" and cookie_now is not None:
            steer.seen(seen(1, 2, cookie=cookie_now), NIC, STRICT, known, now_ns)
        if reported_at_once or step == "wait":
            for cookie in unreported:
                want(cookie)
            unreported = []
        if step == "wait":
            now_ns += Times().quiet_ns
            moves, commands = machine.step(moves, TimerDue(), now_ns)
            for write in commands:
                if not isinstance(write, Write):
                    continue
                kept = cookie_now is not None and (
                    audit.inherit(NIC, write.action, cookie_now, known, now_ns) is not None
                )
                assert kept == (cookie_now is not None)
                code = errno.ECANCELED if kept else 0
                outcome = Outcome(write.action, now_ns, code, 7, "")
                audit.record(outcome, known)
                moves, ends = machine.step(moves, Written(outcome, now_ns, now_ns), now_ns)
                [ended] = (each for each in ends if isinstance(each, Ended))
                assert ended.verdict is (Verdict.DEFERRED if kept else Verdict.DONE)
                if not kept:
                    return
    entry = known.table.get(key(1))
    assert entry is not None
    assert (entry.location, not moves.live) == (7, True)
