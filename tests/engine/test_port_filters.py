# SPDX-License-Identifier: GPL-2.0-or-later
"""One rule for a listening port: for one owner, and never for a live connection's queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.filters import port_filters
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.placement import renew, steer
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Accepted,
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


def test_a_new_listeners_port_goes_to_its_threads_queue() -> None:
    server = Server()
    (birth,) = server.look()
    action = birth.action
    assert (action.kind, action.key, action.new) == (ActionKind.INSERT, PORT, 2)
    assert birth.origins == birth.rss == frozenset({0, 1, 2, 3})
    assert birth.first_data_ns is not None
    assert birth.first_data_ns > 10
    server.done((birth,))
    assert server.look() == ()


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


def test_one_that_was_on_its_way_is_known_by_its_queue() -> None:
    server = Server()
    born = server.look()
    napis = {0: 100, 1: 101, 2: 102, -1: None}
    through = {queue: Accepted(9, 1001, key(1), napi) for queue, napi in napis.items()}
    for event in through.values():  # its port's rule is not written yet, and would move it
        assert port_filters.exposed(event, EXACT_WINS, server.listeners, server.memory) == [PORT]
    server.done(born)
    for queue, event in through.items():
        assert port_filters.exposed(event, EXACT_WINS, server.listeners, server.memory) == [
            PORT
        ] * (queue != 2)
    server.memory.table.put(flow(1, location=4, target_queue=1))
    assert port_filters.exposed(through[1], EXACT_WINS, server.listeners, server.memory) == []


def test_the_rule_of_a_port_that_comes_to_be_read_by_two_threads_is_taken_back() -> None:
    server = Server()
    server.done(server.look())
    server.reads(THREAD, SECOND_NS)
    server.reads(OTHER, SECOND_NS)
    came, elsewhere = connection(1, 2), connection(2, 0)
    server.memory.table.put(flow(2, location=4, target_queue=0, app_cpu=0))
    pin, delete = server.look(came, elsewhere, now_ns=2 * SECOND_NS)
    assert (pin.action.kind, pin.action.key, pin.action.new) == (ActionKind.INSERT, key(1), 2)
    assert pin.origins == frozenset({2})  # it keeps its queue
    assert (delete.action.kind, delete.action.key, delete.live) == (ActionKind.DELETE, PORT, True)
    assert delete.first_data_ns is not None
    assert server.look(came, elsewhere, now_ns=2 * SECOND_NS) == ()
    through = {queue: Accepted(9, 1003, key(3), 100 + queue) for queue in (0, 2)}
    known = {
        queue: port_filters.exposed(event, EXACT_WINS, server.listeners, server.memory)
        for queue, event in through.items()
    }
    assert known == {0: [], 2: [PORT]}
    server.done((pin, delete))
    assert server.entry() is None
    assert server.look(came, elsewhere, now_ns=3 * SECOND_NS) == ()
    assert "both read" in (server.why or "")


def test_of_many_connections_some_get_their_rule_at_each_look() -> None:
    server = Server()
    server.nic = replace(EXACT_WINS, budget=100)
    server.memory = memory(capacity=100)
    server.done(server.look())
    server.reads(THREAD, SECOND_NS)
    server.reads(OTHER, SECOND_NS)
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


@pytest.mark.parametrize("moves", [True, False])
def test_a_rule_that_moves_flows_is_no_birth(moves: bool) -> None:
    """They have sent data through another queue: only a hold proves that it has drained."""
    server = Server()
    server.nic = replace(EXACT_WINS, budget=10)
    server.memory.nics["nic"].owned = owning({1: THREAD, 2: OTHER})
    waits = flow(9, state=FlowState.OVERFLOW, thread=OTHER, key=key(9)._replace(local_port=80))
    led = flow(1)._replace(state=FlowState.STEERED, location=1, target_queue=1)
    moved = [flow(n, state=FlowState.OVERFLOW, app_cpu=1) for n in (1, 2)]
    for each in (waits, *(moved if moves else [led])):
        server.memory.table.put(each)
    uses = [connection(n, 3 if moves else 1) for n in (1, 2)][: 1 + moves]
    [birth] = server.look(*uses, now_ns=10 * SECOND_NS)
    assert birth.action.key == PORT
    assert (birth.first_data_ns is None) is moves


def test_a_process_that_forks_before_its_rule_is_written_gets_none() -> None:
    server = Server()
    server.listeners.forked(THREAD.pid)
    assert server.look() == ()


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
    server.done(server.look())
    server.reads(THREAD, SECOND_NS)
    server.reads(OTHER, SECOND_NS)
    assert server.look(connection(1, 0), now_ns=2 * SECOND_NS) == ()
    assert len(server.look(connection(1, 2), now_ns=3 * SECOND_NS)) == 2
