# SPDX-License-Identifier: GPL-2.0-or-later
"""A lab of one's own: brought up under a unique name, taken down whatever happens.

`a_lab()` for a test that wants its own numbers; most take the fixture `lab` (tests/conftest.py).
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from atfnd.kernel.system.netns import open_socket, write_sysctl
from atfnd.lab.down import down
from atfnd.lab.up import up
from atfnd.lab.wiring import HOST4, HOST6, PEER4, PEER6, namespaces
from atfnd.model import FlowKey
from atfnd.nic import Nic
from atfnd.nic.lab.nic import LabNic

__all__ = ["HOST", "PEER", "Ends", "Lab", "a_lab", "key_of", "packed", "unique_name"]

HOST: dict[int, str] = {socket.AF_INET: HOST4, socket.AF_INET6: HOST6}
PEER: dict[int, str] = {socket.AF_INET: PEER4, socket.AF_INET6: PEER6}
SO_INCOMING_NAPI_ID = 56  # asm-generic/socket.h
PORT_RANGE = "ipv4/ip_local_port_range"  # IPv6 sockets too
CHOSEN_BY_THE_KERNEL = "45000 60999"  # ports of sockets that bind to 0; tests choose lower ones

_count = itertools.count()


def unique_name() -> str:
    return f"t{os.getpid()}-{next(_count)}"


def packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address)


N = TypeVar("N", bound=Nic, covariant=True)


@dataclass
class Ends(Generic[N]):
    """A NIC that is up between two namespaces, `NAME-peer` and `NAME-host`, and sockets at both
    ends (closed with it)."""

    name: str
    nic: N
    _undo: ExitStack = field(default_factory=ExitStack)

    @property
    def netns(self) -> dict[str, str]:
        """Paths of the namespaces `peer`, `wire` and `host`."""
        return namespaces(self.name)

    def open(self, role: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket at one end (`peer`, `host`) that gives up waiting after 10 s."""
        made = open_socket(self.netns[role], family, kind, protocol)
        self._undo.enter_context(made)
        made.settimeout(10)
        return made

    def udp_pair(
        self, family: int, peer_port: int, host_port: int
    ) -> tuple[socket.socket, socket.socket]:
        """Connected UDP sockets: (the peer's, which sends to, the host's)."""
        sender = self.open("peer", family, socket.SOCK_DGRAM)
        receiver = self.open("host", family, socket.SOCK_DGRAM)
        sender.bind((PEER[family], peer_port))
        receiver.bind((HOST[family], host_port))
        receiver.connect((PEER[family], peer_port))
        sender.connect((HOST[family], host_port))
        return sender, receiver

    def tcp_pair(self, family: int, host_port: int) -> tuple[socket.socket, socket.socket]:
        """A TCP connection from the peer: (the peer's end, the host's end)."""
        listener = self.open("host", family, socket.SOCK_STREAM)
        listener.bind((HOST[family], host_port))
        listener.listen(1)
        client = self.open("peer", family, socket.SOCK_STREAM)
        client.connect((HOST[family], host_port))
        accepted, _ = listener.accept()
        self._undo.enter_context(accepted)
        accepted.settimeout(10)
        return client, accepted

    def queue_of(self, receiver: socket.socket) -> int | None:
        """The queue whose NAPI delivered the socket's last packet, as the kernel recorded it."""
        napi = receiver.getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID)
        return {queue.napi_id: queue.index for queue in self.nic.queues()}.get(napi)

    def keep(self, descriptor: int) -> int:
        """Close this with the lab."""
        self._undo.callback(os.close, descriptor)
        return descriptor

    def close(self) -> None:
        self._undo.close()
        self.nic.close()


Lab = Ends[LabNic]


def key_of(receiver: socket.socket, protocol: int) -> FlowKey:
    """The flow that a connected socket receives."""
    local, remote = receiver.getsockname(), receiver.getpeername()
    return FlowKey(protocol, packed(local[0]), local[1], packed(remote[0]), remote[1])


@contextmanager
def a_lab(queues: int = 4, slots: int | None = None, *, interrupts: bool = False) -> Iterator[Lab]:
    name = unique_name()
    try:
        up(name, queues, slots, interrupts)
        for role in ("peer", "host"):
            write_sysctl(namespaces(name)[role], PORT_RANGE, CHOSEN_BY_THE_KERNEL)
        lab = Lab(name, LabNic(name))
        try:
            yield lab
        finally:
            lab.close()
    finally:
        down(name)
