# SPDX-License-Identifier: GPL-2.0-or-later
"""Real packets through a namespace that forwards: gen - f0 [forwards] f1 - sink."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.observe.nics.forwarded import ForwardedPackets, interfaces
from tests.observe.forwards import (
    PACKETS,
    PAYLOAD,
    PORT,
    ForwardingNet,
    between,
    forwarding_net,
    send,
    warmed,
)
from tests.wait import until

Bed = ForwardingNet
HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP
TCP_HEADERS = 14 + 20 + 32  # with its time stamps

pytestmark = pytest.mark.usefixtures("own_affinity")


@pytest.fixture
def bed() -> Iterator[Bed]:
    with forwarding_net() as made:
        yield made


def test_forwarded_packets_are_counted_by_interface_queue_and_cpu(bed: Bed) -> None:
    sender, _ = warmed(bed)
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    with closing(ForwardedPackets()) as counter:
        send(sender, "10.78.1.2")

        def counted() -> int:
            return sum(each.packets for each in between(bed, counter.read()).get(("f0", "f1"), ()))

        until(lambda: counted() >= PACKETS, "all are forwarded")
        found, missed = between(bed, counter.read()), counter.missed()
    (one,) = found["f0", "f1"]  # veth delivers where it sends, so all of it is on our CPU
    assert (one.packets, one.bytes, one.cpu) == (PACKETS, PACKETS * (PAYLOAD + HEADERS), cpu)
    assert one.tx_queue == 0
    assert missed == 0


def test_the_bytes_of_a_connection_are_those_that_it_has_sent(bed: Bed) -> None:
    warmed(bed)
    listener = bed.sink.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("10.78.1.2", PORT))
    listener.listen()
    sender = bed.gen.socket(socket.AF_INET, socket.SOCK_STREAM)
    sender.connect(("10.78.1.2", PORT))
    receiver = bed.sink.stack.enter_context(listener.accept()[0])

    def sent() -> tuple[int, int]:
        """Segments and bytes of data (struct tcp_info, include/uapi/linux/tcp.h)."""
        info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 208)
        return struct.unpack_from("I", info, 156)[0], struct.unpack_from("Q", info, 200)[0]

    with closing(ForwardedPackets()) as counter:
        for _ in range(8):
            sender.sendall(bytes(60_000))
            assert len(receiver.recv(60_000, socket.MSG_WAITALL)) == 60_000
        found, (segments, octets) = between(bed, counter.read())["f0", "f1"], sent()
    assert sum(each.packets for each in found) == segments
    assert sum(each.bytes for each in found) == octets + segments * TCP_HEADERS


def test_what_the_machine_sends_and_receives_itself_is_no_pair(bed: Bed) -> None:
    """Not even the answer of its stack to a packet from outside, which has no socket of a
    process."""
    sender, _ = warmed(bed)
    own = bed.forwards.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with closing(ForwardedPackets()) as counter:
        send(own, "10.78.1.2")
        send(sender, "10.78.0.1")  # nobody listens: ICMP
        with pytest.raises(ConnectionRefusedError):  # by a RST
            bed.gen.socket(socket.AF_INET, socket.SOCK_STREAM).connect(("10.78.0.1", PORT))
        assert between(bed, counter.read()) == {}


def test_nothing_stays_attached(bed: Bed) -> None:
    def attached() -> set[int]:
        done = subprocess.run(["bpftool", "-j", "link"], capture_output=True, text=True, check=True)
        every = json.loads(done.stdout)
        return {each["id"] for each in every if each.get("tp_name") == "net_dev_start_xmit"}

    before = attached()
    counter = ForwardedPackets()
    ours = attached() - before  # and those of others that count at the same time
    assert ours
    counter.close()
    until(lambda: not ours & attached(), "it is detached")


def test_namespaces_have_the_names_that_ip_netns_gives_them(bed: Bed) -> None:
    path = bed.forwards.path
    assert path is not None
    assert interfaces([]).namespaces[os.stat(path).st_ino] == os.path.basename(path)
    assert interfaces(["/run/netns/never-there"])[:2] == ({}, {})
