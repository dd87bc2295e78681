# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic as pair.sh sets it up: `sim0` in the guest's own namespace, `sim1` in `peer`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.wait import until

__all__ = ["HOST", "PEER", "simnic"]

HERE = Path(__file__).parent
HOST: dict[int, str] = {socket.AF_INET: "10.9.0.1", socket.AF_INET6: "fd09::1"}
PEER: dict[int, str] = {socket.AF_INET: "10.9.0.2", socket.AF_INET6: "fd09::2"}


@contextmanager
def simnic(**parameters: object) -> Iterator[None]:
    """Loaded with these module parameters, up and connected; unloaded whatever happens."""
    words = [f"{name}={value}" for name, value in parameters.items()]
    try:
        subprocess.run(["bash", HERE / "pair.sh", *words], check=True)
        carrier = Path("/sys/class/net/sim0/carrier")
        until(lambda: carrier.read_text().strip() == "1", "sim0 has carrier")
        yield
    finally:  # the namespace first: its end of the pair comes back, and no socket holds it
        subprocess.run(["ip", "netns", "del", "peer"], stderr=subprocess.DEVNULL)

        def unloaded() -> bool:
            subprocess.run(["rmmod", "simnic"], stderr=subprocess.DEVNULL)
            return not Path("/sys/module/simnic").exists()

        until(unloaded, "simnic is unloaded")
