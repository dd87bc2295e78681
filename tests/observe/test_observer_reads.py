# SPDX-License-Identifier: GPL-2.0-or-later
"""What the BPF observer counts of reads, to the byte: a reader on the CPU that its data were
processed on, and on another one."""

from __future__ import annotations

import socket

import pytest

from atfnd.model import ReadBytes
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import HOST, Lab, a_lab
from tests.observe.observing import RIGHT, Watch, directed, lockstep, napis, on_cpu

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")


def read(observer: BpfObserver, lab: Lab) -> ReadBytes:
    found = observer.reads(lab.nic.name)
    assert found is not None
    return found


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
    assert read(observer, shared_lab) == ReadBytes(0, 0, 500)


def test_each_nic_has_its_own_count_under_whatever_name(shared_lab: Lab, watch: Watch) -> None:
    with a_lab() as other:
        observer = watch(shared_lab, other)
        on_cpu(RIGHT)
        here, there = (directed(lab, lab.tcp_pair) for lab in (shared_lab, other))
        lockstep(*here, size=100)
        lockstep(*there, size=30)
        assert read(observer, shared_lab) == ReadBytes(100, 0, 0)
        assert read(observer, other) == ReadBytes(30, 0, 0)
        netns = [other.netns["host"]]
        observer.watch(netns, napis(other))
        lockstep(*here, size=100)
        lockstep(*there, size=30)
        assert observer.reads(shared_lab.nic.name) is None
        assert read(observer, other) == ReadBytes(60, 0, 0)
        observer.watch(netns, {})
        observer.watch(netns, dict.fromkeys(napis(other), "renamed"))
        lockstep(*there, size=30)
        assert observer.reads("renamed") == ReadBytes(30, 0, 0)
