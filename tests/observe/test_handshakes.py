# SPDX-License-Identifier: GPL-2.0-or-later
"""Connects and listeners are reported as they happen, of the served namespaces and no others."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Set
from contextlib import closing

import pytest

from atfnd.lab.wiring import HOST4
from atfnd.model import (
    Accepted,
    Born,
    Connected,
    Connecting,
    FlowKey,
    Forked,
    Listening,
    Match,
    Protocol,
    SocketGone,
)
from atfnd.observe.sockets.handshakes import Births
from tests.labs import HOST, PEER, Lab, key_of, packed
from tests.nic.packets import ipv4
from tests.observe.observing import cookie
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4, V6 = FAMILIES = socket.AF_INET, socket.AF_INET6


@pytest.fixture
def births(lab: Lab) -> Iterator[Births]:
    """Of the lab's host, attached."""
    with closing(Births()) as made:
        made.serve([lab.netns["host"]])
        made.start()
        yield made


def a_listener(lab: Lab, role: str, family: int, port: int, address: str) -> socket.socket:
    made = lab.open(role, family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.listen(100)
    return made


def any_of(family: int) -> bytes:
    return bytes(4 if family == V4 else 16)


def reported(births: Births) -> list[Born]:
    select.select([births.fileno()], [], [], 10)
    return births.drain()


@pytest.mark.parametrize(
    ("family", "to"), [(V4, PEER[V4]), (V6, PEER[V6]), (V6, f"::ffff:{PEER[V4]}")]
)
def test_a_connect_is_reported_before_its_syn_and_when_it_was_answered(
    lab: Lab, births: Births, family: int, to: str
) -> None:
    """That of an IPv6 socket to an IPv4 address is an IPv4 flow."""
    of = V6 if to == PEER[V6] else V4
    a_listener(lab, "peer", of, 80, PEER[of])
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before_ns = time.monotonic_ns()
    made = lab.open("host", family, socket.SOCK_STREAM)
    made.connect((to, 80))
    after_ns = time.monotonic_ns()
    connecting, connected = reported(births)
    key = FlowKey(Protocol.TCP, packed(HOST[of]), made.getsockname()[1], packed(PEER[of]), 80)
    assert isinstance(connecting, Connecting)
    assert isinstance(connected, Connected)
    assert connecting.key == connected.key == key
    assert connecting.cookie == connected.cookie == cookie(made)
    assert before_ns < connecting.at_ns < connected.at_ns < after_ns
    assert connected.handshake_ns == connected.at_ns - connecting.at_ns
    assert connecting.cpu == min(os.sched_getaffinity(0))
    assert connecting.netns == os.stat(lab.netns["host"]).st_ino
    thread = connecting.thread
    assert (thread.tid, thread.pid) == (threading.get_native_id(), os.getpid())
    assert thread.uid == os.getuid()
    with open(f"/proc/self/task/{thread.tid}/comm") as file:
        assert thread.comm == file.read().strip()
    assert thread.cgroup is not None
    made.close()
    (gone,) = until(births.drain, "its end is reported")
    assert isinstance(gone, SocketGone)
    assert gone.cookie == connecting.cookie


def test_a_fast_open_is_not_reported(lab: Lab, births: Births) -> None:
    a_listener(lab, "peer", V4, 80, PEER[V4])
    made = lab.open("host", V4, socket.SOCK_STREAM)
    made.setblocking(True)
    made.sendto(b"x", socket.MSG_FASTOPEN, (PEER[V4], 80))
    made.close()
    assert births.drain() == []


def test_a_refused_connect_ends(lab: Lab, births: Births) -> None:
    made = lab.open("host", V4, socket.SOCK_STREAM)
    with pytest.raises(ConnectionRefusedError):
        made.connect((PEER[V4], 81))
    assert [type(each) for each in reported(births)] == [Connecting, SocketGone]


@pytest.mark.parametrize("cpus", [frozenset({0}), os.sched_getaffinity(0)])
def test_a_listener_and_its_end_are_reported(lab: Lab, births: Births, cpus: Set[int]) -> None:
    os.sched_setaffinity(0, cpus)
    made = a_listener(lab, "host", V4, 80, HOST4)
    (listening,) = reported(births)
    assert isinstance(listening, Listening)
    assert listening.key == FlowKey(Protocol.TCP, packed(HOST4), 80, any_of(V4), 0)
    assert listening.cookie == cookie(made)
    assert listening.pinned == (len(cpus) == 1)
    assert listening.thread is not None
    assert listening.thread.tid == threading.get_native_id()
    made.listen(200)  # only its backlog is another
    assert births.drain() == []
    made.close()
    (gone,) = reported(births)
    assert isinstance(gone, SocketGone)
    assert gone.cookie == listening.cookie


@pytest.mark.parametrize("v6only", [False, True])
def test_a_listener_for_both_families_is_two_flows(lab: Lab, births: Births, v6only: bool) -> None:
    made = lab.open("host", V6, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
    made.bind(("::", 80))
    made.listen()
    keys = [FlowKey(Protocol.TCP, any_of(f), 80, any_of(f), 0) for f in reversed(FAMILIES)]
    events = reported(births)
    assert [each.key for each in events if isinstance(each, Listening)] == keys[: 2 - v6only]
    assert [(each.cookie, each.key) for each in births.listeners()] == [
        (cookie(made), key) for key in keys[: 2 - v6only]
    ]


def test_listeners_that_were_there_are_found_and_their_end_is_reported(lab: Lab) -> None:
    there = [a_listener(lab, "host", family, 80, HOST[family]) for family in FAMILIES]
    a_listener(lab, "host", V4, 81, HOST4).close()
    with closing(Births()) as births:
        births.serve([lab.netns["host"]])
        births.start()
        found = births.listeners()
        assert [each.cookie for each in found] == [cookie(made) for made in there]
        assert {each.thread for each in found} == {None}
        for made in there:
            made.close()
        ended = [each for each in reported(births) if isinstance(each, SocketGone)]
        assert [each.cookie for each in ended] == [each.cookie for each in found]


def test_accepts_are_reported_with_the_queue_of_their_ack(lab: Lab, births: Births) -> None:
    births.accepts({80})
    lab.nic.insert(Match(6, Protocol.TCP, None, 0, None, 0, None, 80), 2)
    _, accepted = lab.tcp_pair(V6, 80)
    lab.tcp_pair(V6, 81)
    events = [each for each in births.drain() if isinstance(each, Accepted)]
    napi_id = lab.nic.queues()[2].napi_id
    expected = (cookie(accepted), key_of(accepted, Protocol.TCP), napi_id)
    assert [each[1:] for each in events] == [expected]
    births.accepts(())
    other = lab.open("peer", V6, socket.SOCK_STREAM)
    other.connect((HOST[V6], 81))
    assert births.drain() == []


def test_other_namespaces_are_not_reported(lab: Lab, births: Births) -> None:
    a_listener(lab, "peer", V4, 80, PEER[V4]).close()
    births.serve([lab.netns["peer"]])
    assert births.drain() == []
    a_listener(lab, "host", V4, 80, HOST4)
    assert births.drain() == births.listeners() == []
    a_listener(lab, "peer", V4, 81, PEER[V4])
    assert [each.key.local_port for each in reported(births) if isinstance(each, Listening)] == [81]


def test_every_event_is_reported_or_counted(lab: Lab) -> None:
    with closing(Births(4096)) as births:
        births.serve([lab.netns["host"]])
        births.start()
        made = [lab.open("host", V4, socket.SOCK_STREAM) for _ in range(100)]
        for each in made:  # no thread is made meanwhile
            each.listen()
        events = births.drain()
        assert births.lost() > 0
        assert len(events) + births.lost() == 100
        assert len(births.listeners()) == 100
        # reading them made a thread: this process, if it was alone, is so no more
        assert {type(each) for each in births.drain()} <= {Forked}
        before = births.lost()
        for each in made:
            each.close()
            assert len(births.drain()) == 1
        assert births.lost() == before


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


@pytest.mark.parametrize(
    ("ahead", "data"), [(0, b""), (0, b"data"), (4, b"data")], ids=["ack", "first", "second"]
)
def test_a_segment_ahead_of_others_says_nothing_of_their_queue(
    lab: Lab, births: Births, ahead: int, data: bytes
) -> None:
    """The peer is ours, segment by segment, from an address that nobody has."""
    births.accepts({PORT})
    listener = a_listener(lab, "host", V4, PORT, HOST4)
    peer = Peer(lab)
    peer.send(segment(FIRST, 0, SYN))
    peer.send(segment(FIRST + 1 + ahead, peer.answered() + 1, ACK, data))
    accepted = listener.accept()[0]

    def accepts() -> list[Accepted]:
        return [each for each in births.drain() if isinstance(each, Accepted)]

    [event] = until(accepts, "it is reported")
    assert event.key.remote == packed(NOBODY)
    queue = lab.nic.queues()[lab.queue_of(accepted) or 0]
    assert event.napi_id == (None if ahead else queue.napi_id)
    accepted.close()
