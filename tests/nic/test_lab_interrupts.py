# SPDX-License-Identifier: GPL-2.0-or-later
"""A lab whose packets come by interrupts: to the CPU of their queue, and by nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from atfnd.lab.status import lab_status
from atfnd.lab.up import up
from atfnd.model import Match, Protocol
from atfnd.observe.machine.busy import handoffs
from tests.applications import delivered
from tests.bed import a_bed
from tests.daemons import policy
from tests.labs import Lab, a_lab, key_of
from tests.wait import until

CPUS = sorted(os.sched_getaffinity(0))
QUEUES = 4
pytestmark = pytest.mark.usefixtures("own_affinity")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with a_lab(QUEUES, interrupts=True) as made:
        yield made


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_packets_of_a_queue_come_by_an_interrupt_to_its_cpu(lab: Lab, family: int) -> None:
    sender, receiver = lab.udp_pair(family, 5001, 5002)
    location = lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), 0)

    def comes_by_an_interrupt() -> bool:
        before = handoffs() or 0
        sender.send(b"x")
        assert receiver.recv(1) == b"x"
        there = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_INCOMING_CPU)
        assert (lab.queue_of(receiver), there) == (queue, cpu)
        return (handoffs() or 0) > before

    for queue in range(QUEUES):
        lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), queue, location)
        for cpu in CPUS:
            lab.nic.set_queue_cpu(queue, cpu)
            # while a CPU is busy with packets of others, these come without an interrupt
            until(comes_by_an_interrupt, "an interrupt")


def test_it_shows_queues_with_interrupts_whose_cpus_can_be_put_back(lab: Lab) -> None:
    queues = lab.nic.queues()
    assert [queue.cpu for queue in queues] == [CPUS[i % len(CPUS)] for i in range(QUEUES)]
    assert [(queue.threaded, queue.pid) for queue in queues] == [(False, None)] * QUEUES
    found = lab_status(lab.name)
    assert (found.state, found.interrupts) == ("up", True)
    before = dict(lab.nic.settings())
    assert before["queue-cpu:1"] == str(CPUS[1 % len(CPUS)])
    lab.nic.set_queue_cpu(1, CPUS[0])
    assert lab.nic.setting("queue-cpu:1") == str(CPUS[0])
    lab.nic.write_setting("queue-cpu:1", before["queue-cpu:1"])
    assert dict(lab.nic.settings()) == before


def test_a_lab_does_not_change_its_mode(lab: Lab) -> None:
    assert not up(lab.name, interrupts=True)
    with pytest.raises(OperatorError, match="delivered by interrupts"):
        up(lab.name)


def test_immediate_moves_them(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "sock_diag", policy(order="immediate")) as bed:
        bed.start()
        app = bed.apps.tcp()
        bed.steered(app)
        app.migrate()
        delivered(bed.meter, app)
