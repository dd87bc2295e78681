# SPDX-License-Identifier: GPL-2.0-or-later
"""The hold of a queue: when it is refused, how it ends, what it leaves behind, and that it fails
open. That it keeps the order is in tests/daemon/test_order.py."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from atfnd.model import Match, Protocol, Queue
from atfnd.observe.sockets.transit import HoldEnd, Transit
from atfnd.program.quiesce import QueueHold
from tests.labs import Lab, key_of
from tests.move.holding import hold_of, patiently, under_hold
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

LIMIT_NS = 5 * 10**6
LONG_NS = 10**9
A, B = 0, 1
UNPOLLED = 0xFFFFFF  # no NAPI has this id


@pytest.fixture
def transit(lab: Lab) -> Iterator[Transit]:
    """Watches the lab's first two queues."""
    with closing(Transit()) as made:
        made.start()
        for queue in queues(lab):
            made.watch(queue.napi_id or 0, queue.pid)
        yield made


def queues(lab: Lab) -> tuple[Queue, Queue]:
    return lab.nic.queues()[A], lab.nic.queues()[B]


def pair(lab: Lab) -> tuple[list[Queue], Queue]:
    a, b = queues(lab)
    return [a], b


class Flow:
    """A UDP flow that comes through one queue."""

    def __init__(self, lab: Lab, port: int, queue: int) -> None:
        self.sender, self.receiver = lab.udp_pair(socket.AF_INET, port, port)
        lab.nic.insert(Match.of(key_of(self.receiver, Protocol.UDP)), queue)

    def deliver(self) -> None:
        self.sender.send(b"x")
        assert self.receiver.recv(1) == b"x"


@pytest.fixture
def through_a(lab: Lab) -> Flow:
    """Polled at least once, so that it is known whether it is idle."""
    return Flow(lab, 5000, A)


@pytest.fixture
def through_b(lab: Lab) -> Flow:
    return Flow(lab, 5001, B)


def seat(queue: Queue) -> tuple[set[int], int, int]:
    assert queue.pid is not None
    priority = os.sched_getparam(queue.pid).sched_priority
    return os.sched_getaffinity(queue.pid), os.sched_getscheduler(queue.pid), priority


def own_seat() -> tuple[set[int], int, int]:
    return os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority


def test_a_queue_is_held_until_each_of_the_others_has_delivered(
    lab: Lab, transit: Transit, through_a: Flow, through_b: Flow
) -> None:
    a, b = queues(lab)
    c = lab.nic.queues()[2]
    before, ours = seat(b), own_seat()
    through_c = Flow(lab, 5002, c.index)
    through_a.deliver()
    through_c.deliver()
    transit.watch(c.napi_id or 0, c.pid)
    assert c.pid is not None
    assert c.cpu is not None
    assert b.cpu is not None
    hold = hold_of(transit, [a, c], b, LONG_NS)
    os.sched_setaffinity(c.pid, {b.cpu})  # kept from both: C stands still
    through_c.sender.send(b"x")
    until(lambda: (lab.nic.stats().queues[c.index].packets or 0) > 1, "it is in C's ring")
    through_b.sender.send(b"y")
    through_a.deliver()
    through_b.receiver.setblocking(False)
    hold.settle(time.monotonic_ns())
    assert not hold.settled(time.monotonic_ns() + LIMIT_NS)
    with pytest.raises(BlockingIOError):
        through_b.receiver.recv(1)
    os.sched_setaffinity(c.pid, {c.cpu})
    assert hold.settled(time.monotonic_ns() + LONG_NS)
    held = hold.release()
    through_b.receiver.settimeout(10)
    assert (through_b.receiver.recv(1), through_c.receiver.recv(1)) == (b"y", b"x")
    assert (held.end, held.leaky, held.unbroken) == (HoldEnd.IDLE, False, True)
    assert [proof.end is not None for proof in held.proofs] == [True, True]
    first, last = held.proofs
    assert held.effective_ns <= first.at_ns <= last.at_ns <= held.released_ns
    assert (seat(b), own_seat()) == (before, ours)


def test_no_hold_begins_when_its_limit_is_over(lab: Lab, transit: Transit, through_b: Flow) -> None:
    ours = own_seat()
    with pytest.raises(OSError, match=r"queue|CPU") as refusal:
        QueueHold(transit, *pair(lab), time.monotonic_ns())
    assert refusal.value.errno in (errno.EAGAIN, errno.ETIMEDOUT)
    assert own_seat() == ours
    through_b.deliver()


def test_no_hold_begins_while_the_other_queue_stands_still(
    lab: Lab, transit: Transit, through_b: Flow
) -> None:
    a, b = queues(lab)
    still = replace(a, napi_id=UNPOLLED)
    transit.watch(UNPOLLED, None)

    def hold() -> QueueHold:
        return QueueHold(transit, [still], b, time.monotonic_ns() + LIMIT_NS)

    with pytest.raises(OSError, match=r"queue 0 stands still") as refusal:
        patiently(hold, (TimeoutError,))
    assert refusal.value.errno == errno.EAGAIN
    through_b.deliver()


def test_a_poll_during_the_hold_is_noticed(
    lab: Lab, transit: Transit, through_a: Flow, through_b: Flow
) -> None:
    through_a.deliver()
    a, b = queues(lab)
    assert b.pid is not None
    pid, free = b.pid, os.sched_getaffinity(0) - {b.cpu}

    def write() -> None:
        os.sched_setaffinity(pid, free)  # as somebody might
        through_b.deliver()

    held = under_hold(transit, a, b, write, LONG_NS)
    assert (held.end, held.leaky, held.unbroken) == (HoldEnd.IDLE, True, False)


def test_a_queue_that_cannot_be_held_is_refused(lab: Lab, transit: Transit) -> None:
    a, b = queues(lab)
    assert b.pid is not None
    assert b.cpu is not None
    everywhere = os.sched_getaffinity(0)

    def refused(queue: Queue) -> int | None:
        with pytest.raises(OSError, match=r"queue|CPU") as refusal:
            QueueHold(transit, [a], queue, time.monotonic_ns() + LIMIT_NS)
        return refusal.value.errno

    assert refused(replace(b, threaded=False)) == errno.EOPNOTSUPP
    os.sched_setaffinity(0, {b.cpu})
    assert refused(b) == errno.EINVAL  # no CPU left to write from
    os.sched_setaffinity(0, everywhere)
    os.sched_setscheduler(b.pid, os.SCHED_FIFO, os.sched_param(99))
    assert refused(b) == errno.EINVAL
    os.sched_setscheduler(b.pid, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(b.pid, everywhere)
    assert refused(b) == errno.EINVAL
    os.sched_setaffinity(b.pid, {b.cpu})
    with pytest.raises(KeyError):
        QueueHold(transit, [a], replace(b, napi_id=1), time.monotonic_ns() + LIMIT_NS)
    transit.stop()
    with pytest.raises(ValueError, match="not started"):  # nobody would see B polled
        QueueHold(transit, [a], b, time.monotonic_ns() + LIMIT_NS)
    transit.start()
    assert hold_of(transit, [a], b, LIMIT_NS).release().effective_ns
