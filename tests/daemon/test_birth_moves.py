# SPDX-License-Identifier: GPL-2.0-or-later
"""Births from end to end on the lab NIC: what is reported, decided, written, and then delivered."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.daemon.moving import carry_out
from atfnd.engine import audit
from atfnd.engine.filters import port_filters
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.connects import Connects
from atfnd.model import (
    Accepted,
    Born,
    Connected,
    Connecting,
    FlowKey,
    Forked,
    Listening,
    Mode,
    NicView,
    SocketUse,
)
from atfnd.model.rss_hash import rss_index
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import Established, Event, TimerDue, Wanted
from atfnd.move.mover import Mover
from atfnd.move.timer import Times
from atfnd.move.verdict import Mechanism, Verdict
from atfnd.observe.nics.move_port import read_port
from atfnd.observe.nics.watch import NicWatch
from atfnd.observe.sockets.handshakes import Births
from atfnd.program.actuator import NicActuator
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from tests.engine.test_birth import memory, owning
from tests.labs import HOST, PEER, Lab
from tests.move.driven import driven
from tests.observe.observing import Watch, cookie
from tests.values import RULE
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
STRICT = replace(RULE, order=Mode.STRICT)
PATIENT = Times(verify_ns=30 * 10**9)  # longer than a SYN takes to be sent again
HASTY = Times(verify_ns=50_000_000)


class Nursery:
    """What a daemon does for births, without one."""

    def __init__(self, lab: Lab, path: Path, watch: Watch, undo: ExitStack) -> None:
        self.lab, self.memory = lab, memory()
        self.listeners, self.connects = Listeners(), Connects()
        self.observer = watch(lab)
        self.nic = NicWatch(lab.nic)
        undo.callback(self.nic.close)
        self.nic.inspect()
        journal, undo_journal = FilterJournal(path / "rules"), UndoJournal(path / "originals")
        actuator = NicActuator(lab.nic, journal, undo_journal, lambda: self.nic.facts.queues)
        self.actuator = undo.enter_context(closing(actuator))
        undo.callback(journal.close)
        undo.callback(undo_journal.close)
        self.actuator.start()
        tried = carry_out(self.actuator.trial(lab.nic.name), self.actuator.write)
        assert tried is not None
        assert tried.errno == 0
        self.births = undo.enter_context(closing(Births()))
        self.births.serve([lab.netns["host"]])
        self.births.start()
        self.mover = self.a_mover(PATIENT)
        self.ended: list[Ended] = []

    def a_mover(self, times: Times) -> Mover:
        return Mover(
            self.actuator,
            NicMoves(
                read_port(self.nic.facts, self.nic.nic.interface, self.actuator.write_ns()), times
            ),
        )

    def _cookie(self, key: FlowKey | None) -> int | None:
        flow = None if key is None else self.memory.table.get(key)
        return None if flow is None else flow.cookie

    def reported(self, *kinds: type[Born]) -> list[Born]:
        """Wait until these were reported, and return whatever was."""
        events: list[Born] = []

        def all_came() -> bool:
            drained = self.births.drain()
            events.extend(each for each in drained if not isinstance(each, Forked))  # our threads
            return [type(each) for each in events if type(each) in kinds] == [*kinds]

        until(all_came, f"{kinds} are reported")
        return events

    def tell(self, *events: Event) -> None:
        for said in driven(self.mover, *events):
            if isinstance(said, Ended):
                self.ended.append(said)
            else:
                assert said.errno == 0
                audit.record(said, self.memory)

    def want(self, *births: Wanted) -> None:
        self.tell(*(each._replace(cookie=self._cookie(each.action.key)) for each in births))

    def end(self) -> Ended:
        """Of the one move that is under way."""

        def over() -> bool:
            self.tell(*self.actuator.evidence(self.actuator.now_ns()), TimerDue())
            return bool(self.ended)

        until(over, "the move has ended")
        [ended] = self.ended
        return ended

    @property
    def view(self) -> NicView:
        """It is armed."""
        return replace(NicView.of(self.nic.facts), armed=True)

    def connecting(self, event: Connecting, target: int) -> Wanted:
        self.memory.nics[self.nic.nic.name].owned = owning({target: event.thread})
        rss = rss_index(self.view, event.key)
        assert rss is not None
        born = birth.connecting(
            event, self.view, STRICT, rss, self.connects.distances, self.memory,
            self.actuator.now_ns(),
        )  # fmt: skip
        assert born is not None
        return born

    def listens(self, event: Born) -> None:
        """A server of one thread: ours is not the only one of this process."""
        assert isinstance(event, Listening)
        self.listeners.opened(event._replace(alone=True), self.memory.table)

    def look(self) -> tuple[Wanted, ...]:
        uses: list[SocketUse] = self.observer.inventory()
        now_ns = self.actuator.now_ns()
        return port_filters.look(
            self.view, lambda _, comm: STRICT, self.listeners, uses, self.memory, now_ns
        )


@pytest.fixture
def nursery(lab: Lab, tmp_path: Path, watch: Watch) -> Iterator[Nursery]:
    with ExitStack() as undo:
        yield Nursery(lab, tmp_path, watch, undo)


def a_listener(lab: Lab, role: str, backlog: int) -> socket.socket:
    made = lab.open(role, V4, socket.SOCK_STREAM)
    made.bind(((HOST if role == "host" else PEER)[V4], 5000))
    made.listen(backlog)
    return made


def begin_to_connect(lab: Lab) -> socket.socket:
    """A connect from the host that is not waited for."""
    made = lab.open("host", V4, socket.SOCK_STREAM)
    made.setblocking(False)
    assert made.connect_ex((PEER[V4], 5000)) == errno.EINPROGRESS
    return made


def by_rule(lab: Lab) -> list[int]:
    return [queue.by_filter or 0 for queue in lab.nic.stats().queues]


def test_fifty_connections_are_born_on_their_owners_queue(lab: Lab, nursery: Nursery) -> None:
    nursery.mover = nursery.a_mover(HASTY)
    target = nursery.nic.facts.queues[1]
    os.sched_setaffinity(0, {target.cpu or 0})
    listener = a_listener(lab, "host", 100)
    (event,) = nursery.reported(Listening)
    nursery.listens(event)
    nursery.births.accepts({5000})
    nursery.want(*nursery.look())
    ended = nursery.end()
    assert (ended.mechanism, ended.verdict) == (Mechanism.BIRTH, Verdict.VERIFIED)
    (rule,) = lab.nic.filters()
    assert rule.queue == target.index
    before = by_rule(lab)
    pairs = []
    for _ in range(50):
        client = lab.open("peer", V4, socket.SOCK_STREAM)
        client.connect((HOST[V4], 5000))
        accepted = listener.accept()[0]
        client.send(b"x" * 1000)
        assert accepted.recv(1000)
        pairs.append((client, accepted))
    came = [each.napi_id for each in nursery.births.drain() if isinstance(each, Accepted)]
    assert came == [target.napi_id] * 50
    assert {lab.queue_of(accepted) for _, accepted in pairs} == {target.index}
    after = by_rule(lab)
    packets = [now - then for now, then in zip(after, before, strict=True)]
    assert packets[target.index] >= 3 * 50  # SYN, ACK, data
    assert sum(packets) == packets[target.index]
    assert nursery.look() == ()
    for _, accepted in pairs:
        accepted.close()


def test_a_live_connection_keeps_its_queue_and_its_port_waits(lab: Lab, nursery: Nursery) -> None:
    os.sched_setaffinity(0, {nursery.nic.facts.queues[1].cpu or 0})
    listener = a_listener(lab, "host", 100)
    for event in nursery.reported(Listening):
        nursery.listens(event)
    pairs: list[tuple[socket.socket, socket.socket]] = []

    def off_target() -> bool:
        client = lab.open("peer", V4, socket.SOCK_STREAM)
        client.connect((HOST[V4], 5000))
        pairs.append((client, listener.accept()[0]))
        return lab.queue_of(pairs[-1][1]) != 1

    until(off_target, "RSS delivers one elsewhere")
    assert nursery.look() == ()
    [why] = nursery.listeners.why_not.values()
    assert "live connections would change their queue" in str(why)
    for client, accepted in pairs:
        client.close()
        accepted.close()
    until(nursery.look, "the port gets its rule once they are gone")


def test_a_connect_far_away_is_proven(lab: Lab, nursery: Nursery) -> None:
    """A peer whose queue of connections is full answers a SYN only when it is sent again: a
    second is its distance."""
    listener = a_listener(lab, "peer", 0)
    filler = lab.open("peer", V4, socket.SOCK_STREAM)
    filler.connect((PEER[V4], 5000))
    first = begin_to_connect(lab)
    assert nursery.connects.heard(nursery.reported(Connecting), nursery.memory)
    listener.accept()[0].close()
    nursery.connects.heard(nursery.reported(Connected), nursery.memory)
    second = begin_to_connect(lab)
    [event] = nursery.connects.heard(nursery.reported(Connecting), nursery.memory)
    rss = rss_index(nursery.view, event.key)
    assert rss is not None
    target = (rss + 1) % 4
    nursery.want(nursery.connecting(event, target))
    assert not nursery.ended
    listener.accept()[0].close()
    for each in nursery.reported(Connected):
        if isinstance(each, Connected) and each.cookie == event.cookie:
            nursery.tell(Established(each.key, each.at_ns))
    accepted = listener.accept()[0]
    accepted.send(b"x")
    second.setblocking(True)
    assert second.recv(1) == b"x"
    ended = nursery.end()
    assert (ended.mechanism, ended.verdict) == (Mechanism.BIRTH, Verdict.PROVEN)
    assert lab.queue_of(second) == target
    for made in (first, second, accepted):
        made.close()


def test_a_peer_that_is_nearer_than_it_was_is_unproven(lab: Lab, nursery: Nursery) -> None:
    listener = a_listener(lab, "peer", 10)
    second = begin_to_connect(lab)
    events = nursery.reported(Connecting, Connected)
    [event] = [each for each in events if isinstance(each, Connecting)]
    nursery.connects.distances.learn(event.key.remote, 10**9)
    rss = rss_index(nursery.view, event.key)
    assert rss is not None
    late = event._replace(at_ns=nursery.actuator.now_ns())
    nursery.want(nursery.connecting(late, (rss + 1) % 4))
    for each in events:
        if isinstance(each, Connected):
            nursery.tell(Established(each.key, each.at_ns))
    accepted = listener.accept()[0]
    accepted.send(b"x")
    second.setblocking(True)
    assert second.recv(1) == b"x"
    ended = nursery.end()
    assert (ended.mechanism, ended.verdict) == (Mechanism.BIRTH, Verdict.UNPROVEN)
    assert cookie(second) == event.cookie
    accepted.close()
