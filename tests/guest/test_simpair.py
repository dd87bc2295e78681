# SPDX-License-Identifier: GPL-2.0-or-later
"""The standard set-up on simnic: both families cross the pair, parameters and faults arrive."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.guest.simpair import HOST, PEER, fault, open_host, open_peer, simnic

LOADED = Path("/sys/module/simnic")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_packets_cross_both_ways(family: int) -> None:
    with (
        simnic(queues=2),
        open_host(family, socket.SOCK_DGRAM) as host,
        open_peer(family, socket.SOCK_DGRAM) as peer,
    ):
        assert len(list(Path("/sys/class/net/sim0/queues").glob("rx-*"))) == 2
        peer.sendto(b"there", (HOST[family], host.getsockname()[1]))
        said, sender = host.recvfrom(9)
        assert (said, sender[0]) == (b"there", PEER[family])
        host.sendto(b"back", sender)
        assert peer.recv(9) == b"back"
        fault("sim0", "vanish", 1)
    assert not LOADED.exists()


def test_unloaded_also_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), simnic():
        assert LOADED.exists()
        raise ZeroDivisionError
    assert not LOADED.exists()
    assert not Path("/run/netns/peer").exists()
