# SPDX-License-Identifier: GPL-2.0-or-later
"""Through which queue a connection was established is reported only where nothing before it is
missing.

The peer is ours, segment by segment, from an address that nobody has.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.model import Accepted, Protocol
from atfnd.observe.sockets.handshakes import Births
from tests.labs import HOST, Lab, packed
from tests.nic.packets import ipv4
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
NOBODY, PORT, REMOTE_PORT = "10.8.0.77", 5000, 7000
ETH_P_IP = 0x0800
SYN, ACK = 0x02, 0x10
FIRST = 1000  # sequence number of our SYN


def segment(sequence: int, acknowledged: int, flags: int, data: bytes = b"") -> bytes:
    """A TCP segment from NOBODY to the host, with its checksum (RFC 9293, 3.1)."""
    ends = packed(NOBODY) + packed(HOST[V4])

    def header(checksum: int) -> bytes:
        ports = REMOTE_PORT, PORT
        return struct.pack("!HHIIBBHHH", *ports, sequence, acknowledged, 0x50, flags, 65535,
                           checksum, 0)  # fmt: skip

    pseudo = ends + struct.pack("!BBH", 0, Protocol.TCP, 20 + len(data))
    whole = pseudo + header(0) + data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(whole) // 2}H", whole))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header(~total & 0xFFFF) + data


class Peer:
    """Sends segments, and hears what the host answers."""

    def __init__(self, lab: Lab) -> None:
        self._out = lab.open("peer", V4, socket.SOCK_RAW, socket.IPPROTO_RAW)
        protocol = socket.htons(ETH_P_IP)
        self._in = lab.open("peer", socket.AF_PACKET, socket.SOCK_DGRAM, protocol)

    def send(self, tcp: bytes) -> None:
        ends = packed(NOBODY), packed(HOST[V4])
        self._out.sendto(ipv4(Protocol.TCP, *ends, tcp), (HOST[V4], 0))

    def answered(self) -> int:
        """The sequence number of the host's SYN-ACK."""
        while True:
            packet = self._in.recv(2048)
            tcp = packet[(packet[0] & 15) * 4 :]
            _, to, sequence, _, _, flags = struct.unpack_from("!HHIIBB", tcp)
            if (to, flags & (SYN | ACK)) == (REMOTE_PORT, SYN | ACK):
                return int(sequence)


@pytest.fixture
def births(lab: Lab) -> Iterator[Births]:
    with closing(Births()) as made:
        made.serve([lab.netns["host"]])
        made.accepts({PORT})
        made.start()
        yield made


@pytest.mark.parametrize(
    ("ahead", "data"), [(0, b""), (0, b"data"), (4, b"data")], ids=["ack", "first", "second"]
)
def test_a_segment_ahead_of_others_says_nothing_of_their_queue(
    lab: Lab, births: Births, ahead: int, data: bytes
) -> None:
    listener = lab.open("host", V4, socket.SOCK_STREAM)
    listener.bind((HOST[V4], PORT))
    listener.listen(1)
    peer = Peer(lab)
    peer.send(segment(FIRST, 0, SYN))
    peer.send(segment(FIRST + 1 + ahead, peer.answered() + 1, ACK, data))
    accepted = listener.accept()[0]
    reported: list[Accepted] = []

    def hears() -> bool:
        reported.extend(each for each in births.drain() if isinstance(each, Accepted))
        return bool(reported)

    until(hears, "it is reported")
    assert reported[0].key.remote == packed(NOBODY)
    queue = lab.nic.queues()[lab.queue_of(accepted) or 0]
    assert reported[0].napi_id == (None if ahead else queue.napi_id)
    accepted.close()
