# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues of the lab NIC: NAPI threads are where packets are delivered."""

from __future__ import annotations

import os
import socket

import pytest

from atfnd.model import Actuator, Match, Protocol
from atfnd.nic.lab.nic import LabNic
from tests.labs import Lab, a_lab, key_of

__all__: list[str] = []

CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("number", [2, 3, 64])
def test_each_queue_has_a_thread_as_prompt_as_an_interrupt(number: int) -> None:
    with a_lab(queues=number) as lab:
        queues = lab.nic.queues()
        assert [queue.index for queue in queues] == list(range(number))
        assert len({queue.pid for queue in queues}) == number
        assert [queue.napi_id for queue in queues] == sorted(q.napi_id or 0 for q in queues)
        assert [queue.cpu for queue in queues] == [CPUS[i % len(CPUS)] for i in range(number)]
        assert all(queue.threaded and queue.irq is None for queue in queues)
        assert all(os.sched_getscheduler(queue.pid or 0) == os.SCHED_FIFO for queue in queues)


def test_moving_a_queue_moves_its_deliveries(lab: Lab) -> None:
    sender, receiver = lab.udp_pair(socket.AF_INET, 5001, 5002)
    lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), 2)
    for cpu in CPUS * 3:
        lab.nic.set_queue_cpu(2, cpu)
        assert lab.nic.queues()[2].cpu == cpu
        sender.send(b"x")
        assert receiver.recv(1) == b"x"
        assert receiver.getsockopt(socket.SOL_SOCKET, socket.SO_INCOMING_CPU) == cpu
        assert lab.queue_of(receiver) == 2


def test_impossible_queue_or_cpu(lab: Lab) -> None:
    before = lab.nic.queues()
    for queue, cpu in ((4, 0), (-1, 0), (0, 4095)):
        with pytest.raises(OSError, match=r"Invalid argument|no queue"):
            lab.nic.set_queue_cpu(queue, cpu)
    assert lab.nic.queues() == before
    os.sched_setaffinity(before[1].pid or 0, CPUS)  # on several CPUs it has none
    assert lab.nic.queues()[1].cpu == (CPUS[0] if len(CPUS) == 1 else None)


def test_openers_see_one_device(lab: Lab) -> None:
    other = LabNic(lab.name)
    location = other.insert(Match(6, 6, None, 0, None, 0, None, 443), 2)
    assert lab.nic.filters() == other.filters()
    other.close()
    assert lab.nic.filters()[0].location == location
    assert lab.nic.name == f"lab:{lab.name}"
    assert lab.nic.netns == lab.netns["host"]
    assert lab.nic.ring_size() == 256
    assert lab.nic.caps().actuator is Actuator.IN_PLACE
