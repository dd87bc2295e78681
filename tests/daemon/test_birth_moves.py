# SPDX-License-Identifier: GPL-2.0-or-later
"""The birth of a connection, from end to end on the lab NIC: what is reported, decided, written and
delivered. `test_order` has those of a port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.daemon.moving import carry_out
from atfnd.engine import audit
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.connects import Connects
from atfnd.model import (
    Born,
    Connected,
    Connecting,
    FlowKey,
    Forked,
    Mode,
    NicView,
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
from tests.labs import PEER, Lab
from tests.move.driven import driven
from tests.values import RULE
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
STRICT = replace(RULE, order=Mode.STRICT)
PATIENT = Times(verify_ns=30 * 10**9)  # longer than a SYN takes to be sent again


class Nursery:
    """What a daemon does for births, without one."""

    def __init__(self, lab: Lab, path: Path, undo: ExitStack) -> None:
        self.lab, self.memory = lab, memory()
        self.connects = Connects()
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
        port = read_port(self.nic.facts, self.nic.nic.interface, self.actuator.write_ns())
        self.mover = Mover(self.actuator, NicMoves(port, PATIENT))
        self.ended: list[Ended] = []

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


@pytest.fixture
def nursery(lab: Lab, tmp_path: Path) -> Iterator[Nursery]:
    with ExitStack() as undo:
        yield Nursery(lab, tmp_path, undo)


def a_listener(lab: Lab) -> socket.socket:
    """Whose queue of connections is full after one."""
    made = lab.open("peer", V4, socket.SOCK_STREAM)
    made.bind((PEER[V4], 5000))
    made.listen(0)
    return made


def begin_to_connect(lab: Lab) -> socket.socket:
    """A connect from the host that is not waited for."""
    made = lab.open("host", V4, socket.SOCK_STREAM)
    made.setblocking(False)
    assert made.connect_ex((PEER[V4], 5000)) == errno.EINPROGRESS
    return made


def test_a_connect_far_away_is_proven(lab: Lab, nursery: Nursery) -> None:
    """A peer whose queue of connections is full answers a SYN only when it is sent again: a
    second is its distance."""
    listener = a_listener(lab)
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
