# SPDX-License-Identifier: GPL-2.0-or-later
"""Real packets through a namespace that forwards: gen - f0 [forwards] f1 - sink."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple

import pytest

from atfnd.model import ForwardedCount
from atfnd.observe.nics.forwarded import ForwardedPackets, interface_names, namespace
from tests.netns import Net
from tests.wait import until

__all__: list[str] = []

PACKETS, PAYLOAD = 50, 100
HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP
TCP_HEADERS = 14 + 20 + 32  # with its time stamps
UDP_SEGMENT = 103  # include/uapi/linux/udp.h
PORT = 9

pytestmark = pytest.mark.usefixtures("own_affinity")


class Bed(NamedTuple):
    gen: Net
    forwards: Net
    sink: Net

    def names(self) -> dict[tuple[int, int], str]:
        return interface_names([self.forwards.path])


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def bed() -> Iterator[Bed]:
    with ExitStack() as stack:
        made = Bed(Net(stack), Net(stack), Net(stack))
        host = made.forwards.name
        ends = ((made.gen, "g0", "f0", "10.78.0"), (made.sink, "s0", "f1", "10.78.1"))
        for far, device, near, prefix in ends:
            ip(*f"link add {near} netns {host} type veth peer name {device}".split(),
               "netns", far.name)  # fmt: skip
            for net, name, last in ((host, near, 1), (far.name, device, 2)):
                ip("-n", net, "addr", "add", f"{prefix}.{last}/24", "dev", name)
                ip("-n", net, "link", "set", name, "up")
            ip("-n", far.name, "route", "add", "default", "via", f"{prefix}.1")
        inside = ("ip", "netns", "exec", host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        subprocess.run(inside, check=True)
        yield made


def send(sender: socket.socket, address: str, packets: int = PACKETS) -> None:
    for _ in range(packets):
        sender.sendto(bytes(PAYLOAD), (address, PORT))


def between(bed: Bed, counts: list[ForwardedCount]) -> dict[tuple[str, str], list[ForwardedCount]]:
    """By the names of ingress and egress, of the namespace that forwards."""
    names, found = bed.names(), dict[tuple[str, str], list[ForwardedCount]]()
    for each in counts:
        if each.netns == namespace(bed.forwards.path):
            pair = (names[each.netns, each.ingress_ifindex], names[each.netns, each.egress_ifindex])
            found.setdefault(pair, []).append(each)
    return found


def warmed(bed: Bed) -> tuple[socket.socket, socket.socket]:
    """A sender and a receiver; both neighbours are known, so no packet waits for an answer."""
    sender = bed.gen.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink = bed.sink.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("10.78.1.2", PORT))
    sink.setblocking(False)

    def came() -> bool:
        send(sender, "10.78.1.2", 1)
        try:
            return bool(sink.recv(PAYLOAD))
        except BlockingIOError:
            return False

    until(came, "a packet comes through")
    return sender, sink


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


def test_each_segment_that_the_nic_cuts_has_headers_of_its_own(bed: Bed) -> None:
    sender, _ = warmed(bed)
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PAYLOAD)
    with closing(ForwardedPackets()) as counter:
        sender.sendto(bytes(PACKETS * PAYLOAD), ("10.78.1.2", PORT))  # one packet, until it is cut
        until(lambda: ("f0", "f1") in between(bed, counter.read()), "it is forwarded")
        found = between(bed, counter.read())["f0", "f1"]
    assert sum(each.packets for each in found) == PACKETS
    assert sum(each.bytes for each in found) == PACKETS * (PAYLOAD + HEADERS)


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


def test_a_namespace_that_is_gone_has_no_names() -> None:
    assert interface_names(["/run/netns/never-there"]) == {}
