# SPDX-License-Identifier: GPL-2.0-or-later
"""A lab NIC brought up for one bench and taken down after it, by the operator's own commands
(`atfnd lab up | down`), and what the benches must know about it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from atfnd.errors import OperatorError
from atfnd.nic.lab import LabNic
from bench.meter import Meter
from bench.netns import inode

__all__ = ["Bed", "lab_bed"]


@dataclass(frozen=True, slots=True)
class Bed:
    """A remote host (`peer`), the wire, and the device under test (`host`, its NIC is `r0`)."""

    name: str
    address: str  # IPv4 of the host
    ifindex: int
    cpus: tuple[int, ...]  # CPU of each receive queue

    @property
    def peer(self) -> str:
        return f"{self.name}-peer"

    @property
    def host(self) -> str:
        return f"{self.name}-host"

    def meter(self) -> Meter:
        """A meter of what the host's NIC delivers."""
        return Meter(self.ifindex, inode(self.host))

    def clear_rules(self) -> None:
        """Empty the NIC's filter table: each contender starts from the same NIC."""
        with contextlib.closing(LabNic.open(self.name)) as nic:
            for rule in nic.rules():
                nic.delete(rule.location)

    def deliver_all_to(self, queue: int) -> None:
        """Let RSS choose one queue for everything, so that every flow elsewhere needs a rule."""
        with contextlib.closing(LabNic.open(self.name)) as nic:
            rss = nic.rss()
            nic.set_rss(replace(rss, table=(queue,) * len(rss.table)))

    def received(self) -> int:
        """Packets the host's NIC received since it came up, by its own count."""
        (link,) = json.loads(_run("ip", "-n", self.host, "-s", "-j", "link", "show", "r0"))
        return int(link["stats64"]["rx"]["packets"])

    def ring_drops(self) -> int | None:
        """Packets lost to full rings since the NIC came up."""
        with contextlib.closing(LabNic.open(self.name)) as nic:
            return nic.stats().ring_drops


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise OperatorError(f"{' '.join(command)}: {words[0]}", exit_code=1)
    return done.stdout


def _lab(*arguments: str) -> None:
    _run(sys.executable, "-m", "atfnd", "lab", *arguments)


@contextlib.contextmanager
def lab_bed(rules: int = 4096, queues: int | None = None) -> Iterator[Bed]:
    """One lab NIC with a queue per CPU, named after this process; down again whatever happens."""
    name = f"bench{os.getpid()}"
    count = queues or len(os.sched_getaffinity(0))
    try:
        _lab("up", "--name", name, "--queues", str(count), "--rules", str(rules))
        (link,) = json.loads(_run("ip", "-n", f"{name}-host", "-j", "addr", "show", "r0"))
        address = next(a["local"] for a in link["addr_info"] if a["family"] == "inet")
        with contextlib.closing(LabNic.open(name)) as nic:
            cpus = tuple(queue.cpu for queue in nic.queues() if queue.cpu is not None)
        yield Bed(name, address, link["ifindex"], cpus)
    finally:
        _lab("down", "--name", name)
