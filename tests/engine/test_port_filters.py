# SPDX-License-Identifier: GPL-2.0-or-later
"""One rule for a listening port: for one owner, and never for a live connection's queue; who
listens on it and reads its connections; and what the engine makes of connects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine import audit
from atfnd.engine.command import Begin, Command, ReportEnd
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    BirthHeard,
    BirthsHeard,
    Event,
    ListenersFound,
    MovesReported,
    NicAttached,
    Offer,
    PortsLooked,
    TakenUp,
)
from atfnd.engine.filters import aggregate, budget, port_filters
from atfnd.engine.filters.listeners import Asked, Listeners
from atfnd.engine.filters.readers import Readers
from atfnd.engine.handshake.handshake import keeps_order_from_birth
from atfnd.engine.placement import renew, steer
from atfnd.engine.table.flow_table import FlowTable, Writing
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
    Placement,
    Policy,
    Protocol,
    Rss,
    SocketUse,
    Thread,
    ThreadReads,
)
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.event import Wanted
from atfnd.move.verdict import Mechanism, Verdict
from tests.engine.test_birth import FAR_NS, memory, owning, syn
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


# What the engine makes of connects, listeners and readers: whom it asks, and whom it tells.

STRICT = replace(RULE, order=Mode.STRICT)


class Bed:
    """The real engine and one NIC; the policy has one rule for everything."""

    def __init__(self, rule: FlowRule = STRICT, nic: NicView = EXACT_WINS) -> None:
        self.rule = rule
        self.engine = Engine(Memory.of(Policy((), (rule,), "auto", 64, 0, ())))
        self.tell(NicAttached(nic, armed=nic.armed))
        for number in (1, 2, 3):
            self.engine.handshakes.connects.distances.learn(key(number).remote, FAR_NS)

    @property
    def memory(self) -> Memory:
        return self.engine.memory

    def tell(self, event: Event) -> list[Command]:
        return [*self.engine.handle(event, 70)]

    def hears(self, *births: Any) -> list[Command]:
        """Each may come by this NIC alone; RSS has it on queue 0."""
        offers = (Offer("nic", self.rule, 0),)
        return self.tell(BirthsHeard(tuple(BirthHeard(each, "nic", offers) for each in births)))

    def looks(self) -> list[Action]:
        """At its ports."""
        asked = self.engine.ports_to_match()
        rules = {nic: dict.fromkeys(each, self.rule) for nic, each in asked.items()}
        return written(self.tell(PortsLooked(rules, ())))


def written(commands: list[Command]) -> list[Action]:
    begun = [each for each in commands if isinstance(each, Begin)]
    return [wanted.action for each in begun for wanted in each.wanted]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"order": Mode.IMMEDIATE},
        {"placement": Placement.LEAVE},
        {"min_bytes": 1},
        {"min_age_ns": 1},
        {"min_rate_bit_s": 1},
    ],
)
def test_only_a_rule_that_steers_in_order_and_at_once_is_asked_at_a_birth(
    changes: dict[str, Any],
) -> None:
    bed, keeps = Bed(replace(STRICT, **changes)), not changes
    assert keeps_order_from_birth(bed.rule) is keeps
    assert bool(written(bed.hears(syn()))) is keeps
    bed.hears(listening())
    assert bool(bed.looks()) is keeps


def test_why_the_port_of_a_connection_has_no_filter() -> None:
    bed = Bed()
    bed.tell(ListenersFound("nic", (Listening(5, 1, PORT, 1, THREAD, 2),)))
    bed.looks()
    why = bed.engine.handshakes.why_no_port
    assert "nobody has read a connection yet" in (why("nic", key(1), bed.memory) or "")
    assert why("nic", key(1)._replace(protocol=Protocol.UDP), bed.memory) is None
    entry = flow(0, key=PORT, cookie=1, location=5, target_queue=2)
    bed.memory.table.put(entry)
    assert why("nic", key(1), bed.memory) is None  # it has one


@pytest.mark.parametrize("goes", [False, True], ids=["it stays", "it is about to go"])
@pytest.mark.parametrize("rss", [EXACT_WINS.rss, None], ids=["known", "unknown"])
def test_a_move_of_a_flow_that_its_ports_filter_serves_is_from_the_queue_of_that(
    goes: bool, rss: Rss | None
) -> None:
    """A driver that deletes and inserts to rewrite leaves it to whatever serves it in between: to
    RSS, too, while that filter is about to go."""
    bed = Bed(nic=replace(EXACT_WINS, rss=rss))
    bed.hears(listening())
    entry = flow(0, key=PORT, cookie=1, state=FlowState.STEERED, location=5, target_queue=1)
    bed.memory.table.put(entry._replace(thread=None))
    if goes:
        known = bed.memory.nics["nic"].listeners
        assert known is not None
        known.asked[PORT] = Asked(60, 1)
    bed.memory.table.put(flow(1, app_cpu=2))
    [begin] = [each for each in bed.tell(TakenUp("nic")) if isinstance(each, Begin)]
    [found] = [each.rss for each in begin.wanted if each.action.key == key(1)]
    assert found == ({1} if not goes else None if rss is None else {0, 1})


def put_off(of: FlowKey | None, why: str, verdict: Verdict = Verdict.DEFERRED) -> Ended:
    kind = ActionKind.QUEUE_CPU if of is None else ActionKind.INSERT
    queue = 1 if of is None else None
    action = Action(kind, "nic", of, None, None, 1, Code.UNSAID(), "", queue)
    return Ended(
        of if of is not None else 1, action, Mechanism.NONE, verdict, Code.KERNEL(why), 0, 0
    )


def test_how_the_move_of_a_queue_ends_is_news_once_and_success_is_none() -> None:
    bed = Bed()

    def news(verdict: Verdict, why: str) -> list[bool]:
        commands = bed.tell(MovesReported((put_off(None, why, verdict),)))
        return [each.news for each in commands if isinstance(each, ReportEnd)]

    assert news(Verdict.DEFERRED, "busy") == [True]
    assert news(Verdict.DEFERRED, "busy") == [False]
    assert news(Verdict.DEFERRED, "another reason") == [True]
    assert news(Verdict.DONE, "") == [False]


def test_the_end_of_an_earlier_write_is_not_taken_for_that_of_a_first_filter() -> None:
    bed = Bed()
    [action] = written(bed.hears(syn()))
    bed.tell(MovesReported((put_off(key(1), "another decision replaced it"),)))
    assert bed.memory.table.get(key(1)) is not None
    assert bed.memory.table.writing(Writing.CONNECT) == [key(1)]
    bed.tell(MovesReported((Outcome(action, 71, 0, 5, ""),)))
    entry = bed.memory.table.get(key(1))
    assert entry is not None
    assert (entry.state, entry.location) == (FlowState.STEERED, 5)


# Which sockets listen on a port, which flows its filter catches, and which threads read its
# connections.

ANYWHERE = PORT._replace(local=bytes(4))
OTHER_PORT = PORT._replace(local_port=8080)
ONE, TWO = (Thread(tid, tid, "app", None) for tid in (1, 2))


@pytest.mark.parametrize(
    ("other", "of_one", "of_all"),
    [
        (key(1), True, True),
        (key(1)._replace(local=bytes([10, 0, 1, 1])), False, True),
        (key(1)._replace(local_port=80), False, False),
        (key(1)._replace(protocol=Protocol.UDP), False, False),
        (FlowKey(Protocol.TCP, bytes(16), 443, bytes(15) + b"\1", 1000), False, False),
        (PORT, True, True),
        (ANYWHERE, False, True),
    ],
)
def test_a_port_covers_the_connections_to_it(other: FlowKey, of_one: bool, of_all: bool) -> None:
    """One that is taken for narrower than it is moves flows of others."""
    assert (PORT.covers(other), ANYWHERE.covers(other)) == (of_one, of_all)
    assert PORT.overlaps(other) is (of_one or other == ANYWHERE)


def opened(*ports: FlowKey) -> Listeners:
    """Sockets 1, 2, ... listen."""
    listeners = Listeners()
    for cookie, port in enumerate(ports, 1):
        listeners.opened(Listening(5, cookie, port, 1), FlowTable(8))
    return listeners


def reads(thread: Thread, at_ns: int = 0) -> ThreadReads:
    return ThreadReads(at_ns, key(1), 102, thread)


def test_the_next_listener_is_not_judged_by_who_read_for_the_last() -> None:
    listeners = opened(PORT)
    listeners.read(reads(ONE))
    listeners.closed(1, 10)
    listeners.opened(Listening(15, 2, PORT, 1), FlowTable(8))
    assert listeners.read(reads(TWO, 20)) is None
    assert listeners.several(PORT) is None


ALONE = tuple((ONE, at_s) for at_s in (12, 30, 60, 71))
BOTH = (ONE, 0), (TWO, 1)


@pytest.mark.parametrize(
    ("reads", "several"),
    [
        (((ONE, 0), (TWO, 9.9)), True),  # together within ten seconds
        (((ONE, 0), (TWO, 10)), False),
        ((*BOTH, *ALONE), True),
        ((*BOTH, *ALONE, (ONE, 72)), False),  # alone for a minute, from its first read on
        ((*BOTH, *ALONE[:3], (TWO, 65), (ONE, 76), (ONE, 100)), True),
    ],
)
def test_several_threads_serve_a_port(
    reads: tuple[tuple[Thread, float], ...], several: bool
) -> None:
    known = Readers()
    for thread, at_s in reads:
        known.heard(thread, int(at_s * SECOND_NS))
    assert (known.why_no_filter() is not None) is several


def test_a_port_is_shared_if_several_threads_read_what_one_socket_accepts() -> None:
    listeners = opened(PORT, OTHER_PORT)
    for thread, shared in ((ONE, set[int]()), (TWO, {PORT.local_port})):
        listeners.read(reads(thread))
        assert listeners.shared_ports() == shared
    listeners.opened(Listening(5, 3, PORT, 1), FlowTable(8))  # SO_REUSEPORT: one for each thread
    assert listeners.shared_ports() == frozenset()
