# SPDX-License-Identifier: GPL-2.0-or-later
"""What the moves hear of a flow that is watched: where it was delivered, since when not, what
was late, and when nothing is known."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.model import FlowKey, Match, Protocol
from atfnd.move.event import Disturbed, Event, EvidenceLost, Idle, Seen, Violated
from atfnd.observe.sockets.passages import Passages
from atfnd.observe.sockets.transit import Transit
from tests.labs import Lab, key_of
from tests.values import key

SO_COOKIE = 57  # asm-generic/socket.h
A, B, C = 0, 1, 2


class Watched:
    """A flow through queue A, watched on its way to B."""

    def __init__(self, lab: Lab, transit: Transit) -> None:
        self.nic, self.passages = lab.nic, Passages(transit)
        self.sender, self.receiver = lab.udp_pair(socket.AF_INET, 4000, 5000)
        self.flow = key_of(self.receiver, Protocol.UDP)
        raw = self.receiver.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
        self.cookie = int.from_bytes(raw, sys.byteorder)
        self.location = self.nic.insert(Match.of(self.flow), A)
        self.watch(self.flow, self.cookie)

    def watch(self, flow: FlowKey, cookie: int) -> None:
        queues = self.nic.queues()
        self.passages.watch(flow, cookie, queues[A], queues[B], queues)

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
    for queue in (A, B, C, B):
        began_ns = time.monotonic_ns()
        seen, idle = watched.to(queue)
        assert isinstance(seen, Seen)
        assert isinstance(idle, Idle)
        assert (seen.subject, seen.queue) == (watched.flow, queue)
        assert began_ns < seen.at_ns < time.monotonic_ns()
        assert idle == Idle(watched.flow, seen.at_ns)
        assert watched.passages.events() == [idle]
        assert watched.passages.delivered_ns(watched.flow) == seen.at_ns


def test_a_flow_without_packets_is_idle_since_it_is_watched(watched: Watched) -> None:
    [idle] = watched.passages.events()
    assert isinstance(idle, Idle)
    assert idle.since_ns < time.monotonic_ns()
    assert watched.passages.delivered_ns(key(1)) is None


def test_violations_are_reported_before_what_ends_a_move(watched: Watched) -> None:
    watched.to(B)
    began_ns = time.monotonic_ns()
    late, *seen = watched.to(A, 5)
    assert isinstance(late, Violated)
    assert (late.key, late.packets) == (watched.flow, 5)
    assert began_ns < late.at_ns < time.monotonic_ns()
    assert [type(each) for each in seen] == [Seen, Idle]


def test_packets_that_were_led_there_before_the_write(watched: Watched) -> None:
    """By another program, as by a delete of the filter that was to be deleted."""
    watched.to(B)
    watched.passages.wrote(watched.flow, time.monotonic_ns())
    disturbed, late, *_ = watched.to(A, 5)
    assert disturbed == Disturbed(watched.flow)
    assert isinstance(late, Violated)


def test_violations_of_a_move_that_is_over_are_nobodys(watched: Watched) -> None:
    watched.to(B)
    for _ in range(3):
        watched.sender.send(b"x")
        watched.receiver.recv(1)
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
