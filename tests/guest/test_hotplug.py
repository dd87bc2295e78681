# SPDX-License-Identifier: GPL-2.0-or-later
"""A CPU that really goes offline and comes back: told by the kernel, and no queue is left there."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.engine.placement.queues import confine, homeless
from atfnd.kernel.netlink.requests import Changes
from atfnd.kernel.netlink.uevent import cpu_changes
from atfnd.model import Match, Protocol, Queue
from atfnd.model.reason import Code
from atfnd.observe.machine.topology import topology
from atfnd.observe.sockets.transit import Transit
from atfnd.program.quiesce import QueueHold
from tests.labs import Lab, key_of
from tests.wait import until

__all__: list[str] = []

CPU = 3
LIMIT_NS = 20 * 10**9  # of a hold that starves who takes its CPU away, now and then under TCG


def set_online(online: bool, cpu: int = CPU) -> None:
    """Returns when the kernel has done it."""
    Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(str(int(online)))


@contextmanager
def offline(cpu: int = CPU) -> Iterator[None]:
    set_online(False, cpu)
    try:
        yield
    finally:
        set_online(True, cpu)


@pytest.fixture
def changes() -> Iterator[Changes[int]]:
    with closing(cpu_changes()) as listening:
        yield listening


def reported(changes: Changes[int]) -> set[int] | None:
    assert select.select([changes.fileno()], [], [], 30)[0], "the kernel says nothing"
    return changes.drain()


def test_the_kernel_tells_of_a_cpu_that_goes_and_comes(changes: Changes[int]) -> None:
    with offline():
        assert reported(changes) == {CPU}
        assert [cpu.index for cpu in topology().cpus if not cpu.online] == [CPU]
    assert reported(changes) == {CPU}
    assert all(cpu.online for cpu in topology().cpus)
    assert changes.drain() == set()


def test_more_changes_than_the_socket_holds_are_not_taken_for_none(changes: Changes[int]) -> None:
    """A uevent is about 200 bytes, the socket holds some hundreds: `udevadm trigger` by hand."""
    for _ in range(2000):
        Path(f"/sys/devices/system/cpu/cpu{CPU}/uevent").write_text("change")
    assert reported(changes) is None
    assert changes.drain() == set()


def test_what_an_offline_cpu_shared_is_remembered() -> None:
    """Two sockets of two cores: CPUs 2 and 3 are on node 1 and share its L3."""
    before = topology()
    assert [cpu.node for cpu in before.cpus] == [0, 0, 1, 1]
    assert [node.distances for node in before.nodes] == [{0: 10, 1: 21}, {0: 21, 1: 10}]
    with offline():
        forgot = topology().cpus[CPU]
        assert (forgot.online, forgot.llc) == (False, ())
        known = topology(before=before).cpus[CPU]
        assert (known.online, known.node, known.llc) == (False, 1, (2, 3))
    assert topology(before=before) == before


@pytest.mark.parametrize(("gone", "nearest"), [((3,), 2), ((2, 3), 0)])
def test_a_queue_goes_to_the_nearest_cpu(lab: Lab, gone: tuple[int, ...], nearest: int) -> None:
    """The lab NIC's queues are threads, one to each CPU; the kernel lets one whose CPU goes run
    anywhere."""
    before, queues = topology(), lab.nic.queues()
    assert [queue.cpu for queue in queues] == [0, 1, 2, 3]
    with ExitStack() as undo:
        for cpu in gone:
            undo.enter_context(offline(cpu))
        assert lab.nic.queues()[CPU].cpu is None
        moves = homeless(queues, topology(before=before))
        assert [queue.index for queue, _ in moves] == list(gone)
        for action in confine(lab.nic.name, moves, Code.NEAREST()):
            assert action.queue is not None
            assert action.new is not None
            lab.nic.set_queue_cpu(action.queue, action.new)
        cpus = [queue.cpu for queue in lab.nic.queues()]
        assert cpus[:2] == [0, 1]
        assert not set(cpus) & set(gone)
        assert cpus[min(gone)] == nearest


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
