# SPDX-License-Identifier: GPL-2.0-or-later
"""What is remembered of a flow is in its record, and ends with it: no index knows more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.command import Forget
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    MovesReported,
    NicAttached,
    NicLost,
    RemainsDue,
    Reviewed,
    SocketClosed,
    SocketsAudited,
    Tick,
)
from atfnd.engine.filters.ineffective import ineffective
from atfnd.engine.table.flow_table import FlowNotes, FlowRecord, FlowTable, Hashed, Writing, waits
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    FlowState,
    Outcome,
    Policy,
    Topology,
)
from atfnd.model.reason import Code
from tests.engine.held import held
from tests.values import NIC, RULE, THREAD, flow, key

__all__: list[str] = []

SECOND_NS = 1_000_000_000
PORT = key(0)._replace(remote=bytes(4), remote_port=0)
KEYS = [key(1), key(2), key(3), PORT]
NICS = "nic", "other"


def action(kind: ActionKind, of: FlowKey) -> Action:
    return Action(kind, "nic", of, None, None, 1, Code.UNSAID(), "rest")


def remember_all(table: FlowTable, of: FlowKey, asked: ActionKind) -> None:
    """Everything that can be remembered of a flow."""
    table.note(of, FlowNotes(deferrals=3))
    table.defer(of, SECOND_NS)
    table.ask(action(asked, of))
    table.gives(of, (key(3),))
    table.promise(of, True)
    table.writes(of, Writing.PORT)
    table.leave(of)
    table.hash(of, Hashed(7))
    table.plan(of, True)


FLOWS = st.builds(
    flow,
    st.just(1),
    key=st.sampled_from(KEYS),
    cookie=st.integers(1, 3),
    nic=st.sampled_from(NICS),
    state=st.sampled_from([FlowState.STEERED, FlowState.OVERFLOW, FlowState.PORT]),
    location=st.sampled_from([None, 5]),
    target_queue=st.sampled_from([None, 1, 2]),
    target_cpu=st.sampled_from([None, 1]),
    rx_queue=st.sampled_from([None, 1, 2]),
    rule_name=st.sampled_from(["", "rest"]),
    thread=st.sampled_from([None, THREAD, replace(THREAD, tid=7, uid=5)]),
)
CALLS: st.SearchStrategy[Callable[[FlowTable, FlowKey], None]] = st.sampled_from(
    [
        lambda table, of: table.note(of, FlowNotes(deferrals=1)),
        lambda table, of: table.note(of, FlowNotes()),
        lambda table, of: table.defer(of, SECOND_NS),
        lambda table, of: table.defer(of, None),
        lambda table, of: table.ask(action(ActionKind.INSERT, of)),
        lambda table, of: table.ask(action(ActionKind.REWRITE, of)),
        lambda table, of: table.answered(of),
        lambda table, of: table.gives(of, (None,)),
        lambda table, of: table.gives(of, None),
        lambda table, of: table.promise(of, True),
        lambda table, of: table.promise(of, False),
        lambda table, of: table.writes(of, Writing.CONNECT),
        lambda table, of: table.writes(of, None),
        lambda table, of: table.leave(of),
        lambda table, of: table.close(of, True),
        lambda table, of: table.close(of, False),
        lambda table, of: table.hash(of, Hashed(1)),
        lambda table, of: table.hash(of, Hashed(None)),
        lambda table, of: table.hash(of, None),
        lambda table, of: table.plan(of, True),
        lambda table, of: table.plan(of, False),
        lambda table, of: table.remove(of) if table.get(of) else None,
    ]
)


def _writes(record: FlowRecord | None, why: Writing) -> bool:
    return record is not None and record.pending.writing is why


def indexes_are_those_of_a_whole_reading(table: FlowTable) -> None:
    records = {each.key: (each, table.record(each.key)) for each in table}
    assert table.deferred().keys() == {k for k, (_, r) in records.items() if r and r.due_ns}
    assert table.notes().keys() == {
        k for k, (_, r) in records.items() if r and r.notes != FlowNotes()
    }
    assert {*table.leaving()} == {k for k, (_, r) in records.items() if r and r.pending.leaves}
    for why in Writing:
        assert {*table.writing(why)} == {
            k for k, (_, r) in records.items() if r and r.pending.writing is why
        }
    for nic in NICS:
        here = {k: (f, r) for k, (f, r) in records.items() if r is not None and f.nic == nic}

        def those(which: Callable[..., object], here: Any = here) -> set[FlowKey]:
            return {k for k, (f, r) in here.items() if which(f, r)}

        def keys(flows: Any) -> set[FlowKey]:
            assert len(flows) == len({*flows})
            return {each.key for each in flows}

        assert keys(table.steered(nic)) == those(lambda f, r: f.location is not None)
        assert keys(table.waiting(nic)) == those(lambda f, r: waits(f))
        assert keys(table.led(nic)) == those(lambda f, r: f.state is FlowState.PORT)
        assert keys(table.adopted(nic)) == those(
            lambda f, r: f.location is not None and not f.rule_name
        )
        assert keys(table.aimless(nic)) == those(
            lambda f, r: f.location is None or f.target_cpu is None
        )
        assert keys(table.ports(nic)) == those(lambda f, r: f.key.listens)
        assert {*table.inserting(nic)} == those(
            lambda f, r: r.pending.asked and r.pending.asked.kind is ActionKind.INSERT
        )
        assert {*table.rewriting(nic)} == those(
            lambda f, r: r.pending.asked and r.pending.asked.kind is ActionKind.REWRITE
        )
        assert {*table.swaps(nic)} == those(lambda f, r: r.pending.swap)
        assert {*table.promised(nic)} == those(lambda f, r: r.pending.promised)
        assert {*table.planned(nic)} == those(lambda f, r: r.pending.planned)
        for entry in (None, 1, 7):
            hashed = {*table.hashed(nic).get(entry, ())}
            assert hashed == those(
                lambda f, r, e=entry: r.pending.hashed and r.pending.hashed.entry == e
            )
        ruled = those(lambda f, r: f.location is not None and f.target_queue is not None)
        assert table.filters_in(nic) == len(ruled)
        for queue in (1, 2):
            led_to = {k for k in ruled if here[k][0].target_queue == queue}
            assert keys(table.led_to(nic, queue)) == led_to
            assert table.filters_on(nic, queue) == len(led_to)
        filters = {k for some in table.filters_of(nic).values() for k in some}
        assert filters == those(lambda f, r: f.location is not None)
    astray = {each.key for each in table.astray()}
    for cookie in range(1, 4):
        assert {*table.keys_of(cookie)} == {
            k for k, (f, _) in records.items() if f.cookie == cookie
        }
    stand = Counter((f.nic, f.state, f.rule_name) for f, _ in records.values())
    assert dict(table.standing()) == stand
    assert astray == {
        k
        for k, (f, _) in records.items()
        if f.location is not None and f.state is FlowState.STEERED
        if f.rx_queue not in (None, f.target_queue)
    }


@given(st.lists(st.one_of(FLOWS, st.tuples(CALLS, st.sampled_from(KEYS)))))
def test_every_index_is_that_of_a_whole_reading_and_ends_with_the_last_flow(steps: Any) -> None:
    table = FlowTable(100)
    for step in steps:
        if isinstance(step, Flow):
            table.put(step)
        else:
            step[0](table, step[1])
        indexes_are_those_of_a_whole_reading(table)
    for each in [*table]:
        table.remove(each.key)
    assert held(table, FlowKey) == []
    assert not table._nics


def an_engine(asked: ActionKind) -> Engine:
    """It remembers everything of two flows and a port."""
    policy = Policy((), (RULE,), "auto", 100, 0, ())
    engine = Engine(Memory.of(policy))
    engine.handle(NicAttached(NIC, armed=True), 0)
    table = engine.memory.table
    table.put(flow(1, state=FlowState.STEERED, location=1, target_queue=1, rx_queue=2))
    table.put(flow(2, state=FlowState.OVERFLOW))
    table.put(flow(0, key=PORT, cookie=9, location=3, target_queue=1))
    ineffective(engine.views, engine.memory, 2 * SECOND_NS)
    engine.handle(Reviewed(Topology(())), 2 * SECOND_NS)
    engine.memory.turn_away(flow(4))
    for of in (key(1), key(2), PORT):
        remember_all(table, of, asked)
    return engine


def test_the_walk_finds_what_is_remembered() -> None:
    where = " ".join(held(an_engine(ActionKind.INSERT), FlowKey))
    for name in ("_records", "_agenda", "inserting", "swaps", "hashed", "overflowed", "_writing"):
        assert name in where, name


@pytest.mark.parametrize("asked", [ActionKind.INSERT, ActionKind.REWRITE])
def test_with_its_nic_everything_that_is_known_of_a_flow_ends(asked: ActionKind) -> None:
    engine = an_engine(asked)
    engine.handle(NicLost("nic"), 3 * SECOND_NS)
    assert held(engine, FlowKey) == []


@pytest.mark.parametrize("asked", [ActionKind.INSERT, ActionKind.REWRITE])
def test_with_its_socket_everything_that_is_known_of_a_flow_ends(asked: ActionKind) -> None:
    engine = an_engine(asked)
    for each in [*engine.memory.table]:
        engine.memory.table.put(each._replace(location=None, target_queue=None))
    engine.handle(SocketClosed(1001), 3 * SECOND_NS)
    engine.handle(SocketsAudited(()), 3 * SECOND_NS)
    assert held(engine, FlowKey) == []


def test_the_observer_forgets_the_sockets_of_flows_that_were_to_go_and_have_gone() -> None:
    engine = an_engine(ActionKind.INSERT)
    for each in [*engine.memory.table]:
        engine.memory.table.put(each._replace(location=None))
    engine.handle(SocketClosed(1001), 0)
    commands = engine.handle(RemainsDue(frozenset({key(2), PORT})), 0)
    assert [{*each.cookies} for each in commands if isinstance(each, Forget)] == [{1001}]


def test_a_look_at_what_waits_and_goes_astray_does_not_read_the_whole_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = an_engine(ActionKind.INSERT)
    follows = Action(ActionKind.QUEUE_CPU, "nic", None, None, 3, 3, Code.UNSAID(), "", 3)

    def whole(table: FlowTable) -> NoReturn:
        raise AssertionError("the whole table is read")

    monkeypatch.setattr(FlowTable, "__iter__", whole)
    engine.handle(Reviewed(Topology(())), 3 * SECOND_NS)
    engine.handle(MovesReported((Outcome(follows, 3 * SECOND_NS, 0, None, ""),)), 3 * SECOND_NS)
    engine.handle(SocketsAudited(()), 3 * SECOND_NS)
    engine.handle(RemainsDue(frozenset()), 3 * SECOND_NS)
    engine.handle(Tick(), 4 * SECOND_NS)


def test_a_flow_of_which_nothing_is_pending_any_more_takes_no_room_for_it() -> None:
    table = FlowTable(8)
    table.put(flow(1))
    none = FlowTable(8)
    none.put(flow(1))
    at_rest = none.record(key(1))
    assert at_rest is not None
    pending: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: table.hash(key(1), Hashed(3)), lambda: table.hash(key(1), None)),
        (lambda: table.plan(key(1), True), lambda: table.plan(key(1), False)),
        (lambda: table.leave(key(1)), table.stay),
    ]
    for begins, ends in pending:
        begins()
        ends()
        record = table.record(key(1))
        assert record is not None
        assert record.pending is at_rest.pending


def test_what_was_weighed_on_one_nic_is_not_known_of_another() -> None:
    table = FlowTable(8)
    table.put(flow(1))
    record = table.record(key(1))
    assert record is not None
    record.own().rss = 1, 7
    table.put(flow(1)._replace(nic="other"))
    assert record.pending.rss is None
