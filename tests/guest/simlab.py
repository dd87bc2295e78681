# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC of the guest as a lab: the same two ends as the lab NIC has, so the same applications run
on it. `a_simlab` is simnic's pair, `a_lab_between` any two ports that reach each other.

The guest's own namespace, where the NIC and the daemon are, gets the name `sim-host`; the other
port is in `sim-peer`. Addresses are those of the lab (atfnd/lab/wiring.py).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atfnd.lab.wiring import HOST4, HOST6, PEER4, PEER6
from atfnd.nic import Nic
from atfnd.nic.driver import open_nic
from tests.labs import Ends
from tests.wait import until

__all__ = [
    "FAULTS",
    "MODULE",
    "NAME",
    "a_lab_between",
    "a_simlab",
    "ethtool",
    "interrupts",
    "iperf3",
    "ports",
    "sh",
    "statistics",
    "unloaded",
    "wire",
]

NAME = "sim0"
MODULE = Path(__file__).parents[2] / "build/guest" / os.uname().release / "simnic.ko"
FAULTS = Path("/sys/kernel/debug/simnic") / NAME
_HOST, _PEER = "sim-host", "sim-peer"


def sh(*words: object) -> str:
    """Run a command that must succeed."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def a_lab_between(near: str, far: str) -> Iterator[Ends[Nic]]:
    """Two ports that reach each other; afterwards both are here, without addresses."""
    try:
        sh("ip", "netns", "attach", _HOST, 1)
        sh("ip", "netns", "add", _PEER)
        wire(near, far)
        lab = Ends("sim", open_nic(near))
        try:
            yield lab
        finally:
            lab.close()
    finally:
        for command in (("ip", "netns", "del", _HOST), ("ip", "netns", "del", _PEER),
                        ("ip", "addr", "flush", "dev", near)):  # fmt: skip
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


@contextmanager
def a_simlab(**parameters: object) -> Iterator[Ends[Nic]]:
    """simnic, loaded with these module parameters and up; unloaded again whatever happens."""
    sh("insmod", MODULE, *(f"{name}={value}" for name, value in parameters.items()))
    try:
        with a_lab_between(NAME, "sim1") as lab:
            yield lab
    finally:
        until(unloaded, "simnic is unloaded", 30)


@contextmanager
def iperf3(*words: object) -> Iterator[subprocess.Popen[bytes]]:
    """TCP from the other port without a pause, as `words` say; what is given is its client."""
    client = ["iperf3", "-c", HOST4, "-t", "3600", *map(str, words)]
    with ExitStack() as stack:
        for netns, command in ((_HOST, ["iperf3", "-s"]), (_PEER, client)):
            running = subprocess.Popen(
                ["ip", "netns", "exec", netns, *command], stdout=subprocess.DEVNULL
            )
            stack.callback(running.wait)
            stack.callback(running.kill)
            until(lambda: ":5201" in sh("ss", "-Hltn"), "iperf3 listens")
        yield running


def wire(near: str = NAME, far: str = "sim1") -> None:
    """Addresses on both ends, and carrier: also after the module was loaded anew."""
    sh("ip", "link", "set", far, "netns", _PEER)
    for netns, link, address4, address6 in (
        (None, near, HOST4, HOST6),
        (_PEER, far, PEER4, PEER6),
    ):
        ip = ["ip"] if netns is None else ["ip", "-n", netns]
        sh(*ip, "addr", "add", f"{address4}/15", "dev", link)
        sh(*ip, "addr", "add", f"{address6}/31", "dev", link, "nodad")
        sh(*ip, "link", "set", link, "up")
    until(lambda: "LOWER_UP" in sh("ip", "link", "show", near), "the wire is connected")


def unloaded() -> bool:
    """Sockets that are about to close may hold the device a moment longer."""
    subprocess.run(["rmmod", "simnic"], check=False, stderr=subprocess.DEVNULL)
    return not Path("/sys/module/simnic").exists()


def ports(driver: str) -> list[str]:
    """Interfaces of a driver, in the order of their names."""
    drivers = Path("/sys/class/net").glob("*/device/driver")
    return sorted(each.parts[-3] for each in drivers if each.resolve().name == driver)


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
    heads, *rows = map(str.split, Path("/proc/interrupts").read_text().splitlines())
    [counts] = [row[1 : 1 + len(heads)] for row in rows if row[0] == f"{irq}:"]
    return list(map(int, counts))
