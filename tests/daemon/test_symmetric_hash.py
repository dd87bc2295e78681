# SPDX-License-Identifier: GPL-2.0-or-later
"""`rss_hash: symmetric`: both directions of a flow come to the queue of one number, on every
interface that asks for it; the key from before comes back."""

from __future__ import annotations

import random
import signal
import socket
from pathlib import Path

from atfnd.model.nic import RSS_KEY
from atfnd.model.toeplitz import is_symmetric
from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING
from tests.labs import HOST, PEER, Lab, packed
from tests.nic.packets import ipv4, transport
from tests.wait import until

__all__: list[str] = []

KEEP = f"{EVERYTHING}interfaces: [{{ match: {{ name: '*' }} }}]\n"
SYMMETRIC = KEEP.replace("} }]", "}, rss_hash: symmetric }]")
UDP, FLOWS = 17, 24
ETHERNET = bytes.fromhex("0200000009010200000009010800")


def key(lab: Lab) -> str:
    found = lab.nic.setting(RSS_KEY)
    assert found is not None
    return found


def queue_of(lab: Lab, src: bytes, dst: bytes, ports: tuple[int, int]) -> int:
    """The queue that a packet came to."""

    def counts() -> list[int]:
        return [each.by_rss or 0 for each in lab.nic.stats().queues]

    before = counts()
    with lab.open("wire", socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("s0", 0))
        wire.send(ETHERNET + ipv4(UDP, src, dst, transport(*ports)))
    until(lambda: sum(counts()) > sum(before), "it is counted")
    return next(i for i, (now, was) in enumerate(zip(counts(), before, strict=True)) if now > was)


def apart(lab: Lab) -> int:
    """How many of some flows have their two directions on queues of different numbers."""
    choose, there = random.Random(1), packed(HOST[socket.AF_INET])
    found = 0
    for _ in range(FLOWS):
        here = packed(PEER[socket.AF_INET])[:2] + choose.randbytes(2)
        ports = choose.randrange(1024, 65536), choose.randrange(1024, 65536)
        forth, back = (here, there, ports), (there, here, ports[::-1])
        found += queue_of(lab, *forth) != queue_of(lab, *back)
    return found


def test_both_directions_come_to_one_queue_until_no_rule_asks(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", SYMMETRIC) as bed:
        own = key(lab)
        assert apart(lab) > FLOWS // 3
        bed.start()
        until(lambda: symmetric(lab), "it has a symmetric hash", 30)
        assert apart(lab) == 0
        (row,) = bed.daemon.get("/v1/nics")["nics"]
        assert row["rss"]["key"].replace(":", "") == key(lab)
        bed.daemon.config.write_text(KEEP)
        assert bed.daemon.ctl("reload").returncode == 0
        until(lambda: key(lab) == own, "it has its own key again", 30)


def test_restore_puts_the_key_back_and_a_key_of_another_program_stays(
    lab: Lab, tmp_path: Path
) -> None:
    with a_bed(lab, tmp_path, "bpf", SYMMETRIC) as bed:
        own, name = key(lab), lab.nic.name
        bed.start()
        until(lambda: symmetric(lab), "it has a symmetric hash", 30)
        assert bed.daemon.ctl("restore", name).returncode == 0
        assert key(lab) == own
        assert bed.daemon.ctl("arm", name).returncode == 0
        until(lambda: symmetric(lab), "it has one again", 30)
        theirs = "11" * 40
        lab.nic.write_setting(RSS_KEY, theirs)
        until(lambda: manual(bed) == [RSS_KEY], "it is noticed", 60)
        bed.daemon.end()
        bed.daemon.restore()
        assert key(lab) == theirs


def test_a_daemon_without_policy_puts_back_what_a_killed_one_left(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", SYMMETRIC) as bed:
        own = key(lab)
        bed.start()
        until(lambda: symmetric(lab), "it has a symmetric hash", 30)
        bed.daemon.end(signal.SIGKILL)
        assert symmetric(lab)
        bed.daemon.config.write_text(KEEP)
        bed.start()
        until(lambda: key(lab) == own, "it has its own key again", 30)


def symmetric(lab: Lab) -> bool:
    return is_symmetric(bytes.fromhex(key(lab)))


def manual(bed: Bed) -> list[str]:
    names: list[str] = bed.daemon.get("/v1/nics")["nics"][0]["manual"]
    return names
