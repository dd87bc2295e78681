# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions that hold a flow back: an operator's change, another's entry, what is not due."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import Flow, FlowKey, FlowState, Match, Outcome, Plan, SocketUse
from tests.values import NIC, RULE, flow, key, memory_of, one_rule, seen

__all__: list[str] = []

HOLD_NS, T_DELETE_NS = 100, 10_000


def memory() -> Memory:
    return memory_of(FlowTable(100), one_rule(HOLD_NS, T_DELETE_NS))


def carried_out(plan: Plan, known: Memory, at_ns: int) -> None:
    for action in plan:
        audit.record(Outcome(action, at_ns, 0, action.location or 7, ""), known)


def entry(known: Memory, number: int = 1) -> Flow:
    found = known.table.get(key(number))
    assert found is not None
    return found


def leave_alone(known: Memory) -> str:
    """Flow 1, steered to CPU 1, after somebody removed its rule; says why it is manual."""
    carried_out(steer.seen(seen(1, 1), NIC, RULE, known, 1), known, 1)
    (flow,) = audit.check_filters(NIC, [], known, 2)
    assert flow.state is FlowState.MANUAL
    return str(flow.why)


def test_a_flow_left_alone_stays_so_when_rss_has_it_right() -> None:
    known = memory()
    why = leave_alone(known)
    assert steer.seen(seen(1, app_cpu=2, rx_cpu=2), NIC, RULE, known, 500) == ()
    assert (entry(known).state, str(entry(known).why)) == (FlowState.MANUAL, why)
    assert steer.seen(seen(1, app_cpu=0, rx_cpu=2), NIC, RULE, known, 900) == ()
    assert steer.take_up(NIC, known, 2000, manual=True) != ()


def test_a_flow_left_alone_does_not_age_out_while_its_socket_lives() -> None:
    known = memory()
    leave_alone(known)
    use = SocketUse(1001, key(1), 1, None, None, 1 << 20)
    late = 100 * T_DELETE_NS
    assert audit.check_sockets([use], {"nic": NIC}, known, late) == ()
    assert entry(known).state is FlowState.MANUAL
    assert audit.check_sockets([], {"nic": NIC}, known, late) == ()
    assert known.table.get(key(1)) is None


def test_a_connection_that_took_over_the_addresses_of_an_ended_one_is_followed() -> None:
    known = memory()
    carried_out(steer.seen(seen(1, 1), NIC, RULE, known, 1), known, 1)
    (action,) = steer.seen(seen(1, 2, cookie=2001), NIC, RULE, known, 500)
    assert (action.old, action.new) == (1, 2)
    assert entry(known).cookie == 2001


def test_a_queue_that_moved_away_and_back_leaves_a_flow_its_target() -> None:
    known = memory()
    carried_out(steer.seen(seen(1, 1), NIC, RULE, known, 1), known, 1)
    down = replace(NIC, queues=tuple(replace(q, cpu=None, napi_id=None) for q in NIC.queues))
    steer.seen(seen(1, 1), down, RULE, known, 500)
    assert entry(known).target_cpu is None
    assert steer.take_up(NIC, known, 1000) == ()
    assert (entry(known).target_queue, entry(known).target_cpu) == (1, 1)


ADDRESSES = st.sampled_from([4, 16]).flatmap(
    lambda size: st.tuples(*[st.binary(min_size=size, max_size=size)] * 2)
)


@given(ADDRESSES, st.integers(1, 65535), st.integers(1, 65535))
def test_a_narrowest_match_tells_its_flow(
    addresses: tuple[bytes, bytes], local_port: int, remote_port: int
) -> None:
    local, remote = addresses
    flow = FlowKey(17, local, local_port, remote, remote_port)
    assert Match.of(flow).key() == flow


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=30), st.integers(0, 60))
def test_what_is_due_is_taken_in_time_once(deferrals: list[tuple[int, int]], now_ns: int) -> None:
    known = memory()
    wanted = {}
    for number, at_ns in deferrals:
        known.table.put(flow(number))
        known.table.defer(key(number), at_ns)
        wanted[key(number)] = at_ns
    assert known.next_due_ns() == min(wanted.values(), default=None)
    due = known.table.take_due(now_ns)
    assert sorted(due) == sorted(k for k, at_ns in wanted.items() if at_ns <= now_ns)
    assert [wanted[k] for k in due] == sorted(wanted[k] for k in due)
    assert known.table.take_due(now_ns) == []
    assert known.table.deferred() == {k: at_ns for k, at_ns in wanted.items() if at_ns > now_ns}
