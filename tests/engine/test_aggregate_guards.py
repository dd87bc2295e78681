# SPDX-License-Identifier: GPL-2.0-or-later
"""While something of a port is being written nothing else of it is: where flows go would change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.filters import aggregate, budget, connections
from atfnd.engine.filters.listeners import place_of
from atfnd.model import Action, ActionKind, Flow, FlowState, Mode, Topology
from atfnd.move.event import Wanted
from tests.engine.test_birth import owning
from tests.engine.test_port_filters import (
    EXACT_WINS,
    OTHER,
    PORT,
    Server,
    connection,
    listening,
)
from tests.values import THREAD, flow, key

SECOND_NS = 10**9
NO_CPUS = Topology(())
WAITS = flow(9, state=FlowState.OVERFLOW, thread=OTHER, key=key(9)._replace(local_port=80))


def ruled(number: int, queue: int = 1, **changes: Any) -> Flow:
    known = flow(number, state=FlowState.STEERED, location=number, target_queue=queue)
    return known._replace(**{"app_cpu": queue, "moved_ns": 1, **changes})


def short(*flows: Flow, queue: int | None = 1, room: int = 10) -> Server:
    """Filters are short, thread 100 owns queue 1, and the port's rule leads there."""
    server = Server()
    server.nic = replace(EXACT_WINS, budget=room)
    server.memory.nics["nic"].owned = owning({1: THREAD, 2: OTHER})
    if queue is not None:
        where = ruled(50, queue)._replace(key=PORT, cookie=1, thread=None)
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
    assert server.why == "the filter of a connection is about to be changed"
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
        server.memory.table.put(known._replace(bytes=number * 10**9))
        budget.weigh(server.nic, NO_CPUS, lambda _: 3, server.memory, seconds * SECOND_NS)
    assert budget.swaps(server.nic, server.memory, 40 * SECOND_NS) == ()


def test_a_port_takes_the_slot_of_another_flow_and_keeps_its_own() -> None:
    other = ruled(3)._replace(key=key(3)._replace(local_port=81), bytes=0)
    server = short(ruled(1), ruled(2), other, queue=None, room=3)
    for seconds in (10, 20):
        server.memory.table.put(other._replace(bytes=seconds * 10**9))  # worth more than they
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


def test_one_flow_alone_makes_no_rule_for_many() -> None:
    server = short()
    nobodys = [
        ruled(n)._replace(location=None, state=FlowState.OVERFLOW, thread=None) for n in (3, 4, 5)
    ]
    wait = [flow(n, state=FlowState.OVERFLOW, app_cpu=1) for n in (6, 7)]

    def most(*flows: Flow) -> int | None:
        return aggregate.queue_of_most(flows, server.nic, server.memory)

    assert most(ruled(1)) is None
    assert most(ruled(1), ruled(2, queue=2)) is None
    assert most(ruled(1), ruled(2), *nobodys) == 1
    assert most(*wait) == 1  # a rule for both is worth as much as two rules


def test_what_could_not_be_written_a_moment_ago_rests() -> None:
    server = short()
    budget.put_off(PORT, "nic", server.memory, 10 * SECOND_NS)
    assert aggregate.rests(PORT, server.nic, server.memory, 10 * SECOND_NS + 1)
    assert not aggregate.rests(PORT, server.nic, server.memory, 1000 * SECOND_NS)
    assert not aggregate.rests(WAITS.key, server.nic, server.memory, 10 * SECOND_NS + 1)


@pytest.mark.parametrize("queue", [None, 2])
def test_flows_whose_rule_for_many_is_gone_or_leads_elsewhere_ask_for_their_own(
    queue: int | None,
) -> None:
    led = flow(1, state=FlowState.PORT, target_queue=1)
    server = short(led, queue=queue)
    aggregate.stranded(server.nic, server.memory, 7)
    after = server.memory.table.get(key(1))
    assert after is not None
    assert (after.state, after.target_queue) == (FlowState.OVERFLOW, None)
    assert after.why == "the filter that led it is gone"
    assert server.memory.table.due_ns(key(1)) == 7  # at once


def test_flows_that_are_led_as_before_or_get_a_rule_now_are_left() -> None:
    led = flow(1, state=FlowState.PORT, target_queue=1)
    server = short(led)
    aggregate.stranded(server.nic, server.memory, 7)
    assert server.memory.table.get(key(1)) == led
    server = short(led, queue=None)
    budget.ask(Action(ActionKind.INSERT, "nic", key(1), None, None, 1, "", ""), server.memory)
    aggregate.stranded(server.nic, server.memory, 7)
    assert server.memory.table.get(key(1)) == led


def test_few_rules_go_in_one_look() -> None:
    """Each is written before anything else is decided."""
    server = short(*(ruled(number) for number in range(1, 20)), room=20)
    uses = [connection(number, 1) for number in range(1, 20)]
    assert len(joined(server.look(*uses, now_ns=10 * SECOND_NS))) == 8


def test_a_flow_that_is_about_to_move_keeps_its_rule() -> None:
    server = short(ruled(1), ruled(2))
    server.memory.table.defer(key(1), 11 * SECOND_NS)
    move = Action(ActionKind.REWRITE, "nic", key(2), 2, 1, 2, "", "rest")
    budget.ask(move, server.memory)
    births = server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS)
    assert joined(births) == set()


def test_a_flow_whose_own_rule_is_being_written_is_not_called_led() -> None:
    here = flow(1, state=FlowState.OVERFLOW, app_cpu=1)
    other_port = flow(2, state=FlowState.OVERFLOW, app_cpu=1, key=key(2)._replace(local_port=80))
    server = short(here, other_port, ruled(3))
    insert = Action(ActionKind.INSERT, "nic", key(1), None, None, 1, "", "")
    budget.ask(insert, server.memory)
    flows = [*server.memory.table]
    assert [*aggregate.joined(PORT, flows, server.nic, server.memory, 10 * SECOND_NS)]
    states = {each.key: each.state for each in server.memory.table}
    assert states[key(1)] is states[other_port.key] is FlowState.OVERFLOW
    budget.ended(insert, server.memory)
    [*aggregate.joined(PORT, flows, server.nic, server.memory, 10 * SECOND_NS)]
    found = server.memory.table.get(key(1))
    assert found is not None
    assert found.state is FlowState.PORT


def test_a_connection_waits_for_a_rule_only_if_it_asks_for_one() -> None:
    server = short(flow(1, state=FlowState.MANUAL), flow(2, state=FlowState.OVERFLOW))
    assert not connections.waits_for(key(1), 1, server.nic, server.memory)
    assert connections.waits_for(key(2), 1, server.nic, server.memory)
    assert not connections.waits_for(key(2), 2, server.nic, server.memory)


def test_the_rule_of_another_ports_connection_that_goes_is_no_hindrance() -> None:
    other = ruled(3)._replace(key=key(3)._replace(local_port=80))
    server = short(ruled(1), other)
    flows = [*server.memory.table]
    server.memory.table.gives(other.key, (WAITS.key,))
    assert not connections.going(PORT, flows, server.nic, server.memory)
    server.memory.table.gives(key(1), (WAITS.key,))
    assert connections.going(PORT, flows, server.nic, server.memory)


def test_a_queue_without_a_napi_is_not_where_an_unknown_one_is() -> None:
    nic = replace(EXACT_WINS, queues=tuple(replace(q, napi_id=None) for q in EXACT_WINS.queues))
    assert connections.queue_of(None, nic) is None
    assert connections.queue_of(102, EXACT_WINS) == 2


def test_connections_of_another_nic_are_not_those_of_this_port() -> None:
    server = short(ruled(1), ruled(2, nic="other"))
    known = connections.accepted(server.nic, server.memory)
    assert [each.key for each in known[place_of(PORT)]] == [key(1)]


def test_of_two_ports_that_share_connections_it_is_not_known_which_rule_wins() -> None:
    server = Server(listening(1), listening(2, PORT._replace(local=bytes(4))))
    assert not connections.rivalled(PORT, server.listeners, server.memory)
    server.memory.table.put(flow(0, key=PORT._replace(local=bytes(4)), location=9))
    assert connections.rivalled(PORT, server.listeners, server.memory)
