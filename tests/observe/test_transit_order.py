# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves under a stalled NAPI, with real packets: what transit counts is what a receiver of numbered
datagrams sees, move by move; and under a hold it is nothing.

The old queue's CPU is taken for 3 of every 10 ms by a SCHED_FIFO process above its NAPI thread.
"""

from __future__ import annotations

import bisect
import errno
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from atfnd.model import Match, Protocol
from atfnd.observe.sockets.transit import HoldEnd, HoldResult, Late, Passage, Transit
from bench.traffic.sequence import Tally, sequence, stalled
from tests.labs import Lab, key_of
from tests.move.holding import under_hold
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

SO_COOKIE = 57  # asm-generic/socket.h
RATE_PPS = 20_000
STALL_MS = 3.0
LIMIT_NS = 100 * 10**6  # far more than a stall


class Mover:
    """One flow of numbered datagrams, and the two queues it goes back and forth between."""

    def __init__(self, lab: Lab, transit: Transit) -> None:
        self.nic, self.transit = lab.nic, transit
        self.sender, self.receiver = lab.udp_pair(socket.AF_INET, 4000, 5000)
        self.match = Match.of(key_of(self.receiver, Protocol.UDP))
        raw = self.receiver.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
        self.cookie = int.from_bytes(raw, sys.byteorder)
        self.a, self.b = self.nic.queues()[:2]
        self.location = self.nic.insert(self.match, self.a.index)
        for queue in (self.a, self.b):
            transit.watch(queue.napi_id or 0, queue.pid)
        self.began_ns: list[int] = []  # CLOCK_REALTIME
        self.late: Counter[int] = Counter()  # by move

    def write(self) -> None:
        self.nic.insert(self.match, self.b.index, self.location)

    def move(self, how: Callable[[], bool]) -> None:
        """One move of a flow that has packets before and after it, over when A has nothing more of
        them; turned round if it was written."""
        napi_a, napi_b = self.a.napi_id or 0, self.b.napi_id or 0
        self.transit.begin(self.cookie, len(self.began_ns), napi_a, napi_b)
        self.began_ns.append(time.time_ns())
        until(lambda: self.seen().a_packets, "packets through the old queue")
        if how():
            until(lambda: self.seen().b_packets, "packets through the new queue")
            until(lambda: self.transit.idle(napi_a), "the old queue is empty")
            self.a, self.b = self.b, self.a
        self.transit.end(self.cookie)
        self.count()

    def seen(self) -> Passage:
        seen = self.transit.read(self.cookie)
        assert seen is not None
        return seen

    def count(self) -> None:
        for event in self.transit.drain():
            if isinstance(event, Late):
                self.late[event.move] += event.packets

    def seen_by_receiver(self, tally: Tally) -> Counter[int]:
        return Counter(bisect.bisect(self.began_ns, at) - 1 for at in tally.late_ns)


@pytest.fixture
def mover(lab: Lab) -> Iterator[Mover]:
    with closing(Transit()) as transit:
        transit.start()
        yield Mover(lab, transit)


def test_violations_are_those_the_receiver_sees_move_by_move(mover: Mover) -> None:
    os.sched_setaffinity(0, {mover.b.cpu or 0})  # not to be stalled with the queue

    def naive() -> bool:
        mover.write()
        return True

    def enough() -> bool:
        mover.move(naive)
        return len(mover.late) >= 20

    with sequence(mover.sender, mover.receiver, RATE_PPS) as running:
        with stalled(mover.a.cpu or 0, STALL_MS):
            until(enough, "twenty moves reordered the flow", deadline_s=60)
        tally = running.finish()
    mover.count()
    assert mover.transit.lost() == 0
    assert mover.late == mover.seen_by_receiver(tally)


def test_no_move_under_a_hold_reorders(mover: Mover) -> None:
    helds: list[HoldResult] = []

    def held() -> bool:
        try:
            helds.append(under_hold(mover.transit, mover.a, mover.b, mover.write, LIMIT_NS))
        except OSError as refusal:  # the hog has the CPU that is to be held, or A's: another time
            if refusal.errno not in (errno.ETIMEDOUT, errno.EAGAIN):
                raise
            return False
        return True

    def enough() -> bool:
        mover.move(held)
        return len(helds) >= 300

    with sequence(mover.sender, mover.receiver, RATE_PPS) as running:
        with stalled(mover.a.cpu or 0, STALL_MS):
            until(enough, "three hundred holds", 100)
        tally = running.finish()
    mover.count()
    assert {held.end for held in helds} <= {HoldEnd.DRAINED, HoldEnd.IDLE}
    assert all(held.unbroken for held in helds)
    assert tally.received > 0
    assert tally.late_ns == []
    assert mover.late == Counter()
