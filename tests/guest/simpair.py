# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic as pair.sh sets it up: `sim0` in the guest's own namespace, `sim1` in `peer`.

Loads and unloads the module, opens sockets at both ends and writes faults to debugfs.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atfnd.kernel.system.netns import open_socket, path_of
from tests.wait import until

__all__ = ["HOST", "MODULE", "PEER", "fault", "open_host", "open_peer", "simnic", "unload"]

HERE = Path(__file__).parent
MODULE = HERE.parents[1] / "build/guest" / os.uname().release / "simnic.ko"
HOST: dict[int, str] = {socket.AF_INET: "10.9.0.1", socket.AF_INET6: "fd09::1"}
PEER: dict[int, str] = {socket.AF_INET: "10.9.0.2", socket.AF_INET6: "fd09::2"}
NETNS = "peer"


@contextmanager
def simnic(**parameters: object) -> Iterator[None]:
    """Loaded with these module parameters, up and connected; unloaded whatever happens."""
    words = [f"{name}={value}" for name, value in parameters.items()]
    try:
        subprocess.run(["bash", HERE / "pair.sh", *words], check=True)
        carrier = Path("/sys/class/net/sim0/carrier")
        until(lambda: carrier.read_text().strip() == "1", "sim0 has carrier")
        yield
    finally:
        unload()


def unload() -> None:
    """The namespace goes first: its end of the pair comes back and no socket holds it."""
    if Path(path_of(NETNS)).exists():
        subprocess.run(["ip", "netns", "del", NETNS], check=True)

    def gone() -> bool:
        subprocess.run(["rmmod", "simnic"], stderr=subprocess.DEVNULL)
        return not Path("/sys/module/simnic").exists()

    until(gone, "simnic is unloaded")


def fault(port: str, name: str, value: object) -> None:
    """Arm `name` (fail_insert, vanish, reset) on `sim0` or `sim1`. OSError: simnic refuses."""
    Path("/sys/kernel/debug/simnic", port, name).write_text(f"{value}\n")


def open_host(family: int, kind: int, port: int = 0) -> socket.socket:
    """A socket on sim0's address."""
    return _bound(None, HOST[family], family, kind, port)


def open_peer(family: int, kind: int, port: int = 0) -> socket.socket:
    """A socket on sim1's address, in the other namespace."""
    return _bound(path_of(NETNS), PEER[family], family, kind, port)


def _bound(netns: str | None, address: str, family: int, kind: int, port: int) -> socket.socket:
    made = open_socket(netns, family, kind)
    made.settimeout(60)
    made.bind((address, port))
    return made
