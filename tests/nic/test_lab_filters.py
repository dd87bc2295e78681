# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters of the lab NIC against real packets: which rule a packet hits, and where it goes."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from atfnd.model import Match, Protocol, Rss
from tests.labs import HOST, PEER, Lab, key_of, packed
from tests.nic.packets import MORE_FRAGMENTS, ipv4, ipv6, transport
from tests.wait import until

__all__: list[str] = []

FAMILIES = [socket.AF_INET, socket.AF_INET6]
ANY4 = Match(4, None, None, 0, None, 0, None, None)
ANY6 = ANY4._replace(family=6)
PEER4, HOST4 = packed(PEER[socket.AF_INET]), packed(HOST[socket.AF_INET])
PEER6, HOST6 = packed(PEER[socket.AF_INET6]), packed(HOST[socket.AF_INET6])
EXACT4 = Match(4, 132, PEER4, 32, HOST4, 32, 1000, 2000)
EXACT6 = Match(6, 132, PEER6, 128, HOST6, 128, 1000, 2000)


def rss_to(lab: Lab, queue: int) -> None:
    lab.nic.set_rss(replace(lab.nic.rss(), table=(queue,) * 128))


def send(lab: Lab, packet: bytes) -> tuple[int | None, int]:
    """Send one hand-made packet: the location it hit (None: none), and the queue it was given."""
    family = socket.AF_INET if packet[0] >> 4 == 4 else socket.AF_INET6
    hits = {rule.location: rule.hits for rule in lab.nic.filters()}
    given = [queue.packets for queue in lab.nic.stats().queues]
    sender = lab.open("peer", family, socket.SOCK_RAW, socket.IPPROTO_RAW)
    sender.sendto(packet, (HOST[family], 0))
    queue = until(
        lambda: [
            queue.index
            for queue, before in zip(lab.nic.stats().queues, given, strict=True)
            if queue.packets != before
        ],
        "the packet is counted",
    )
    hit = [rule.location for rule in lab.nic.filters() if rule.hits != hits[rule.location]]
    assert len(hit) <= 1
    assert len(queue) == 1
    return (hit[0] if hit else None), queue[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_udp_goes_where_its_rule_says(lab: Lab, family: int) -> None:
    rss_to(lab, 0)
    sender, receiver = lab.udp_pair(family, 5001, 5002)
    location = lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), 3)
    for sent, queue in enumerate((3, 1, 2, 3), start=1):
        assert lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), queue, location) == location
        sender.send(b"x")
        assert receiver.recv(1) == b"x"
        assert lab.queue_of(receiver) == queue
        assert lab.nic.filters()[0].hits == sent
        assert lab.nic.filters()[0].queue == queue
    lab.nic.delete(location)
    sender.send(b"x")
    assert receiver.recv(1) == b"x"
    assert lab.queue_of(receiver) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_tcp_goes_where_its_rule_says_in_order_and_whole(lab: Lab, family: int) -> None:
    rss_to(lab, 0)
    client, server = lab.tcp_pair(family, 5003)
    location = lab.nic.insert(Match.of(key_of(server, Protocol.TCP)), 2)
    data, got = bytes(range(256)) * 4096, bytearray()
    with ThreadPoolExecutor(max_workers=1) as thread:
        sent = thread.submit(client.sendall, data)
        while len(got) < len(data):
            got += server.recv(65536)
        sent.result()
    assert got == data
    assert lab.queue_of(server) == 2
    hits = lab.nic.filters()[0].hits
    assert hits is not None
    assert hits >= len(data) // 1448  # packets of the wire, not what offloads made of them
    assert lab.nic.filters()[0].location == location
    counted = lab.nic.stats().queues[2]
    assert counted.by_filter == hits
    assert counted.bytes is not None
    assert counted.bytes > len(data)


@pytest.mark.parametrize("protocol", [6, 17, 132])
def test_every_transport_by_exact_rule(lab: Lab, protocol: int) -> None:
    rss_to(lab, 0)
    four = lab.nic.insert(EXACT4._replace(protocol=protocol), 1)
    six = lab.nic.insert(EXACT6._replace(protocol=protocol), 2)
    payload = transport(1000, 2000)
    assert send(lab, ipv4(protocol, PEER4, HOST4, payload)) == (four, 1)
    assert send(lab, ipv6(protocol, PEER6, HOST6, payload)) == (six, 2)
    assert send(lab, ipv4(protocol, PEER4, HOST4, transport(1001, 2000))) == (None, 0)
    assert send(lab, ipv6(protocol, PEER6, HOST6, transport(1000, 2001))) == (None, 0)
    other = 6 if protocol == 132 else 132
    assert send(lab, ipv4(other, PEER4, HOST4, payload)) == (None, 0)


WILDCARDS = [
    ANY4,
    ANY4._replace(protocol=132),
    ANY4._replace(src=PEER4, src_prefix=32),
    ANY4._replace(dst=HOST4, dst_prefix=32),
    ANY4._replace(src=packed("10.8.0.0"), src_prefix=16),
    ANY4._replace(dst=packed("10.8.0.0"), dst_prefix=15),
    ANY4._replace(src=packed("0.0.0.0"), src_prefix=1),
    ANY4._replace(src_port=1000),
    ANY4._replace(dst_port=2000),
    ANY4._replace(protocol=132, dst_port=2000, dst=packed("10.9.0.0"), dst_prefix=24),
    ANY6,
    ANY6._replace(protocol=132),
    ANY6._replace(src=packed("fd00:8::"), src_prefix=32),
    ANY6._replace(src=packed("fd00:8::"), src_prefix=31),
    ANY6._replace(dst=HOST6, dst_prefix=128),
    ANY6._replace(src=PEER6, src_prefix=128, dst_port=2000),
]


@pytest.mark.parametrize("match", WILDCARDS, ids=str)
def test_wildcards_match_what_they_leave_open(lab: Lab, match: Match) -> None:
    rss_to(lab, 0)
    location = lab.nic.insert(match, 3)
    assert lab.nic.filters()[0].match == match
    payload = transport(1000, 2000)
    four = ipv4(132, PEER4, HOST4, payload)
    six = ipv6(132, PEER6, HOST6, payload)
    assert send(lab, four) == ((location, 3) if match.family == 4 else (None, 0))
    assert send(lab, six) == ((location, 3) if match.family == 6 else (None, 0))


NEAR_MISSES = [
    ANY4._replace(protocol=17),
    ANY4._replace(src=packed("10.8.0.2"), src_prefix=31),
    ANY4._replace(src=packed("128.0.0.0"), src_prefix=1),
    ANY4._replace(dst=packed("10.8.0.0"), dst_prefix=16),
    ANY4._replace(src_port=2000),
    ANY4._replace(dst_port=1000),
    EXACT4._replace(src=HOST4, dst=PEER4),
    EXACT4._replace(src_port=2000, dst_port=1000),
]


@pytest.mark.parametrize("match", NEAR_MISSES, ids=str)
def test_wildcards_leave_the_rest(lab: Lab, match: Match) -> None:
    rss_to(lab, 0)
    lab.nic.insert(match, 3)
    assert send(lab, ipv4(132, PEER4, HOST4, transport(1000, 2000))) == (None, 0)


def test_the_lowest_location_wins(lab: Lab) -> None:
    rss_to(lab, 0)
    packet = ipv4(132, PEER4, HOST4, transport(1000, 2000))
    lab.nic.insert(ANY4, 1, 30)
    assert send(lab, packet) == (30, 1)
    lab.nic.insert(EXACT4, 2, 20)
    assert send(lab, packet) == (20, 2)
    lab.nic.insert(ANY4._replace(dst_port=2000), 3, 10)
    assert send(lab, packet) == (10, 3)
    lab.nic.insert(ANY4._replace(src_port=1000), 1, 40)
    assert send(lab, packet) == (10, 3)
    lab.nic.delete(10)
    assert send(lab, packet) == (20, 2)
    lab.nic.delete(20)
    assert send(lab, packet) == (30, 1)


def test_fragments_have_no_ports(lab: Lab) -> None:
    rss_to(lab, 0)
    lab.nic.insert(EXACT4, 1, 0)
    addresses = lab.nic.insert(ANY4._replace(protocol=132, src=PEER4, src_prefix=32), 2, 1)
    payload = transport(1000, 2000) + bytes(4)
    assert send(lab, ipv4(132, PEER4, HOST4, payload)) == (0, 1)
    for fragment in (MORE_FRAGMENTS, MORE_FRAGMENTS | 100, 100):
        assert send(lab, ipv4(132, PEER4, HOST4, payload, fragment=fragment)) == (addresses, 2)


@pytest.mark.parametrize("words", [1, 5, 10])
def test_ip_options_do_not_hide_ports(lab: Lab, words: int) -> None:
    rss_to(lab, 0)
    location = lab.nic.insert(EXACT4, 1)
    packet = ipv4(132, PEER4, HOST4, transport(1000, 2000), options=words)
    assert send(lab, packet) == (location, 1)


def test_behind_an_ipv6_extension_header_there_are_no_ports(lab: Lab) -> None:
    rss_to(lab, 0)
    lab.nic.insert(EXACT6, 1)
    destination_options = bytes([132, 0, 1, 4, 0, 0, 0, 0])  # RFC 8200, 4.6: next header, PadN
    packet = ipv6(60, PEER6, HOST6, destination_options + transport(1000, 2000))
    assert send(lab, packet) == (None, 0)
    location = lab.nic.insert(ANY6._replace(protocol=60), 2)
    assert send(lab, packet) == (location, 2)


def test_a_packet_too_short_for_ports(lab: Lab) -> None:
    rss_to(lab, 0)
    lab.nic.insert(EXACT4, 1)
    assert send(lab, ipv4(132, PEER4, HOST4, b"\x03")) == (None, 0)


def test_icmp_goes_by_rss_or_by_a_rule_without_ports(lab: Lab) -> None:
    rss_to(lab, 0)
    echo = bytes([8, 0, 0xF7, 0xFF, 0, 0, 0, 0])
    assert send(lab, ipv4(1, PEER4, HOST4, echo)) == (None, 0)
    location = lab.nic.insert(ANY4._replace(protocol=1), 3)
    assert send(lab, ipv4(1, PEER4, HOST4, echo)) == (location, 3)
    assert lab.nic.stats().queues[0].by_rss == 1
    assert lab.nic.stats().queues[3].by_filter == 1


def test_rss_refuses_what_is_not_there(lab: Lab) -> None:
    before = lab.nic.rss()
    for bad in (
        Rss(before.key[:-1], before.table),
        Rss(before.key, before.table[:-1]),
        Rss(before.key, (4, *before.table[1:])),
    ):
        with pytest.raises(OSError, match="RSS"):
            lab.nic.set_rss(bad)
    assert lab.nic.rss() == before
