# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest: two ports that are wired together, and one UDP flow from one to the other.

The socket itself tells by which NAPI and CPU its packets came (socket(7), SO_INCOMING_NAPI_ID and
SO_INCOMING_CPU).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from atfnd.kernel.system.netns import open_socket, path_of
from atfnd.model import FlowKey, Protocol
from atfnd.nic.ethtool.nic import EthtoolNic
from tests.guest.simlab import MODULE, NAME, sh, unloaded
from tests.kernel.netns import packed
from tests.wait import until

__all__ = ["FLOW", "Wired", "simnic", "wired"]

SO_INCOMING_CPU, SO_INCOMING_NAPI_ID = 49, 56
PEER = "peer"
HERE, THERE = "10.11.0.1", "10.11.0.2"
FLOW = FlowKey(Protocol.UDP, packed(HERE), 7001, packed(THERE), 7002)


@dataclass
class Wired:
    """`name` is the port that receives; `near` and `far` are the ends of the flow."""

    name: str
    near: socket.socket
    far: socket.socket

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


@contextmanager
def wired(near: str, far: str) -> Iterator[Wired]:
    """Both up and packets coming; `far` is in a namespace of its own, and back here afterwards."""
    with ExitStack() as undo:
        sh("ip", "netns", "add", PEER)
        undo.callback(sh, "ip", "netns", "del", PEER)
        sh("ip", "link", "set", far, "netns", PEER)
        undo.callback(_take_back, near, far)
        for end, ip, address in ((near, ("ip",), HERE), (far, ("ip", "-n", PEER), THERE)):
            sh(*ip, "addr", "add", f"{address}/24", "dev", end)
            sh(*ip, "link", "set", end, "up")
        made = Wired(near, *_flow(undo))
        until(made.napi_id, "packets come over the wire")
        yield made


def _take_back(near: str, far: str) -> None:
    """Nothing is left to do when the test has unloaded their module."""
    if Path("/sys/class/net", near).exists():
        sh("ip", "addr", "flush", "dev", near)
        sh("ip", "-n", PEER, "link", "set", far, "netns", 1)


@contextmanager
def simnic(**parameters: object) -> Iterator[tuple[Wired, EthtoolNic]]:
    """simnic, loaded with these module parameters; its first port is the NIC."""
    sh("insmod", MODULE, *(f"{name}={value}" for name, value in parameters.items()))
    try:
        with wired(NAME, "sim1") as port, closing(EthtoolNic(NAME)) as nic:
            yield port, nic
    finally:
        until(unloaded, "simnic is unloaded")


def _flow(undo: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Both ends connected, or the socket would keep its first NAPI (sk_mark_napi_id_once)."""
    near = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    far = undo.enter_context(open_socket(path_of(PEER), socket.AF_INET, socket.SOCK_DGRAM))
    near.bind((HERE, FLOW.local_port))
    far.bind((THERE, FLOW.remote_port))
    near.connect((THERE, FLOW.remote_port))
    far.connect((HERE, FLOW.local_port))
    return near, far
