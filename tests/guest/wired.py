# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest: one UDP flow over two ports that are wired together.

The socket itself tells by which NAPI and CPU its packets came (socket(7), SO_INCOMING_NAPI_ID and
SO_INCOMING_CPU).
"""

from __future__ import annotations

import socket

from atfnd.model import FlowKey, Protocol
from atfnd.nic import Nic
from tests.labs import HOST, PEER, Ends, packed
from tests.wait import until

__all__ = ["FLOW", "Wired"]

SO_INCOMING_CPU, SO_INCOMING_NAPI_ID = 49, 56
V4 = socket.AF_INET
FLOW = FlowKey(Protocol.UDP, packed(HOST[V4]), 7001, packed(PEER[V4]), 7002)


class Wired:
    """FLOW on these two ports; `name` is the port that receives. Both ends are connected, or the
    socket would keep its first NAPI (sk_mark_napi_id_once)."""

    def __init__(self, lab: Ends[Nic]) -> None:
        self.name = lab.nic.name
        self.far, self.near = lab.udp_pair(V4, FLOW.remote_port, FLOW.local_port)
        until(self.napi_id, "packets come over the wire")

    def send(self, packets: int = 20) -> None:
        """UDP may lose some: those that come are read."""
        for _ in range(packets):
            self.far.send(bytes(64))
        self.near.settimeout(1.0)
        try:
            for _ in range(packets):
                self.near.recv(128)
        except TimeoutError:
            pass

    def napi_id(self) -> int:
        """Send some packets: the NAPI the last came in by."""
        self.send()
        return self.near.getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID)

    def cpu(self) -> int:
        """Send some packets: the CPU that brought the last to the socket."""
        self.send()
        return self.near.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU)
