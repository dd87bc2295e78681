# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters and RSS of the lab NIC against real packets: which rule a packet hits, and where it goes;
the hash is the Toeplitz hash of Python."""

from __future__ import annotations

import functools
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from atfnd.model import Match, Protocol, Rss
from atfnd.model.toeplitz import MICROSOFT_KEY, rss_hash
from tests.labs import HOST, PEER, Lab, a_lab, key_of, packed
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


PORTS = transport(1000, 2000)
FOUR, SIX = ipv4(132, PEER4, HOST4, PORTS), ipv6(132, PEER6, HOST6, PORTS)
LATER_FRAGMENT = ipv4(132, PEER4, HOST4, PORTS + bytes(4), fragment=100)
# RFC 8200, 4.6: next header, PadN
BEHIND_OPTIONS = ipv6(60, PEER6, HOST6, bytes([132, 0, 1, 4, 0, 0, 0, 0]) + PORTS)
ECHO = ipv4(1, PEER4, HOST4, bytes([8, 0, 0xF7, 0xFF, 0, 0, 0, 0]))


@pytest.mark.parametrize(
    ("match", "packet", "hits"),
    [
        (EXACT4, FOUR, True),
        (EXACT4._replace(protocol=6), ipv4(6, PEER4, HOST4, PORTS), True),
        (EXACT4._replace(protocol=17), ipv4(17, PEER4, HOST4, PORTS), True),
        (EXACT6, SIX, True),
        (EXACT4, ipv4(132, PEER4, HOST4, transport(1001, 2000)), False),
        (EXACT6, ipv6(132, PEER6, HOST6, transport(1000, 2001)), False),
        (EXACT4._replace(protocol=6), FOUR, False),
        (EXACT4._replace(src=HOST4, dst=PEER4), FOUR, False),
        (ANY4, FOUR, True),
        (ANY4, SIX, False),
        (ANY4._replace(protocol=132), FOUR, True),
        (ANY4._replace(src=packed("10.8.0.0"), src_prefix=16), FOUR, True),
        (ANY4._replace(src=packed("10.8.0.2"), src_prefix=31), FOUR, False),
        (ANY4._replace(dst=packed("10.8.0.0"), dst_prefix=15), FOUR, True),
        (ANY4._replace(dst=packed("10.8.0.0"), dst_prefix=16), FOUR, False),
        (ANY4._replace(dst_port=2000), FOUR, True),
        (ANY4._replace(src_port=2000), FOUR, False),
        (ANY6._replace(src=packed("fd00:8::"), src_prefix=31), SIX, True),
        (ANY6._replace(src=PEER6, src_prefix=128, dst_port=2000), SIX, True),
        # Options do not hide ports; fragments and what is behind an extension header have none.
        (EXACT4, ipv4(132, PEER4, HOST4, PORTS, options=10), True),
        (EXACT4, ipv4(132, PEER4, HOST4, PORTS, fragment=MORE_FRAGMENTS), False),
        (EXACT4, LATER_FRAGMENT, False),
        (ANY4._replace(src=PEER4, src_prefix=32), LATER_FRAGMENT, True),
        (EXACT4, ipv4(132, PEER4, HOST4, b"\x03"), False),
        (EXACT6, BEHIND_OPTIONS, False),
        (ANY6._replace(protocol=60), BEHIND_OPTIONS, True),
        (ANY4._replace(protocol=1), ECHO, True),
    ],
)
def test_a_rule_is_hit_by_what_it_matches_and_no_more(
    lab: Lab, match: Match, packet: bytes, hits: bool
) -> None:
    rss_to(lab, 0)
    location = lab.nic.insert(match, 3)
    assert lab.nic.filters()[0].match == match
    assert send(lab, packet) == ((location, 3) if hits else (None, 0))


def test_the_lowest_location_wins(lab: Lab) -> None:
    by_location = {
        30: ANY4,
        20: EXACT4,
        10: ANY4._replace(dst_port=2000),
        40: ANY4._replace(src_port=1000),
    }
    for queue, (location, match) in enumerate(by_location.items()):
        lab.nic.insert(match, queue, location)
    for location, queue in ((10, 2), (20, 1), (30, 0), (40, 3)):
        assert send(lab, FOUR) == (location, queue)
        lab.nic.delete(location)


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


KEYS = [MICROSOFT_KEY, random.Random(1).randbytes(40)]
PACKETS_EACH = 60


def counts(lab: Lab) -> list[int]:
    """Per queue, packets by RSS."""
    return [queue.by_rss or 0 for queue in lab.nic.stats().queues]


def counted(lab: Lab, packets: int) -> bool:
    return sum(counts(lab)) == packets


def packet(choose: random.Random) -> tuple[bytes, int, tuple[bytes, bytes, tuple[int, int] | None]]:
    """A packet through the lab, its family, and what of it RSS hashes."""
    family = choose.choice([socket.AF_INET, socket.AF_INET6])
    bits = b"" if family == socket.AF_INET else choose.randbytes(10)
    src = packed(PEER[family])[: 4 if bits else 2] + bits + choose.randbytes(2)
    dst = packed(HOST[family])
    ports = (choose.randrange(1, 65536), choose.randrange(1, 65536))
    protocol = choose.choice([6, 17, 132, 47, 1 if family == socket.AF_INET else 58])
    fragment = choose.choice([0, 0, MORE_FRAGMENTS, 7])
    payload = transport(*ports)
    if family == socket.AF_INET6:
        hashed = ports if protocol in (6, 17, 132) else None
        return ipv6(protocol, src, dst, payload), family, (src, dst, hashed)
    hashed = ports if protocol in (6, 17, 132) and not fragment else None
    options = choose.randrange(4)
    return ipv4(protocol, src, dst, payload, options, fragment), family, (src, dst, hashed)


@pytest.mark.parametrize("key", KEYS, ids=["microsoft", "random"])
def test_every_bit_of_the_bucket(key: bytes) -> None:
    """Two tables over 64 queues tell all 7 bits that choose one of the 128 entries."""
    choose = random.Random(key)
    with a_lab(queues=64) as lab:
        for table in (tuple(i % 64 for i in range(128)), tuple(i // 2 for i in range(128))):
            lab.nic.set_rss(Rss(key, table))
            assert lab.nic.rss() == Rss(key, table)
            expected = counts(lab)
            for _ in range(PACKETS_EACH):
                data, family, (src, dst, ports) = packet(choose)
                with lab.open("peer", family, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
                    sender.sendto(data, (HOST[family], 0))
                expected[table[rss_hash(key, src, dst, ports) % 128]] += 1
                until(functools.partial(counted, lab, sum(expected)), "it is counted")
                assert counts(lab) == expected


def test_what_is_not_ip_takes_the_first_entry(lab: Lab) -> None:
    lab.nic.set_rss(Rss(MICROSOFT_KEY, (2, *(0,) * 127)))
    frame = bytes.fromhex("02000000090102000000090188b5") + bytes(50)
    with lab.open("wire", socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("s0", 0))
        wire.send(frame)
    assert until(lambda: counts(lab)[2], "it is counted") == 1
