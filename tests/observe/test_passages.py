# SPDX-License-Identifier: GPL-2.0-or-later
"""What the moves hear of a flow that is watched: where it was delivered, since when not, what
was late, and when nothing is known."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.model import FlowKey, Match, Protocol
from atfnd.move.event import Disturbed, Event, EvidenceLost, Idle, Seen, Violated
from atfnd.observe.sockets.passages import Passages
from atfnd.observe.sockets.transit import Transit
from tests.labs import Lab, key_of
from tests.observe.observing import cookie
from tests.values import key

A, B, C = 0, 1, 2


class Watched:
    """A flow through queue A, watched on its way to B."""

    def __init__(self, lab: Lab, transit: Transit) -> None:
        self.nic, self.passages = lab.nic, Passages(transit)
        self.sender, self.receiver = lab.udp_pair(socket.AF_INET, 4000, 5000)
        self.flow = key_of(self.receiver, Protocol.UDP)
        self.cookie = cookie(self.receiver)
        self.location = self.nic.insert(Match.of(self.flow), A)
        self.watch(self.flow, self.cookie)

    def watch(self, flow: FlowKey, of: int) -> None:
        queues = self.nic.queues()
        self.passages.watch(flow, of, queues[A], queues[B], queues)

    def to(self, queue: int, count: int = 1) -> list[Event]:
        """Deliver packets through a queue; what is reported of it."""
        self.nic.insert(Match.of(self.flow), queue, self.location)
        for _ in range(count):
            self.sender.send(b"x")
            assert self.receiver.recv(1) == b"x"
        return self.passages.events()


@pytest.fixture
def watched(lab: Lab) -> Iterator[Watched]:
    with closing(Transit(flows=1)) as transit:
        transit.start()
        yield Watched(lab, transit)


def test_the_last_delivery_through_each_queue_is_reported_once(watched: Watched) -> None:
    [idle] = watched.passages.events()
    assert isinstance(idle, Idle)
    assert idle.since_ns < time.monotonic_ns()  # since it is watched
    for queue in (A, B, C, B):
        began_ns = time.monotonic_ns()
        seen, idle = watched.to(queue)
        assert isinstance(seen, Seen)
        assert (seen.subject, seen.queue) == (watched.flow, queue)
        assert began_ns < seen.at_ns < time.monotonic_ns()
        assert idle == Idle(watched.flow, seen.at_ns)
        assert watched.passages.events() == [idle]
        assert watched.passages.delivered_ns(watched.flow) == seen.at_ns
    assert watched.passages.delivered_ns(key(1)) is None


@pytest.mark.parametrize("written", [False, True], ids=["by us", "by another program"])
def test_violations_are_reported_before_what_ends_a_move(watched: Watched, written: bool) -> None:
    """Those of packets that were led there before the write are not of the move."""
    watched.to(B)
    if written:
        watched.passages.wrote(watched.flow, time.monotonic_ns())
    began_ns = time.monotonic_ns()
    *disturbed, late, seen, idle = watched.to(A, 5)
    assert disturbed == [Disturbed(watched.flow)] * written
    assert isinstance(late, Violated)
    assert (late.key, late.packets) == (watched.flow, 5)
    assert began_ns < late.at_ns < time.monotonic_ns()
    assert [type(each) for each in (seen, idle)] == [Seen, Idle]


def test_violations_of_a_move_that_is_over_are_nobodys(watched: Watched) -> None:
    watched.to(B)
    watched.nic.insert(Match.of(watched.flow), A, watched.location)
    watched.sender.send(b"x")
    watched.receiver.recv(1)
    watched.passages.unwatch(watched.flow)
    watched.watch(watched.flow, watched.cookie)
    assert [type(each) for each in watched.passages.events()] == [Idle]


def test_what_cannot_be_watched_or_was_lost_is_lost_evidence(watched: Watched) -> None:
    with pytest.raises(OSError, match="map update"):
        watched.watch(key(1), 1)  # one too many
    watched.passages.unwatch(key(1))  # which changes nothing
    watched.passages.miss()
    assert [type(each) for each in watched.passages.events()] == [EvidenceLost, Idle]
    assert [type(each) for each in watched.passages.events()] == [Idle]
    watched.to(B)
    reported = watched.to(A, 6000)  # more than the ring buffer has room for
    assert EvidenceLost() in reported
