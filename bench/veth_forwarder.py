# SPDX-License-Identifier: GPL-2.0-or-later
"""The forwarding host on three veth pairs: a NAPI thread polls e0, e1 and s2 each (SCHED_FIFO).

Senders have no TSO, or veth would leave NAPI out. The last of two CPUs is the generator's, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.bed import succeed
from bench.forwarder import EGRESS, RECEIVERS, SENDER, End, Forwarder, forwarder, polled_by_thread
from bench.pollers import Pollers, thread_use
from bench.polling import Polled

__all__ = ["NAMES", "Reading", "VethForwarder", "generators_cpu", "veth_forwarder"]

NAMES = (*RECEIVERS, SENDER)


class Reading(NamedTuple):
    """A bed at one time. By interface: `wakes` and `used_ns`, the CPU time of its thread."""

    at_ns: int
    wakes: Mapping[str, int]
    used_ns: Mapping[str, int]
    ring_waits: int  # of the receivers, for the producers' lock of the Tx ring
    received: int  # by their threads


def generators_cpu() -> int:
    """The last of two: all on the first leave it alone."""
    return sorted(os.sched_getaffinity(0))[1]


@dataclass(frozen=True, slots=True)
class VethForwarder:
    """`napis` of e0, e1, e2 and s2, one each; e2 receives nothing."""

    host: Forwarder
    napis: Mapping[str, Polled]
    pollers: Pollers

    def thread(self, interface: str) -> int:
        """Pid of its NAPI thread."""
        return self.napis[interface].thread

    def place(self, cpus: Mapping[str, Iterable[int]]) -> None:
        """Confine NAPI threads to these CPUs."""
        for interface, allowed in cpus.items():
            os.sched_setaffinity(self.thread(interface), set(allowed))

    def dropped(self) -> int:
        """Frames that were received and not sent: the Tx ring was full."""
        command = ("ip", "-n", self.host.fwd, "-s", "-j", "link", "show", EGRESS)
        [link] = json.loads(succeed(*command))
        return int(link["stats64"]["tx"]["dropped"])

    def read(self) -> Reading:
        """Its threads now."""
        threads = {name: self.thread(name) for name in NAMES}
        of = {name: self.pollers.totals(pid) for name, pid in threads.items()}
        return Reading(
            time.monotonic_ns(),
            {name: thread_use(pid).wakes for name, pid in threads.items()},
            {name: totals.ran_ns for name, totals in of.items()},
            sum(of[name].ring_waits for name in RECEIVERS),
            sum(of[name].packets for name in RECEIVERS),
        )


@contextlib.contextmanager
def veth_forwarder(program: Path) -> Iterator[VethForwarder]:
    """One, until the `with` ends."""
    with forwarder(program, _pair) as host:
        napis = {name: polled_by_thread(host, name) for name in (*NAMES, EGRESS)}
        threads = [napis[name].thread for name in NAMES]
        with contextlib.closing(Pollers(threads)) as pollers:
            yield VethForwarder(host, napis, pollers)


def _pair(_: int, here: End, there: End) -> None:
    peer = ("peer", "name", there.name, "netns", there.netns)
    succeed("ip", "link", "add", here.name, "netns", here.netns, "type", "veth", *peer)
    for netns, name in (here, there):
        succeed("ip", "netns", "exec", netns, "ethtool", "-K", name, "tso", "off")
