# SPDX-License-Identifier: GPL-2.0-or-later
"""A CPU that really goes offline and comes back: told by the kernel, no queue is left there, every
flow is served, and no connection breaks. Two sockets of two cores, each a node with one L3."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.kernel.netlink.requests import Changes
from atfnd.kernel.netlink.uevent import cpu_changes
from atfnd.model import Cpu, Match, Protocol, Queue
from atfnd.observe.machine.topology import topology
from atfnd.observe.sockets.transit import Transit
from atfnd.program.quiesce import QueueHold
from tests.applications import delivered
from tests.bed import a_bed
from tests.labs import Lab, key_of
from tests.wait import until

CPU, NEAR = 3, 2
ALONE = (
    Cpu(0, True, 0, 0, 0, (0,), (0, 1)),
    Cpu(1, True, 0, 0, 1, (1,), (0, 1)),
    Cpu(2, True, 1, 1, 0, (2,), (2, 3)),
    Cpu(3, True, 1, 1, 1, (3,), (2, 3)),
)
LIMIT_NS = 20 * 10**9  # of a hold that starves who takes its CPU away, now and then under TCG


@contextmanager
def offline() -> Iterator[None]:
    """The kernel has done it when the write returns."""
    online = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")
    online.write_text("0")
    try:
        yield
    finally:
        online.write_text("1")


@pytest.fixture
def changes() -> Iterator[Changes[int]]:
    with closing(cpu_changes()) as listening:
        yield listening


def reported(changes: Changes[int]) -> set[int] | None:
    assert select.select([changes.fileno()], [], [], 30)[0], "the kernel says nothing"
    return changes.drain()


def test_what_is_known_of_cpus_while_one_is_away(changes: Changes[int]) -> None:
    """The kernel tells of each change; what an offline CPU shared is remembered."""
    before = topology()
    assert before.cpus == ALONE
    assert [(node.cpus, node.distances) for node in before.nodes] == [
        ((0, 1), {0: 10, 1: 21}),
        ((2, 3), {0: 21, 1: 10}),
    ]
    with offline():
        assert reported(changes) == {CPU}
        others = (*ALONE[:NEAR], replace(ALONE[NEAR], llc=(NEAR,)))
        assert topology().cpus == (*others, Cpu(CPU, False, None, None, None, (), ()))
        known = topology(before=before).cpus[CPU]
        assert (known.online, known.node, known.llc) == (False, 1, (2, 3))
    assert reported(changes) == {CPU}
    assert topology() == topology(before=before) == before
    assert changes.drain() == set()


def test_a_daemons_queue_goes_to_the_nearest_cpu_and_back(lab: Lab, tmp_path: Path) -> None:
    """The lab NIC's queues are threads, one to each CPU; the kernel lets one whose CPU goes run
    anywhere."""
    with a_bed(lab, tmp_path, "bpf") as bed:

        def cpus() -> list[int | None]:
            return [queue.cpu for queue in lab.nic.queues()]

        bed.start()
        apps = [bed.apps.tcp(), bed.apps.tcp_connected(), bed.apps.udp_connected()]
        for app in apps:
            app.pin(CPU)
            delivered(bed.meter, app)
        before = cpus()
        nearest = [NEAR if each == CPU else each for each in before]
        with offline():
            until(lambda: cpus() == nearest != before, "its queue is on the nearest CPU", 60)
            for app in apps:
                app.pin(NEAR)
                delivered(bed.meter, app)
        until(lambda: cpus() == before, "its queue is there again", 60)
        for app in apps:
            app.pin(CPU)
            delivered(bed.meter, app)
            assert app.host.process.poll() is app.peer.process.poll() is None
        assert bed.daemon.status()["events_lost"] == 0
        assert bed.daemon.end() == 0
        assert "Traceback" not in bed.daemon.said()


def quiesced(transit: Transit, a: Queue, b: Queue) -> QueueHold | None:
    """None: others had the CPU just now, which is no error of a hold."""
    try:
        return QueueHold(transit, [a], b, time.monotonic_ns() + LIMIT_NS)
    except OSError as refused:
        if refused.errno not in (errno.ETIMEDOUT, errno.EAGAIN):
            raise
        return None


def test_a_queue_that_is_held_when_its_cpu_goes_is_polled_again(lab: Lab) -> None:
    """Its thread runs elsewhere, and so does what kept it from running: the hold says no more that
    it is in force. At its limit it ends by itself, whatever it kept from running."""
    sender, receiver = lab.udp_pair(socket.AF_INET, 5000, 5000)
    lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), CPU)
    # this kernel does not say it, but the lab's are
    a, b = (replace(lab.nic.queues()[index], threaded=True) for index in (0, CPU))
    assert b.cpu == CPU
    with closing(Transit()) as transit:
        transit.start()
        for queue in (a, b):
            transit.watch(queue.napi_id or 0, queue.pid)
        hold = until(lambda: quiesced(transit, a, b), "its CPU is free for the hold")
        assert hold is not None
        try:
            assert hold.in_force()
            with offline():
                sender.send(b"x")
                assert receiver.recv(1) == b"x"
                assert not hold.in_force()
        finally:
            held = hold.release()
    assert not held.unbroken
