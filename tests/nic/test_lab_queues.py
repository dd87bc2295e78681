# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues of the lab NIC: NAPI threads are where packets are delivered; counters; link flaps."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest
from pyroute2 import IPRoute

from atfnd.kernel.interface import Interface
from atfnd.kernel.system.netns import in_netns
from atfnd.lab.status import lab_status
from atfnd.model import Actuator, Match, Protocol
from atfnd.nic.lab.nic import LabNic
from tests.labs import Lab, a_lab, key_of
from tests.wait import until

__all__: list[str] = []

ETHERNET_HEADER_BYTES = 14
CPUS = sorted(os.sched_getaffinity(0))


def set_link(lab: Lab, role: str, name: str, state: str) -> None:
    def change() -> None:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname=name)[0], state=state)

    in_netns(lab.netns[role], change)


def exchanged(sender: socket.socket, receiver: socket.socket) -> bool:
    """Send, and say whether anything sent has arrived."""
    sender.send(b"x")
    try:
        return bool(receiver.recv(1))
    except BlockingIOError:
        return False


class Counter:
    """One counter of a link; reading it does not block."""

    def __init__(self, lab: Lab, role: str, link: str, name: str) -> None:
        with closing(Interface(link, lab.netns[role])) as interface:
            self._fd = lab.keep(interface.open(f"statistics/{name}"))

    def read(self) -> int:
        return int(os.pread(self._fd, 32, 0))


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


@pytest.mark.parametrize(
    ("role", "link", "family"),
    [("host", "r0", socket.AF_INET6), ("wire", "s0", socket.AF_INET)],
)
def test_link_down_and_up(lab: Lab, role: str, link: str, family: int) -> None:
    sender, receiver = lab.udp_pair(family, 5001, 5002)
    location = lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), 3)
    before = lab.nic.queues()
    assert lab.nic.up()
    set_link(lab, role, link, "down")
    assert not lab.nic.up()
    assert lab_status(lab.name).state == "broken"
    if link == "r0":
        assert [queue.pid for queue in lab.nic.queues()] == [None] * 4
        with pytest.raises(OSError, match="link is down"):
            lab.nic.set_queue_cpu(0, CPUS[0])
    set_link(lab, role, link, "up")
    assert lab.nic.up()
    queues = lab.nic.queues()
    if link == "r0":
        assert {queue.napi_id for queue in queues}.isdisjoint(queue.napi_id for queue in before)
        lab.nic.set_queue_cpu(3, CPUS[-1])
        assert os.sched_getscheduler(lab.nic.queues()[3].pid or 0) == os.SCHED_FIFO
    assert [rule.location for rule in lab.nic.filters()] == [location]
    receiver.setblocking(False)
    until(lambda: exchanged(sender, receiver), "IPv6 takes its address back in its own time")
    assert lab.queue_of(receiver) == 3


def test_the_device_counts_what_the_wire_carried(lab: Lab) -> None:
    """Offloads join and split packets on the way; the counters are those of the wire."""
    client, server = lab.tcp_pair(socket.AF_INET, 5003)
    packets, size = (Counter(lab, "wire", "s0", name) for name in ("tx_packets", "tx_bytes"))
    burst, rounds = bytes(1 << 16), 64  # one fits into a ring
    for _ in range(rounds):
        client.sendall(burst)
        got = 0
        while got < len(burst):
            got += len(server.recv(len(burst)))

    def device() -> tuple[int, int]:
        """Packets and bytes; veth's bytes are those of IP (its receiver counts them)."""
        queues = lab.nic.stats().queues
        total = sum(queue.packets or 0 for queue in queues)
        return total, sum(queue.bytes or 0 for queue in queues) - ETHERNET_HEADER_BYTES * total

    until(lambda: device() == (packets.read(), size.read()), "device and wire agree")
    assert device()[0] >= rounds * len(burst) // 1448
    assert lab.nic.stats().ring_drops == 0


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
