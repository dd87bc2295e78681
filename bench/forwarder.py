# SPDX-License-Identifier: GPL-2.0-or-later
"""A forwarding host of three interfaces, after the second paper: two receive, the third sends.

    gen --g0/e0--> fwd <--e1/g1-- gen        fwd --e2/s2--> sink

Three wires in three namespaces; of what kind, the caller says. What polls e0, e1 and s2 is the
driver of Rx1, Rx2 and Tx: the ring between e2 and s2 is the Tx ring, 256 entries, whose producers
take a lock; who takes back what was sent is s2's NAPI, which drops it
(bench/extension/arrivals.bpf.c). There is no netfilter rule, no queueing discipline, no IPv6.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.interface import Interface
from atfnd.kernel.system.netns import path_of
from bench.bed import compiled, succeed
from bench.children import Child, child
from bench.extension import _bench
from bench.netns import within

__all__ = [
    "EGRESS",
    "RECEIVERS",
    "SENDER",
    "End",
    "Forwarder",
    "Offered",
    "Wire",
    "built",
    "forwarder",
    "offered",
    "sent",
]

SOURCE = Path(__file__).with_name("traffic") / "frames.c"
RECEIVERS, EGRESS, SENDER = ("e0", "e1"), "e2", "s2"
DESTINATION = "10.30.0.2"
MACS = {name: f"02:00:00:00:20:0{at}" for at, name in enumerate(("e0", "e1", "e2", "s2"))}
GENERATOR_PRIORITY = 30  # it stands for a machine of its own


class Offered(NamedTuple):
    """What the generator did: `refused` found the ring of e0 or e1 full."""

    sent: int
    refused: int
    skipped: int  # it had not enough of a CPU for these
    seconds: float

    @property
    def frames(self) -> int:
        return self.sent + self.refused


@dataclass(frozen=True, slots=True)
class Forwarder:
    """It forwards as long as its `with` lasts. `gen`, `fwd` and `sink` are network namespaces."""

    gen: str
    fwd: str
    sink: str
    program: Path


def built(folder: Path) -> Path:
    """The generator, compiled there."""
    return compiled(SOURCE, folder)


class End(NamedTuple):
    """Of a wire: an interface to be, and its namespace."""

    netns: str
    name: str


Wire = Callable[[int, End, End], None]  # lays the wire of this number between the two


@contextlib.contextmanager
def forwarder(program: Path, wire: Wire) -> Iterator[Forwarder]:
    """One, its namespaces named after this process."""
    gen, fwd, sink = (f"bench{os.getpid()}-{role}" for role in ("gen", "fwd", "sink"))
    with contextlib.ExitStack() as undo:
        for name in (gen, fwd, sink):
            succeed("ip", "netns", "add", name)
            undo.callback(succeed, "ip", "netns", "del", name)
            off = "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"
            succeed("ip", "netns", "exec", name, "sysctl", "-q", "-w", *off)
        for at, there in enumerate((End(gen, "g0"), End(gen, "g1"), End(sink, SENDER))):
            here = End(fwd, f"e{at}")
            wire(at, here, there)
            for netns, name in (here, there):
                if name in MACS:
                    succeed("ip", "-n", netns, "link", "set", name, "address", MACS[name])
                succeed("ip", "-n", netns, "link", "set", name, "up")
            succeed("ip", "-n", fwd, "addr", "add", f"10.{at + 1}0.0.1/24", "dev", here.name)
        succeed("ip", "netns", "exec", fwd, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        neighbour = (DESTINATION, "lladdr", MACS[SENDER], "dev", EGRESS, "nud", "permanent")
        succeed("ip", "-n", fwd, "neigh", "add", *neighbour)
        with contextlib.closing(Interface(SENDER, path_of(sink))) as sender:
            ifindex = sender.ifindex
        arrivals = within(sink, lambda: _bench.Arrivals(ifindex))
        undo.callback(arrivals.close)
        yield Forwarder(gen, fwd, sink, program)


@contextlib.contextmanager
def offered(
    bed: Forwarder, rate_pps: float, seconds: float, sizes: str, cpu: int
) -> Iterator[Child]:
    """Frames of these sizes (`64` or `mix`) by both ports together, from a generator on `cpu`."""
    words: list[object] = [f"{rate_pps:.0f}", seconds, sizes, DESTINATION]
    for at, name in enumerate(RECEIVERS):
        words += [f"g{at}", MACS[name], f"10.{at + 1}0.0.2"]
    command = ("chrt", "-f", str(GENERATOR_PRIORITY), str(bed.program), *map(str, words))
    with child(*command, netns=bed.gen, cpus=[cpu]) as generator:
        generator.said("sending")
        yield generator


def sent(generator: Child, deadline_s: float) -> Offered:
    """Once it has ended."""
    said = json.loads(generator.wait(deadline_s).splitlines()[-1])
    return Offered(sum(said["sent"]), sum(said["refused"]), said["skipped"], said["seconds"])
