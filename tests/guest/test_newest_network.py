# SPDX-License-Identifier: GPL-2.0-or-later
"""What Debian's newest kernel has for machines that bond and encrypt, at work: a bond that loses a
port, a WireGuard tunnel.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from pyroute2 import WireGuard

from atfnd.kernel.system.netns import open_socket, path_of
from tests.guest.simlab import MODULE, sh, unloaded
from tests.wait import until

GUEST = ["--kernel", "newest", "--nic", "every"]
PORT = 7001
LOST_S = 1.0


class Ends(NamedTuple):
    """A UDP flow between two namespaces."""

    near: socket.socket
    far: socket.socket

    def reach_each_other(self) -> bool:
        try:
            for one, other in ((self.near, self.far), (self.far, self.near)):
                one.send(b"x")
                other.recv(16)
        except (TimeoutError, ConnectionRefusedError):
            return False
        return True


@contextmanager
def namespaces(*names: str) -> Iterator[None]:
    with ExitStack() as undo:
        for name in names:
            sh("ip", "netns", "add", name)
            undo.callback(sh, "ip", "netns", "del", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        yield


@contextmanager
def a_flow(near: tuple[str, str], far: tuple[str, str]) -> Iterator[Ends]:
    """Each end: a namespace and an address that it has."""
    with ExitStack() as undo:
        made = Ends(*(_bound(undo, *end) for end in (near, far)))
        for one, (_, address) in ((made.near, far), (made.far, near)):
            one.connect((address, PORT))
        yield made


def _bound(undo: ExitStack, netns: str, address: str) -> socket.socket:
    made = undo.enter_context(open_socket(path_of(netns), socket.AF_INET, socket.SOCK_DGRAM))
    made.bind((address, PORT))
    made.settimeout(LOST_S)
    return made


def give(netns: str, interface: str, address: str) -> None:
    sh("ip", "-n", netns, "addr", "add", address, "dev", interface)
    sh("ip", "-n", netns, "link", "set", interface, "up")


def test_a_bond_goes_on_with_its_other_port() -> None:
    sh("insmod", MODULE, "pairs=2")
    try:
        with namespaces("here", "there"):
            for end, ports in (("here", ("sim0", "sim2")), ("there", ("sim1", "sim3"))):
                sh("ip", "-n", end, "link", "add", "both", "type", "bond",
                   "mode", "active-backup", "miimon", 100)  # fmt: skip
                for port in ports:
                    sh("ip", "link", "set", port, "netns", end)
                    sh("ip", "-n", end, "link", "set", port, "master", "both")
            give("here", "both", "10.22.0.1/24")
            give("there", "both", "10.22.0.2/24")
            with a_flow(("here", "10.22.0.1"), ("there", "10.22.0.2")) as flow:
                for active, other in (("sim0", "sim2"), ("sim2", "sim0")):
                    until(flow.reach_each_other, f"packets come while {active} works")
                    assert active_port("here") == active
                    sh("ip", "-n", "here", "link", "set", active, "down")
                    until(flow.reach_each_other, f"packets come by {other}")
                    assert active_port("here") == other
                    sh("ip", "-n", "here", "link", "set", active, "up")
            for port in ("sim0", "sim1", "sim2", "sim3"):
                end = "here" if port in ("sim0", "sim2") else "there"
                sh("ip", "-n", end, "link", "set", port, "nomaster")
                sh("ip", "-n", end, "link", "set", port, "netns", 1)
    finally:
        until(unloaded, "simnic is unloaded")


def active_port(netns: str) -> str:
    return sh(
        "ip", "netns", "exec", netns, "cat", "/sys/class/net/both/bonding/active_slave"
    ).strip()


def test_a_wireguard_tunnel() -> None:
    """Its outer packets are in this namespace, its ends in two others."""
    keys = {name: base64.b64encode(os.urandom(32)).decode() for name in ("wg0", "wg1")}
    with namespaces("here", "there"), WireGuard() as wireguard:
        public = {}
        for number, (name, private) in enumerate(keys.items()):
            sh("ip", "link", "add", name, "type", "wireguard")
            wireguard.set(name, private_key=private, listen_port=51820 + number)
            public[name] = wireguard.info(name)[0].get("WGDEVICE_A_PUBLIC_KEY").decode()
        for name, peer, port, netns, address in (
            ("wg0", "wg1", 51821, "here", "10.23.0.1"),
            ("wg1", "wg0", 51820, "there", "10.23.0.2"),
        ):
            allowed = {"public_key": public[peer], "allowed_ips": ["10.23.0.0/24"],
                       "endpoint_addr": "127.0.0.1", "endpoint_port": port}  # fmt: skip
            wireguard.set(name, peer=allowed)
            sh("ip", "link", "set", name, "netns", netns)
            give(netns, name, f"{address}/24")
        with a_flow(("here", "10.23.0.1"), ("there", "10.23.0.2")) as flow:
            until(flow.reach_each_other, "packets come through the tunnel")
