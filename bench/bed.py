# SPDX-License-Identifier: GPL-2.0-or-later
"""What a bench runs on: a NIC, the host behind it and a remote host, whatever the NIC is.

`lab_bed` brings a lab NIC up and takes it down after, by the operator's own commands (`atfnd lab up
| down`); bench/sim_bed.py does it with the test driver in the guest.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import Napi
from atfnd.kernel.netlink.netdev import NetdevFamily
from atfnd.kernel.system.netns import path_of
from atfnd.lab.wiring import PEER4, PEER_WIRE_LINK
from atfnd.nic import Nic
from atfnd.nic.driver import open_nic
from atfnd.nic.lab.device import wire_netns
from bench.meter import Meter

__all__ = ["Bed", "apart", "compiled", "lab_bed", "napis_of", "succeed"]


@dataclass(frozen=True, slots=True)
class Bed:
    """A device under test and a remote host, wired to each other."""

    nic: str  # as `atfnd run --nic` calls it
    device: str  # the interface behind it
    host: str | None  # network namespace of the interface, None for our own
    peer: str  # network namespace of the remote host
    address: str  # IPv4 of the host
    ifindex: int
    cpus: tuple[int, ...]  # CPU of each receive queue
    arfs: bool = False  # the kernel can write its filters (ndo_rx_flow_steer)
    peer_address: str = PEER4
    spare: tuple[int, ...] = ()  # CPUs without a queue: where senders and movers belong

    def open(self) -> AbstractContextManager[Nic]:
        """Its NIC, closed at the end of the `with`."""
        return contextlib.closing(open_nic(self.nic))

    def meter(self) -> Meter:
        """A meter of what the NIC delivers."""
        netns = path_of(self.host) if self.host else "/proc/thread-self/ns/net"
        return Meter(self.ifindex, os.stat(netns).st_ino)

    def clear_filters(self) -> None:
        """Empty the NIC's filter table: each contender starts from the same NIC."""
        with self.open() as nic:
            for rule in nic.filters():
                nic.delete(rule.location)

    def deliver_all_to(self, *queues: int) -> None:
        """Let RSS choose these queues for everything, so that every flow elsewhere needs a rule."""
        with self.open() as nic:
            rss = nic.rss()
            if rss is None:
                raise OperatorError(f"{self.nic} has no RSS table to write", exit_code=1)
            nic.set_rss(
                replace(rss, table=tuple(queues[n % len(queues)] for n in range(len(rss.table))))
            )

    def ring_drops(self) -> int | None:
        """Packets lost to full rings since the NIC came up."""
        with self.open() as nic:
            return nic.stats().ring_drops


def succeed(*command: str) -> str:
    """A command's output; OperatorError in its first words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise OperatorError(f"{' '.join(command)}: {words[0]}", exit_code=1)
    return done.stdout


def compiled(source: Path, folder: Path) -> Path:
    """A program in C, in this folder. OperatorError: it does not compile."""
    program = folder / source.stem
    flags = ("-O2", "-Wall", "-Wextra", "-Werror")
    succeed("gcc", *flags, "-o", str(program), str(source), "-lm")
    return program


def _lab(*arguments: str) -> None:
    succeed(sys.executable, "-m", "atfnd", "lab", *arguments)


@contextlib.contextmanager
def lab_bed(rules: int = 4096, queues: int | None = None) -> Iterator[Bed]:
    """One lab NIC with a queue per CPU, named after this process; down again whatever happens."""
    name = f"bench{os.getpid()}"
    host = f"{name}-host"
    count = queues or len(os.sched_getaffinity(0))
    try:
        _lab("up", "--name", name, "--queues", str(count), "--filters", str(rules))
        (link,) = json.loads(succeed("ip", "-n", host, "-j", "addr", "show", "r0"))
        address = next(a["local"] for a in link["addr_info"] if a["family"] == "inet")
        with contextlib.closing(open_nic(f"lab:{name}")) as nic:
            cpus = tuple(queue.cpu for queue in nic.queues() if queue.cpu is not None)
        yield Bed(f"lab:{name}", "r0", host, f"{name}-peer", address, link["ifindex"], cpus)
    finally:
        _lab("down", "--name", name)


def napis_of(netns: str, device: str) -> list[Napi]:
    """Those of a device, ascending: the queues' order. OperatorError: a kernel before 6.8."""
    with (
        contextlib.closing(Interface(device, netns)) as interface,
        contextlib.closing(NetdevFamily(netns)) as family,
    ):
        found = family.napis(interface.ifindex)
    if found is None:
        raise OperatorError("the kernel lists no NAPIs: it is older than 6.8", exit_code=1)
    return found


def apart(bed: Bed, cpus: tuple[int, ...]) -> Bed:
    """The bed, its clients and the wire from them on these CPUs."""
    for napi in napis_of(wire_netns(bed.nic.removeprefix("lab:")), PEER_WIRE_LINK):
        if napi.pid is not None:
            os.sched_setaffinity(napi.pid, cpus)
    return replace(bed, spare=cpus)
