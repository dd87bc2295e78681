# SPDX-License-Identifier: GPL-2.0-or-later
"""Which end opened a connection, as the listeners tell. (As the BPF observer tells it:
tests/daemon/test_matching_daemon.py.)"""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from atfnd.model import FlowKey, Protocol
from atfnd.observe.sockets.listening import ListenedPorts
from tests.kernel.netns import APP4, APP6, PEER4, PEER6, Net, packed

V4, V6 = socket.AF_INET, socket.AF_INET6
NOW_NS = 10**12


def flow(local: str, port: int) -> FlowKey:
    remote = PEER6 if ":" in local else PEER4
    return FlowKey(Protocol.TCP, packed(local), port, packed(remote), 9)


@pytest.mark.parametrize(
    ("family", "bound", "serves"),
    [(V4, APP4, [APP4]), (V4, "0.0.0.0", [APP4]), (V6, APP6, [APP6]), (V6, "::", [APP4, APP6])],
)
def test_where_somebody_listens(family: int, bound: str, serves: list[str]) -> None:
    with ExitStack() as stack:
        net = Net(stack)
        ports = ListenedPorts()
        listener = net.socket(family, socket.SOCK_STREAM)
        listener.bind((bound, 5000))
        listener.listen()
        for local in (APP4, APP6):
            assert ports.serves(net.path, flow(local, 5000), NOW_NS) == (local in serves)
            assert not ports.serves(net.path, flow(local, 5001), NOW_NS)
        listener.close()
        soon, later = NOW_NS + ports.FRESH_NS - 1, NOW_NS + ports.FRESH_NS
        assert ports.serves(net.path, flow(serves[0], 5000), soon)
        assert not ports.serves(net.path, flow(serves[0], 5000), later)


def test_nobody_listens_in_a_namespace_that_is_gone() -> None:
    with ExitStack() as stack:
        path = Net(stack).path
    assert not ListenedPorts().serves(path, flow(APP4, 5000), NOW_NS)
