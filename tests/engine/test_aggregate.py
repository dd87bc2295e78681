# SPDX-License-Identifier: GPL-2.0-or-later
"""Few filters, many flows of one port: one rule serves them, and every flow stays where it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.filters import aggregate, budget
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    FlowState,
    Listening,
    Mode,
    NicView,
    Thread,
    Topology,
)
from atfnd.model.reason import Code
from atfnd.move.event import Wanted
from atfnd.move.plan import in_order
from tests.engine.simulated import SECOND_NS, Load, Simulated
from tests.engine.test_birth import owning
from tests.engine.test_port_filters import EXACT_WINS, OTHER, PORT, Server, connection
from tests.values import RULE, THREAD, flow, key, memory_of, one_rule

ORDERED = replace(RULE, order=Mode.STRICT)
CPU = {THREAD.tid: 1, OTHER.tid: 2}
RATE = 1_000_000


def of_port(number: int, port: int = 443) -> FlowKey:
    return key(number)._replace(local_port=port)


def served(port: int) -> FlowKey:
    return PORT._replace(local_port=port)


class Watched(Simulated):
    """Fails when a write moves a flow to another queue that it was not for. `late`: deletes that
    are carried out before the next look, unless something else is wanted of their flow since."""

    def __init__(
        self, nic: NicView, known: Memory, loads: list[Load], ports: Iterable[FlowKey]
    ) -> None:
        served = [Listening(0, 10_000 + number, port, 1) for number, port in enumerate(ports)]
        super().__init__(nic, ORDERED, known, loads, served=served)
        self.delays: list[bool] = []
        self.late: dict[FlowKey, Action] = {}

    def carry_out(self, plan: tuple[Action, ...]) -> None:
        for action in in_order(plan):
            if action.key in self.late:
                budget.ended(self.late.pop(action.key), self.memory)
            late = action.kind is ActionKind.DELETE and self.delays and self.delays.pop()
            if late and action.key is not None:
                self.late[action.key] = action
            else:
                self.written(action)

    def look(self, after_ns: int = 2 * SECOND_NS) -> None:
        for action in self.late.values():
            self.written(action)
        self.late = {}
        super().look(after_ns)

    def written(self, action: Action) -> None:
        before = {load.key: self.queue_of(load.key) for load in self.loads}
        flows = (self.memory.table.get(load.key) for load in self.loads)
        homes = ((f, aggregate.belongs(f, self.nic, self.memory)) for f in flows if f)
        waiting = {f.key for f, at in homes if budget.waits(f) and at == action.new}
        super().carry_out((action,))
        after = {load.key: self.queue_of(load.key) for load in self.loads}
        moved = {each for each in before if before[each] != after[each]}
        if action.key is None or not action.key.listens:
            assert moved <= ({action.key} if "port" not in str(action.why) else set())
            return
        assert all(each.local_port == action.key.local_port for each in moved)
        assert action.kind is ActionKind.REWRITE or moved <= waiting


def bed(loads: list[Load], room: int, ports: tuple[int, ...] = (443,)) -> Watched:
    known = memory_of(FlowTable(1000), one_rule(100, 1 << 60, Mode.STRICT))
    nic = replace(EXACT_WINS, budget=room)
    made = Watched(nic, known, loads, [served(port) for port in ports])
    made.start()
    return made


def load(number: int, thread: Thread, rss: int = 3, port: int = 443, rate: int = RATE) -> Load:
    return Load(of_port(number, port), CPU[thread.tid], rate, rss, thread)


def test_a_flow_that_goes_elsewhere_has_its_own_rule() -> None:
    flows = [load(number, THREAD) for number in range(1, 7)]
    flows += [load(number, OTHER) for number in (7, 8)]
    few = [load(number, OTHER, port=80) for number in (9, 10, 11, 12)]
    made = bed([*few, *flows], room=13)
    for _ in range(20):
        made.look()
    held = {held for held, _ in made.held.values()}
    assert held == {PORT, of_port(7), of_port(8), *(each.key for each in few)}
    assert made.placed() == 1


THREADS = [THREAD, OTHER]


@given(
    flows=st.lists(
        st.tuples(
            st.sampled_from(THREADS),
            st.integers(0, 3),
            st.sampled_from([80, 443, 8080]),
            st.integers(0, 10**8),
        ),
        max_size=14,
    ),
    room=st.integers(0, 8),
    delays=st.lists(st.booleans(), max_size=20),
    swaps=st.sets(st.integers(0, 12), max_size=4),
)
def test_classified_as_one_rule_a_flow_would(
    flows: list[tuple[Thread, int, int, int]], room: int, delays: list[bool], swaps: set[int]
) -> None:
    made = bed(
        [
            load(number, thread, rss, port, rate)
            for number, (thread, rss, port, rate) in enumerate(flows)
        ],
        room,
        (80, 443),
    )
    made.delays = delays
    for number in range(15):
        if number in swaps:  # as when others are busier for a while
            owned = made.memory.nics["nic"].owned
            made.memory.nics["nic"].owned = dict(zip(owned, [*owned.values()][::-1], strict=True))
            made.carry_out(steer.take_up(made.nic, made.memory, made.now_ns))
        made.look()
        assert len(made.held) <= room
        for each in made.memory.table:
            at = made.queue_of(each.key) if not each.key.listens else each.target_queue
            if each.state in (FlowState.STEERED, FlowState.PORT):
                assert at == each.target_queue
            else:
                covered = made.memory.table.covering(each.key)
                assert covered is not None or at == made._rss[each.key]


RULED = flow(1, state=FlowState.STEERED, location=1, target_queue=1, app_cpu=1, moved_ns=1)
WAITS = flow(9, state=FlowState.OVERFLOW, thread=OTHER, key=of_port(9, 80))


def short(*flows: Flow, queue: int | None = 1) -> Server:
    """Filters are short, thread 100 owns queue 1, and the port's rule leads there, if to any."""
    server = Server()
    server.nic = replace(EXACT_WINS, budget=10)
    server.memory.nics["nic"].owned = owning({1: THREAD, 2: OTHER})
    if queue is not None:
        port = RULED._replace(key=PORT, cookie=1, thread=None, location=50, target_queue=queue)
        server.memory.table.put(port)
    for each in (WAITS, *flows):
        server.memory.table.put(each)
    return server


@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({}, True),
        ({"target_queue": 3}, False),  # not moved yet
        ({"thread": OTHER}, False),  # another owner's
        ({"thread": None}, False),  # nobody's: it would want a rule again
        ({"rule_name": "another"}, False),
        ({"moved_ns": 9 * SECOND_NS}, False),
        ({"state": FlowState.MANUAL}, False),
    ],
)
def test_what_may_want_another_queue_keeps_its_rule(changes: dict[str, Any], goes: bool) -> None:
    server = short(RULED._replace(**changes), RULED._replace(key=key(2), cookie=1002, location=2))
    births = server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS)
    gone = {each.action.key for each in births if each.action.kind is ActionKind.DELETE}
    assert gone == {key(2), *([key(1)] if goes else [])}


def test_nothing_joins_a_port_whose_rule_is_being_rewritten() -> None:
    server = short(RULED)
    move = Action(ActionKind.REWRITE, "nic", PORT, 50, 1, 2, Code.UNSAID(), "rest")
    budget.ask(move, server.memory)
    assert server.look(connection(1, 1), now_ns=10 * SECOND_NS) == ()
    budget.ended(move, server.memory)
    [joins] = server.look(connection(1, 1), now_ns=10 * SECOND_NS)
    assert (joins.action.kind, joins.action.key) == (ActionKind.DELETE, key(1))


@pytest.mark.parametrize(("queue", "stranded"), [(None, True), (2, True), (1, False)])
def test_flows_whose_ports_rule_is_gone_or_leads_elsewhere_ask_for_their_own(
    queue: int | None, stranded: bool
) -> None:
    server = short(led := flow(1, state=FlowState.PORT, target_queue=1), queue=queue)
    aggregate.stranded(server.nic, server.memory, 7)
    found = server.memory.table.get(key(1))
    assert found is not None
    if not stranded:
        assert found == led
        return
    assert (found.state, found.target_queue) == (FlowState.OVERFLOW, None)
    assert server.memory.table.due_ns(key(1)) == 7  # at once
    server = short(led, queue=queue)
    insert = Action(ActionKind.INSERT, "nic", key(1), None, None, 1, Code.UNSAID(), "")
    budget.ask(insert, server.memory)  # it gets one now
    aggregate.stranded(server.nic, server.memory, 7)
    assert server.memory.table.get(key(1)) == led


def test_a_port_takes_the_slot_of_another_flow_and_keeps_its_own() -> None:
    other = RULED._replace(key=of_port(3, 81), cookie=1003, location=3)
    two = RULED._replace(key=key(2), cookie=1002, location=2)
    server = short(RULED, two, other, queue=None)
    server.nic = replace(EXACT_WINS, budget=3)
    for seconds in (10, 20):
        server.memory.table.put(other._replace(bytes=seconds * 10**9))  # worth more than they
        budget.weigh(server.nic, Topology(()), lambda _: 3, server.memory, seconds * SECOND_NS)
    uses = [connection(n, 1) for n in (1, 2)]
    assert server.look(*uses, now_ns=20 * SECOND_NS) == ()
    [swap] = budget.swaps(server.nic, server.memory, 21 * SECOND_NS)
    assert swap.key == other.key
    server.done((Wanted(swap, Mode.STRICT, None, None),), 21 * SECOND_NS)
    assert budget.no_room(server.nic, server.memory, WAITS.key) is not None
    births = server.look(*uses, now_ns=22 * SECOND_NS)
    assert [each.action.key for each in births] == [PORT]
