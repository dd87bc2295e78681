# SPDX-License-Identifier: GPL-2.0-or-later
"""The forwarding host on three veth pairs: a NAPI thread polls e0, e1 and s2 each (SCHED_FIFO).

Senders have no TSO, or veth would leave NAPI out.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.bed import succeed
from bench.forwarder import EGRESS, RECEIVERS, SENDER, End, Forwarder, forwarder, polled_by_thread
from bench.polling import Napis

__all__ = ["VethForwarder", "veth_forwarder"]


@dataclass(frozen=True, slots=True)
class VethForwarder:
    """`napis` of e0, e1, e2 and s2, one each; e2 receives nothing."""

    host: Forwarder
    napis: Mapping[str, Napis]

    def thread(self, interface: str) -> int:
        """Pid of its NAPI thread."""
        return self.napis[interface].threads[0]

    def place(self, cpus: Mapping[str, Iterable[int]]) -> None:
        """Confine NAPI threads to these CPUs."""
        for interface, allowed in cpus.items():
            os.sched_setaffinity(self.thread(interface), set(allowed))

    def dropped(self) -> int:
        """Frames that were received and not sent: the Tx ring was full."""
        command = ("ip", "-n", self.host.fwd, "-s", "-j", "link", "show", EGRESS)
        [link] = json.loads(succeed(*command))
        return int(link["stats64"]["tx"]["dropped"])


@contextlib.contextmanager
def veth_forwarder(program: Path) -> Iterator[VethForwarder]:
    """One, until the `with` ends."""
    with forwarder(program, _pair) as host:
        names = (*RECEIVERS, EGRESS, SENDER)
        yield VethForwarder(host, {name: polled_by_thread(host, name) for name in names})


def _pair(_: int, here: End, there: End) -> None:
    peer = ("peer", "name", there.name, "netns", there.netns)
    succeed("ip", "link", "add", here.name, "netns", here.netns, "type", "veth", *peer)
    for netns, name in (here, there):
        succeed("ip", "netns", "exec", netns, "ethtool", "-K", name, "tso", "off")
