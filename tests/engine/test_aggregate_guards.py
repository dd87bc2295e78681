# SPDX-License-Identifier: GPL-2.0-or-later
"""While something of a port is being written nothing else of it is: where flows go would change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.filters import budget
from atfnd.model import Action, ActionKind, Flow, FlowState, Mode, Topology
from atfnd.move.event import Wanted
from tests.engine.test_birth import owning
from tests.engine.test_port_rules import EXACT_WINS, OTHER, PORT, Server, connection
from tests.values import THREAD, flow, key

SECOND_NS = 10**9
NO_CPUS = Topology(())
WAITS = flow(9, state=FlowState.OVERFLOW, thread=OTHER, key=key(9)._replace(local_port=80))


def ruled(number: int, queue: int = 1, **changes: Any) -> Flow:
    known = flow(number, state=FlowState.STEERED, location=number, target_queue=queue)
    return replace(known, **{"app_cpu": queue, "moved_ns": 1, **changes})


def short(*flows: Flow, queue: int | None = 1, room: int = 10) -> Server:
    """Filters are short, thread 100 owns queue 1, and the port's rule leads there."""
    server = Server()
    server.nic = replace(EXACT_WINS, budget=room)
    server.memory.nics["nic"].owned = owning({1: THREAD, 2: OTHER})
    if queue is not None:
        where = replace(ruled(50, queue), key=PORT, cookie=1, thread=None)
        server.memory.table.put(where)
    for each in (WAITS, *flows):
        server.memory.table.put(each)
    return server


def joined(births: tuple[Wanted, ...]) -> set[object]:
    return {each.action.key for each in births if each.action.kind is ActionKind.DELETE}


def test_what_its_port_delivers_anyway_needs_no_rule() -> None:
    server = short(ruled(1), ruled(2))
    births = server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS)
    assert joined(births) == {key(1), key(2)}
    assert {(each.origins, each.rss) for each in births} == {(frozenset({1}), frozenset({1}))}
    assert server.look(now_ns=10 * SECOND_NS) == ()  # once
    server.done(births)
    after = server.memory.table.get(key(1))
    assert after is not None
    assert (after.state, after.location, after.target_queue) == (FlowState.PORT, None, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_queue": 3},  # not moved yet
        {"thread": OTHER},  # another owner's
        {"thread": None},  # nobody's: it would want a rule again
        {"rule_name": "another"},
        {"moved_ns": 9 * SECOND_NS},
        {"state": FlowState.MANUAL},
    ],
)
def test_what_may_want_another_queue_keeps_its_rule(changes: dict[str, Any]) -> None:
    server = short(ruled(1, **changes), ruled(2))
    births = server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS)
    assert key(1) not in joined(births)


def test_nothing_joins_a_port_whose_rule_is_being_rewritten() -> None:
    server = short(ruled(1))
    entry = server.entry()
    assert entry is not None
    move = Action(ActionKind.REWRITE, "nic", PORT, entry.location, 1, 2, "", "rest")
    budget.ask(move, server.memory)
    assert joined(server.look(connection(1, 1), now_ns=10 * SECOND_NS)) == set()
    budget.ended(move, server.memory)
    assert joined(server.look(connection(1, 1), now_ns=10 * SECOND_NS)) == {key(1)}


@pytest.mark.parametrize("queue", [None, 2])
def test_a_ports_rule_waits_for_rules_that_are_about_to_go(queue: int | None) -> None:
    server = short(ruled(1), ruled(2), queue=queue)
    server.memory.table.gives(key(1), (WAITS.key,))
    assert server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS) == ()
    assert server.why == "the filter of a connection is about to be deleted"
    server.memory.table.gives(key(1), None)
    [written] = server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS)
    assert (written.action.key, written.action.new) == (PORT, 1)


def test_a_closed_ports_rule_stays_for_those_that_are_about_to_join_it() -> None:
    server = short(ruled(1))
    assert joined(server.look(connection(1, 1), now_ns=10 * SECOND_NS)) == {key(1)}
    server.listeners.closed(1, 10 * SECOND_NS)
    assert server.look(connection(1, 1), now_ns=30 * SECOND_NS) == ()


@pytest.mark.parametrize("inserting", [False, True])
def test_no_filter_is_taken_from_a_flow_of_a_port_that_has_a_rule(inserting: bool) -> None:
    server = short(ruled(1), ruled(2), queue=None if inserting else 1, room=2)
    if inserting:
        plain = Action(ActionKind.INSERT, "nic", PORT, None, None, 1, "", "rest")
        server.memory.table.put(flow(0, key=PORT))
        budget.ask(plain, server.memory)
    for number, seconds in enumerate((10, 20, 30)):
        known = server.memory.table.get(WAITS.key)
        assert known is not None
        server.memory.table.put(replace(known, bytes=number * 10**9))
        budget.weigh(server.nic, NO_CPUS, lambda _: 3, server.memory, seconds * SECOND_NS)
    assert budget.swaps(server.nic, server.memory, 40 * SECOND_NS) == ()


def test_a_port_takes_the_slot_of_another_flow_and_keeps_its_own() -> None:
    other = replace(ruled(3), key=key(3)._replace(local_port=81), bytes=0)
    server = short(ruled(1), ruled(2), other, queue=None, room=3)
    for seconds in (10, 20):
        server.memory.table.put(replace(other, bytes=seconds * 10**9))  # worth more than they
        budget.weigh(server.nic, NO_CPUS, lambda _: 3, server.memory, seconds * SECOND_NS)
    uses = [connection(n, 1) for n in (1, 2)]
    assert server.look(*uses, now_ns=20 * SECOND_NS) == ()
    [swap] = budget.swaps(server.nic, server.memory, 21 * SECOND_NS)
    assert swap.key == other.key
    server.done((Wanted(swap, Mode.STRICT, None, None),), 21 * SECOND_NS)
    assert budget.no_room(server.nic, server.memory, WAITS.key) is not None
    births = server.look(*uses, now_ns=22 * SECOND_NS)
    assert [each.action.key for each in births] == [PORT]
    server.done(births, 22 * SECOND_NS)
    assert joined(server.look(*uses, now_ns=30 * SECOND_NS)) == {key(1), key(2)}
