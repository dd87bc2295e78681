# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters of the lab NIC against real packets: which rule a packet hits, and where it goes. (Its
hash is as it says: tests/daemon/test_steering.py has a flow that RSS delivers right.)"""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from atfnd.model import Match, Rss
from tests.labs import HOST, PEER, Lab, packed
from tests.nic.packets import MORE_FRAGMENTS, ipv4, ipv6, transport
from tests.wait import until

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
