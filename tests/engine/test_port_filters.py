# SPDX-License-Identifier: GPL-2.0-or-later
"""One rule for a listening port: for one owner, and never for a live connection's queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine import audit
from atfnd.engine.filters import aggregate, budget, port_filters
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.placement import renew, steer
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Caps,
    Filter,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Listening,
    Match,
    Mode,
    NicView,
    Outcome,
    SocketUse,
    Thread,
    ThreadReads,
)
from atfnd.model.reason import Code
from atfnd.move.event import Wanted
from tests.engine.test_birth import memory, owning
from tests.values import NIC, RULE, THREAD, flow, key, seen

EXACT_WINS = replace(NIC, caps=replace(NIC.caps, exact_wins=True))
PORT = key(0)._replace(remote=bytes(4), remote_port=0)
OTHER = Thread(tid=200, pid=200, comm="app", cgroup=None)
SECOND_NS = 10**9


def listening(cookie: int = 1, key: FlowKey = PORT, cpu: int = 2) -> Listening:
    return Listening(5, cookie, key, 1, THREAD, cpu, alone=True)


def connection(number: int, queue: int | None = 0) -> SocketUse:
    return SocketUse(1000 + number, key(number), None, queue and 100 + queue, queue, 9)


class Server:
    """A listener, and what is decided for its port."""

    def __init__(self, *events: Listening) -> None:
        self.memory: Memory = memory()
        self.listeners = Listeners()
        self.rule: FlowRule | None = replace(RULE, order=Mode.STRICT)
        self.nic: NicView = EXACT_WINS
        for event in events or (listening(),):
            self.listeners.opened(event, self.memory.table)

    def reads(self, thread: Thread, at_ns: int, cpu: int | None = None) -> FlowKey | None:
        return self.listeners.read(ThreadReads(at_ns, key(1), 102, thread, cpu))

    def look(self, *uses: SocketUse, now_ns: int = 10) -> tuple[Wanted, ...]:
        return port_filters.look(
            self.nic, lambda _, comm: self.rule, self.listeners, uses, self.memory, now_ns
        )

    def read_by_two(self) -> None:
        """Its filter is written, and then two threads read its connections."""
        self.done(self.look())
        for thread in (THREAD, OTHER):
            self.reads(thread, SECOND_NS)

    def done(self, births: tuple[Wanted, ...], at_ns: int = 10) -> None:
        for each in births:
            audit.record(
                Outcome(each.action, at_ns, 0, each.action.location or 77, ""), self.memory
            )

    def entry(self, key: FlowKey = PORT) -> Flow | None:
        return self.memory.table.get(key)

    @property
    def why(self) -> str | None:
        found = self.listeners.why_not.get(PORT)
        return None if found is None else str(found)


def test_ports_on_one_cpu_have_queues_of_their_own_while_there_are_any() -> None:
    ports_of_one = [PORT._replace(local_port=port) for port in range(443, 449)]
    server = Server(*(listening(port.local_port, port) for port in ports_of_one))
    queues = [birth.action.new for birth in server.look()]
    assert queues == [2, 0, 1, 3, 2, 2]  # then together


def test_a_filter_of_an_earlier_run_stays_as_long_as_a_connection_of_its_port_lives() -> None:
    """Though nobody listens any more: its packets would go to another queue at once."""
    held, live = Filter(3, Match.of(PORT), 2), connection(1, 2)
    server = Server()
    assert audit.adopt(EXACT_WINS, [held], {}, server.memory, 5)[1][0].kind is ActionKind.DELETE
    flows, plan = audit.adopt(EXACT_WINS, [held], {Match.of(key(1)): live}, server.memory, 5)
    assert ([each.key for each in flows], plan) == ([PORT], ())
    server.listeners = Listeners()
    server.listeners.left(PORT, 5)
    assert [use.key for use in server.listeners.uses(server.memory.table, 6)] == [PORT]
    assert server.look(live, now_ns=100 * SECOND_NS) == ()
    [delete] = server.look(now_ns=100 * SECOND_NS)
    assert delete.action.kind is ActionKind.DELETE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"armed": False}, "not armed"),
        ({"budget": 0}, "in use"),
        ({"caps": NIC.caps}, "which of two filters wins"),
        ({"caps": replace(EXACT_WINS.caps, prefix_masks=False)}, "whole 5-tuple"),
    ],
)
def test_what_the_nic_cannot_is_said(change: dict[str, bool | int | Caps], why: str) -> None:
    server = Server()
    server.nic = replace(EXACT_WINS, **change)  # type: ignore[arg-type]
    assert server.look() == ()
    assert why in (server.why or "")
    assert len(server.memory.table) == 0


def test_a_rewrite_that_was_put_off_is_not_asked_for_at_each_look() -> None:
    server = Server()
    server.done(server.look())
    server.memory.table.put(flow(1, thread=OTHER, app_cpu=1))
    entry = server.entry()
    assert entry is not None
    assert server.memory.put_off(entry, Code.NOT_QUIESCED(0, "held"), 10, barred=True)
    assert server.look(connection(1, 2)) == ()
    assert str(server.listeners.why_not[PORT]) == "its filter cannot be moved from queue 2 to 1 yet"
    assert server.memory.table.take_due(SECOND_NS) == [PORT]
    assert [each.action.new for each in server.look(connection(1, 2))] == [1]
    entry = server.entry()
    assert entry is not None
    assert not server.memory.put_off(entry, Code.NOT_QUIESCED(3, "held"), 10, barred=True)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("reported", [False, True])
def test_a_connection_that_keeps_its_ports_queue_does_so_until_that_rule_has_gone(
    reported: bool, wanted: bool
) -> None:
    """Neither a look at what a new policy left nor a report of its socket takes its rule away: it
    would be written again at the next look, and so on for ever."""
    server = Server()
    server.done(server.look())
    server.memory.table.put(flow(1, state=FlowState.STEERED, location=5, target_queue=2))
    server.memory.table.leave(key(1))
    server.memory.nics["nic"].listeners = server.listeners

    def goes() -> list[FlowKey | None]:
        if reported:
            plan = steer.seen(seen(1, 2), EXACT_WINS, None, server.memory, 20)
        else:
            plan = renew.leave(server.memory, lambda key: False)
        return [each.key for each in plan]

    if not wanted:
        server.listeners.unwanted.add(PORT)
        assert goes() == []
        server.memory.table.remove(PORT)
    assert goes() == [key(1)]


def test_of_many_connections_some_get_their_rule_at_each_look() -> None:
    server = Server()
    server.nic = replace(EXACT_WINS, budget=100)
    server.memory = memory(capacity=100)
    server.read_by_two()
    live = [connection(number, 2) for number in range(20)]
    first = server.look(*live, now_ns=2 * SECOND_NS)
    assert {birth.action.kind for birth in first} == {ActionKind.INSERT}
    assert len(first) == 16
    server.done(first)
    *rest, delete = server.look(*live, now_ns=3 * SECOND_NS)
    assert len(rest) == 4
    assert delete.action.kind is ActionKind.DELETE


@pytest.mark.parametrize("how", ["read", "used"])
def test_a_process_that_forks_keeps_the_rule_that_its_own_reading_earns(how: str) -> None:
    """redis: it forks to write a file, and reads every connection itself."""
    server = Server()
    server.done(server.look())
    if how == "read":
        server.reads(THREAD, SECOND_NS)
    else:
        server.memory.table.put(flow(1, thread=THREAD, app_cpu=2))
    server.listeners.forked(THREAD.pid)
    assert server.look(now_ns=2 * SECOND_NS) == ()
    assert server.entry() is not None


def test_an_adopted_rule_of_a_listener_found_later_stays() -> None:
    """The listener there is not known, and an earlier run may have known."""
    server = Server(Listening(5, 1, PORT, 1))
    server.memory.table.put(
        flow(0, key=PORT, cookie=1, state=FlowState.STEERED, location=3, target_queue=2)
    )
    assert server.look() == ()
    assert server.entry() is not None


def test_a_rule_for_all_addresses_stays_when_its_port_listens_on_one() -> None:
    anywhere = PORT._replace(local=bytes(4))
    server = Server(listening(1, anywhere))
    server.done(server.look())
    server.listeners.closed(1, 100)
    [delete] = server.look(now_ns=100 + 10 * SECOND_NS)
    assert (delete.action.kind, delete.action.key) == (ActionKind.DELETE, anywhere)
    again = listening(2)
    server.listeners.opened(again, server.memory.table)
    [revoked] = port_filters.wanted_again(again, server.listeners, server.memory)
    assert (revoked.action.kind, revoked.action.key) == (ActionKind.REWRITE, anywhere)


def test_a_connection_that_was_seen_elsewhere_keeps_the_rule_of_its_port() -> None:
    """Another port's rule may have it, or it has had no packet since."""
    server = Server()
    server.read_by_two()
    assert server.look(connection(1, 0), now_ns=2 * SECOND_NS) == ()
    assert len(server.look(connection(1, 2), now_ns=3 * SECOND_NS)) == 2


# Few filters, many flows of one port: one rule serves them, and every flow stays where it is.

RULED = flow(1, state=FlowState.STEERED, location=1, target_queue=1, app_cpu=1, moved_ns=1)
WAITS = flow(9, state=FlowState.OVERFLOW, thread=OTHER, key=key(9)._replace(local_port=80))


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


@pytest.mark.parametrize("moves", [True, False])
def test_a_rule_that_moves_flows_is_no_birth(moves: bool) -> None:
    """They have sent data through another queue: only a hold proves that it has drained."""
    moved = [flow(n, state=FlowState.OVERFLOW, app_cpu=1) for n in (1, 2)]
    server = short(*(moved if moves else [RULED]), queue=None)
    uses = [connection(n, 3 if moves else 1) for n in (1, 2)][: 1 + moves]
    [birth] = server.look(*uses, now_ns=10 * SECOND_NS)
    assert birth.action.key == PORT
    assert birth.origins == birth.rss == frozenset({0, 1, 2, 3})
    assert (birth.first_data_ns is None) is moves


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
    server = short(RULED._replace(**changes), RULED._replace(key=key(2), cookie=1002, location=2))
    births = server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS)
    gone = {each.action.key for each in births if each.action.kind is ActionKind.DELETE}
    assert gone == {key(2)}


@pytest.mark.parametrize(("queue", "stranded"), [(None, True), (2, True), (1, False)])
def test_flows_whose_ports_rule_is_gone_or_leads_elsewhere_ask_for_their_own(
    queue: int | None, stranded: bool
) -> None:
    server = short(led := flow(1, state=FlowState.PORT, target_queue=1), queue=queue)
    aggregate.stranded(server.nic, server.memory, 7)
    found = server.memory.table.get(key(1))
    assert found is not None
    wants = led._replace(state=FlowState.OVERFLOW, target_queue=None, why=found.why)
    assert found == (wants if stranded else led)
    assert server.memory.table.due_ns(key(1)) == (7 if stranded else None)  # at once


def test_one_that_gets_its_own_now_does_not_ask_for_it() -> None:
    server = short(led := flow(1, state=FlowState.PORT, target_queue=1), queue=None)
    insert = Action(ActionKind.INSERT, "nic", key(1), None, None, 1, Code.UNSAID(), "")
    budget.ask(insert, server.memory)  # it gets one now
    aggregate.stranded(server.nic, server.memory, 7)
    assert server.memory.table.get(key(1)) == led
