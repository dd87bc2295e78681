# SPDX-License-Identifier: GPL-2.0-or-later
"""What the BPF observer counts of reads, to the byte, always and for a survey: by the CPUs of the
reading and of the processing, and by thread."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from atfnd.model import Clause, ReadBytes, Survey, SurveyedReads
from atfnd.observe import Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import HOST, Lab, a_lab
from tests.observe.observing import (
    RIGHT,
    WRONG,
    Watch,
    directed,
    lockstep,
    napis,
    on_cpu,
    wanders_to,
)

pytestmark = pytest.mark.usefixtures("own_affinity")


def test_of_unconnected_udp_no_cpu_is_known(shared_lab: Lab, watch: Watch) -> None:
    """Also where it has SO_INCOMING_CPU, which no packet has written."""
    observer = watch(shared_lab)
    receiver = shared_lab.open("host", socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((HOST[socket.AF_INET], 0))
    sender = shared_lab.open("peer", socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    lockstep(sender, receiver, times=3, size=100)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_INCOMING_CPU, RIGHT)
    on_cpu(RIGHT)
    lockstep(sender, receiver, times=2, size=100)
    assert observer.reads(shared_lab.nic.name) == ReadBytes(0, 0, 500)


ME = Path("/proc/self/comm").read_text().strip()


def surveyed(observer: BpfObserver) -> Survey:
    found = Survey.of(part() for part in observer.end_survey())
    return Survey(tuple(sorted(found.rows, key=lambda row: row.read_cpu)), found.missed)


def mine(lab: Lab, **differs: object) -> SurveyedReads:
    """A row of this thread, pinned to RIGHT where its packets arrive."""
    row = SurveyedReads(
        nic=lab.nic.name,
        tid=threading.get_native_id(),
        pid=os.getpid(),
        application=ME,
        read_cpu=RIGHT,
        rx_cpu=RIGHT,
        left=False,
        bytes=0,
        calls=0,
        accepted=0,
        port=None,
        allowed=1,
    )
    return row._replace(**differs)  # type: ignore[arg-type]


def test_every_read_is_counted_by_thread_and_by_both_cpus(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab)
    sender, receiver = directed(shared_lab, shared_lab.udp_pair)
    on_cpu(RIGHT)
    lockstep(sender, receiver, times=3, size=100)  # before: nobody asked
    assert observer.begin_survey()
    lockstep(sender, receiver, times=20, size=100)
    on_cpu(WRONG)
    lockstep(sender, receiver, times=7, size=300)
    lockstep(receiver, sender, times=5, size=50)  # what it sends is not read from this NIC
    sender.send(bytes(10))
    receiver.recv(10, socket.MSG_PEEK)
    assert surveyed(observer) == Survey(
        (
            mine(shared_lab, bytes=2000, calls=20),
            mine(shared_lab, bytes=2100, calls=7, read_cpu=WRONG),
        ),
        missed=0,
    )


def test_the_first_read_of_an_accepted_connection_is_counted(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab)
    observer.begin_survey()
    on_cpu(RIGHT)
    pairs = [directed(shared_lab, shared_lab.tcp_pair) for _ in range(2)]
    for pair in pairs:
        lockstep(*pair, times=4)
    [row] = surveyed(observer).rows
    port = pairs[-1][1].getsockname()[1]
    assert (row.calls, row.accepted, row.port) == (8, 2, port)


def test_what_the_policy_leaves_alone_is_told_once_it_was_judged(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    observer.qualify(Qualify(0, 0, 0, clauses=(Clause(True),)))
    on_cpu(WRONG)
    lockstep(*pair, times=2)  # judged when it is used off its CPU
    observer.begin_survey()
    lockstep(*pair, times=6, size=10)
    assert surveyed(observer).rows == (
        mine(shared_lab, read_cpu=WRONG, left=True, bytes=60, calls=6),
    )
    observer.begin_survey()
    wanders_to(RIGHT)
    lockstep(*pair, times=5)
    assert {row.allowed for row in surveyed(observer).rows} == {2}  # CPUs that it may run on


def test_each_nic_has_its_counts_under_whatever_name_and_one_that_has_gone_is_missed(
    shared_lab: Lab, watch: Watch
) -> None:
    with a_lab() as other:
        observer = watch(shared_lab, other)
        on_cpu(RIGHT)
        here, there = (directed(lab, lab.udp_pair) for lab in (shared_lab, other))
        netns, counted = [other.netns["host"]], 0
        for gone, rows in ((False, {shared_lab.nic.name: 100}), (True, {})):
            observer.begin_survey()
            lockstep(*here, size=100)
            lockstep(*there, size=30)
            counted += 30
            if gone:
                observer.watch(netns, napis(other))
            found = surveyed(observer)
            assert {row.nic: row.bytes for row in found.rows} == rows | {other.nic.name: 30}
            assert found.missed == (100 if gone else 0)
            here_read = None if gone else ReadBytes(100, 0, 0)
            assert observer.reads(shared_lab.nic.name) == here_read
            assert observer.reads(other.nic.name) == ReadBytes(counted, 0, 0)
        observer.watch(netns, {})
        observer.watch(netns, dict.fromkeys(napis(other), "renamed"))
        lockstep(*there, size=30)
        assert observer.reads("renamed") == ReadBytes(30, 0, 0)
