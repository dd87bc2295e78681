# SPDX-License-Identifier: GPL-2.0-or-later
"""Receive-side scaling in the lab NIC is the Toeplitz hash of Python, packet by packet."""

from __future__ import annotations

import functools
import random
import socket

import pytest

from atfnd.model import Rss
from atfnd.model.toeplitz import MICROSOFT_KEY, rss_hash
from tests.labs import HOST, PEER, Lab, a_lab, packed
from tests.nic.packets import MORE_FRAGMENTS, ipv4, ipv6, transport
from tests.wait import until

__all__: list[str] = []

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


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_delivers_on_the_queue_that_the_hash_says(lab: Lab, family: int) -> None:
    rss = lab.nic.rss()
    assert rss == Rss(MICROSOFT_KEY, tuple(i % 4 for i in range(128)))
    for port in range(6000, 6032):
        sender, receiver = lab.udp_pair(family, port, port)
        sender.send(b"x")
        assert receiver.recv(1) == b"x"
        hashed = rss_hash(rss.key, packed(PEER[family]), packed(HOST[family]), (port, port))
        assert lab.queue_of(receiver) == rss.table[hashed % 128]


def test_what_is_not_ip_takes_the_first_entry(lab: Lab) -> None:
    lab.nic.set_rss(Rss(MICROSOFT_KEY, (2, *(0,) * 127)))
    frame = bytes.fromhex("02000000090102000000090188b5") + bytes(50)
    with lab.open("wire", socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("s0", 0))
        wire.send(frame)
    assert until(lambda: counts(lab)[2], "it is counted") == 1
