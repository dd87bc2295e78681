# SPDX-License-Identifier: GPL-2.0-or-later
"""Exact detection: what reaches a socket through the old queue, the new one, and any other; and
what the moves hear of it.

Packets are late when they should be: queue A's NAPI thread is kept from its CPU while the rule
changes and the new queue delivers.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from atfnd.model import FlowKey, Match, Protocol
from atfnd.move.event import Disturbed, Event, EvidenceLost, Idle, Seen, Violated
from atfnd.observe.sockets.passages import Passages
from atfnd.observe.sockets.transit import Late, Transit
from tests.labs import Lab, key_of
from tests.move.holding import under_hold
from tests.observe.observing import cookie
from tests.values import key
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

LONG_NS = 5 * 10**9
A, B, C = 0, 1, 2


class Moving:
    """A connected UDP or TCP flow that a rule delivers to queue A, and what moves it."""

    def __init__(self, lab: Lab, transit: Transit, family: int, protocol: Protocol) -> None:
        self.nic, self.transit = lab.nic, transit
        if protocol is Protocol.UDP:
            self.sender, self.receiver = lab.udp_pair(family, 4000, 5000)
        else:
            self.sender, self.receiver = lab.tcp_pair(family, 5000)
            self.sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flow = key_of(self.receiver, protocol)
        self.cookie = cookie(self.receiver)
        self.queues = self.nic.queues()
        self.napis = [queue.napi_id or 0 for queue in self.queues]
        for queue in (A, B):
            transit.watch(self.napis[queue], self.queues[queue].pid)
        self.location = self.nic.insert(Match.of(self.flow), A)

    def to(self, queue: int) -> None:
        self.nic.insert(Match.of(self.flow), queue, self.location)

    def begin(self, move: int, between: int = 0) -> None:
        self.transit.begin(self.cookie, move, self.napis[A], self.napis[B], between)

    def deliver(self, count: int) -> None:
        """One packet at a time, each read before the next is sent."""
        for _ in range(count):
            self.sender.send(b"x")
            assert self.receiver.recv(1) == b"x"

    def while_stalled(self, what: Callable[[], object]) -> None:
        """Do this with A's ring standing still. (A hold with A in the place of B.)"""
        held = under_hold(self.transit, self.queues[B], self.queues[A], what, LONG_NS)
        assert not held.leaky


@pytest.fixture
def transit() -> Iterator[Transit]:
    with closing(Transit()) as made:
        made.start()
        yield made


def late(transit: Transit) -> list[Late]:
    return [event for event in transit.drain() if isinstance(event, Late)]


@pytest.mark.parametrize(
    ("family", "protocol"), [(socket.AF_INET, Protocol.UDP), (socket.AF_INET6, Protocol.TCP)]
)
def test_each_packet_is_counted_by_the_queue_it_came_through(
    lab: Lab, transit: Transit, family: int, protocol: Protocol
) -> None:
    moving = Moving(lab, transit, family, protocol)
    moving.deliver(3)
    moving.begin(7, between=moving.napis[C])
    before = time.monotonic_ns()
    moving.deliver(5)
    half = transit.read(moving.cookie)
    assert half is not None
    assert (half.a_packets, half.b_packets, half.first_b_ns) == (5, 0, None)
    assert half.last_a_ns is not None
    for queue, count in ((C, 3), (B, 4), (C, 2)):  # after B, this is late
        moving.to(queue)
        moving.deliver(count)
    seen = transit.end(moving.cookie)
    assert seen.move == 7
    assert (seen.a_packets, seen.b_packets, seen.elsewhere_packets) == (5, 4, 5)
    assert seen.elsewhere_napi == moving.napis[C]
    assert seen.first_b_ns is not None
    assert before < half.last_a_ns < seen.first_b_ns < time.monotonic_ns()
    assert seen.last_a_ns == half.last_a_ns
    found = late(transit)
    assert {(event.move, event.napi_id) for event in found} == {(7, moving.napis[C])}
    assert sum(event.packets for event in found) == seen.late_packets == 2
    assert transit.read(moving.cookie) is None


def test_a_ring_is_drained_by_a_poll_that_began_after_the_question(
    lab: Lab, transit: Transit
) -> None:
    moving = Moving(lab, transit, socket.AF_INET, Protocol.UDP)
    napi_a = moving.napis[A]
    until(lambda: transit.idle(napi_a), "its thread sleeps")
    asked = time.monotonic_ns()
    transit.ask(napi_a, asked)
    assert transit.answer(napi_a) is None  # an idle ring says nothing
    moving.deliver(1)
    assert transit.answer(napi_a) is None  # that poll may have begun before the question
    moving.deliver(1)
    answer = until(lambda: transit.answer(napi_a), "a second poll ended")
    assert answer is not None
    assert answer > asked
    transit.ask(napi_a, time.monotonic_ns() + LONG_NS)
    moving.deliver(5)
    assert transit.answer(napi_a) is None  # the time asked about is still to come


def test_a_ring_that_stands_still_is_neither_idle_nor_drained(lab: Lab, transit: Transit) -> None:
    moving = Moving(lab, transit, socket.AF_INET, Protocol.UDP)
    napi_a = moving.napis[A]

    def fill() -> None:
        moving.to(B)
        moving.deliver(1)
        moving.to(A)
        moving.sender.send(b"x")
        transit.ask(napi_a, time.monotonic_ns())
        until(lambda: not transit.idle(napi_a), "the packet is in A's ring")
        assert transit.answer(napi_a) is None

    moving.while_stalled(fill)
    assert moving.receiver.recv(1) == b"x"
    until(lambda: transit.idle(napi_a), "it was polled")


def test_a_ring_that_a_timer_will_poll_is_not_idle(lab: Lab, transit: Transit) -> None:
    """Its interrupt is off, so its thread may sleep although packets have come."""
    moving = Moving(lab, transit, socket.AF_INET, Protocol.UDP)
    napi_a, ring = moving.napis[A], moving.queues[A].index
    until(lambda: transit.idle(napi_a), "its thread sleeps")
    for name, value in (("gro-flush-timeout", 500_000_000), ("defer-hard-irqs", 1)):
        lab.nic.write_setting(f"{name}:{ring}", str(value))
    moving.deliver(1)
    moving.sender.send(b"x")  # not announced
    for _ in range(50):
        assert not transit.idle(napi_a)
    assert moving.receiver.recv(1) == b"x"
    until(lambda: transit.idle(napi_a), "its timer has run out")


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
