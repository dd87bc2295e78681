# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest: two ports of one driver that are wired together, one of them in a namespace.

What tests compare with is read here from /proc/interrupts and ethtool, by no code of atfnd.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from atfnd.kernel.netns import open_socket, path_of

__all__ = ["Wired", "ethtool", "interrupts", "run", "wired"]

SO_INCOMING_CPU, SO_INCOMING_NAPI_ID = 49, 56
PEER = "peer"
HERE, THERE = "10.11.0.1", "10.11.0.2"


def run(command: str) -> str:
    return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout


def ethtool(command: str) -> str:
    return run(f"ethtool {command}")


def interrupts() -> dict[int, list[int]]:
    """How often each interrupt came on each CPU."""
    lines = Path("/proc/interrupts").read_text().splitlines()
    cpus = len(lines[0].split())
    rows = (line.split() for line in lines[1:])
    return {
        int(row[0][:-1]): [int(count) for count in row[1 : 1 + cpus]]
        for row in rows
        if row[0][:-1].isdecimal()
    }


@dataclass
class Wired:
    """`name` is the port that receives; `near` and `far` are the ends of one UDP flow."""

    name: str
    near: socket.socket
    far: socket.socket

    def _receive(self, packets: int = 20) -> None:
        """Send packets and read those that come; UDP may lose some."""
        for _ in range(packets):
            self.far.send(bytes(64))
        self.near.settimeout(1.0)
        try:
            for _ in range(packets):
                self.near.recv(128)
        except TimeoutError:
            pass

    def napi_id(self) -> int:
        """Send some packets: the NAPI the last came in by, as the socket knows it."""
        self._receive()
        return self.near.getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID)

    def cpu(self) -> int:
        """Send some packets: the CPU that brought the last to the socket."""
        self._receive()
        return self.near.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU)


def ports(driver: str) -> list[str]:
    """Interfaces of a driver, in the order of their names."""
    found = Path("/sys/class/net").iterdir()
    return sorted(path.name for path in found if driver in _driver(path.name))


def _driver(name: str) -> str:
    done = subprocess.run(["ethtool", "-i", name], capture_output=True, text=True)
    match = re.match(r"driver: (\S+)", done.stdout)
    return match[1] if match else ""


@contextmanager
def wired(driver: str) -> Iterator[Wired]:
    """The first two ports of a driver. The peer's is back here afterwards."""
    near, far = ports(driver)[:2]
    with ExitStack() as undo:
        run(f"ip netns add {PEER}")
        undo.callback(run, f"ip netns del {PEER}")
        run(f"ip link set {far} netns {PEER}")
        undo.callback(run, f"ip -n {PEER} link set {far} netns 1")
        for end, netns, address in ((near, "", HERE), (far, f"-n {PEER}", THERE)):
            run(f"ip {netns} addr add {address}/24 dev {end}")
            run(f"ip {netns} link set {end} up")
        undo.callback(run, f"ip addr flush dev {near}")
        yield Wired(near, *_flow(undo))


def _flow(undo: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Both ends connected, or the socket would keep its first NAPI (sk_mark_napi_id_once)."""
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    undo.callback(near.close)
    far = open_socket(path_of(PEER), socket.AF_INET, socket.SOCK_DGRAM)
    undo.callback(far.close)
    near.bind((HERE, 7001))
    far.bind((THERE, 7002))
    near.connect((THERE, 7002))
    far.connect((HERE, 7001))
    return near, far
