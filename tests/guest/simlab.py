# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic as a lab: the same two ends as the lab NIC has, so the same applications run on it.

The guest's own namespace, where the NIC and the daemon are, gets the name `sim-host`; the other
port is in `sim-peer`. Addresses are those of the lab (atfnd/lab/wiring.py).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atfnd.lab.wiring import HOST4, HOST6, PEER4, PEER6
from atfnd.nic import Nic
from atfnd.nic.driver import open_nic
from tests.labs import Ends
from tests.wait import until

__all__ = ["FAULTS", "MODULE", "NAME", "a_simlab", "ethtool", "interrupts", "sh", "statistics"]

NAME = "sim0"
MODULE = Path(__file__).parents[2] / "build/guest/simnic.ko"
FAULTS = Path("/sys/kernel/debug/simnic") / NAME
_HOST, _PEER = "sim-host", "sim-peer"


def sh(*words: object) -> str:
    """Run a command that must succeed."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def a_simlab(**parameters: object) -> Iterator[Ends[Nic]]:
    """simnic, loaded with these module parameters and up; unloaded again whatever happens."""
    sh("insmod", MODULE, *(f"{name}={value}" for name, value in parameters.items()))
    try:
        sh("ip", "netns", "attach", _HOST, 1)
        sh("ip", "netns", "add", _PEER)
        wire()
        lab = Ends("sim", open_nic(NAME))
        try:
            yield lab
        finally:
            lab.close()
    finally:
        for name in (_HOST, _PEER):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
        until(unloaded, "simnic is unloaded", 30)


def wire(host: str = NAME) -> None:
    """Addresses on both ends, and carrier: also after the module was loaded anew."""
    sh("ip", "link", "set", "sim1", "netns", _PEER)
    for netns, link, address4, address6 in (
        (None, host, HOST4, HOST6),
        (_PEER, "sim1", PEER4, PEER6),
    ):
        ip = ["ip"] if netns is None else ["ip", "-n", netns]
        sh(*ip, "addr", "add", f"{address4}/15", "dev", link)
        sh(*ip, "addr", "add", f"{address6}/31", "dev", link, "nodad")
        sh(*ip, "link", "set", link, "up")
    until(lambda: "LOWER_UP" in sh("ip", "link", "show", host), "the wire is connected")


def unloaded() -> bool:
    """Sockets that are about to close may hold the device a moment longer."""
    subprocess.run(["rmmod", "simnic"], check=False, stderr=subprocess.DEVNULL)
    return not Path("/sys/module/simnic").exists()


def ethtool(*words: object) -> str:
    """What ethtool(8) prints; bookworm's exits 0 when a filter is refused, so listings count."""
    return sh("ethtool", *words)


def statistics(nic: str = NAME) -> dict[str, int]:
    """`ethtool -S`."""
    return {
        name: int(value)
        for name, value in re.findall(r"^ +(\S+): (\d+)$", ethtool("-S", nic), re.MULTILINE)
    }


def interrupts(irq: int) -> list[int]:
    """A row of /proc/interrupts: how many by CPU."""
    for line in Path("/proc/interrupts").read_text().splitlines():
        number, _, rest = line.partition(":")
        if number.strip() == str(irq):
            counts = []
            for word in rest.split():
                if not word.isdigit():
                    break
                counts.append(int(word))
            return counts
    raise AssertionError(f"no interrupt {irq}")
