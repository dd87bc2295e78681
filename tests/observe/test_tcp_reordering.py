# SPDX-License-Identifier: GPL-2.0-or-later
"""What TCP says of reordering, socket by socket and for a namespace; that it counts is shown where
data is reordered on purpose, in test_transit.py."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from atfnd.model import Protocol
from tests.labs import Lab, key_of
from tests.observe.tcp_reordering import TcpReordering


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_healthy_connection_has_nothing_out_of_order(shared_lab: Lab, family: int) -> None:
    client, server = shared_lab.tcp_pair(family, 5100)
    client.sendall(b"in order")
    assert server.recv(8, socket.MSG_WAITALL) == b"in order"
    flow = key_of(server, Protocol.TCP)
    with (
        closing(TcpReordering(shared_lab.netns["host"])) as here,
        closing(TcpReordering(shared_lab.netns["wire"])) as elsewhere,
    ):
        assert here.out_of_order(flow) == 0
        assert here.out_of_order(flow._replace(remote_port=1)) is None
        assert elsewhere.out_of_order(flow) is None
        assert here.counters() == (0, 0, 0, 0)


def test_a_namespace_that_is_not_there_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        TcpReordering("/run/netns/no-such-namespace")
