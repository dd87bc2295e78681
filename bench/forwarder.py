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
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import make_realtime
from atfnd.kernel.system.netns import path_of
from bench.bed import compiled, succeed
from bench.children import Child, child
from bench.extension import _bench
from bench.netns import within
from bench.polling import Polled, napis_of

__all__ = [
    "EGRESS",
    "RECEIVERS",
    "SENDER",
    "End",
    "Forwarder",
    "Frames",
    "Offered",
    "Wire",
    "built",
    "forwarder",
    "offered",
    "polled_by_thread",
    "sent",
]

SOURCE = Path(__file__).with_name("traffic") / "frames.c"
RECEIVERS, EGRESS, SENDER = ("e0", "e1"), "e2", "s2"
DESTINATION = "10.30.0.2"
MACS = {name: f"02:00:00:00:20:0{at}" for at, name in enumerate(("e0", "e1", "e2", "s2"))}
RX_PRIORITY, TX_PRIORITY = 10, 20  # what was sent is taken back before more is received
GENERATOR_PRIORITY = 30  # it stands for a machine of its own


class Frames(NamedTuple):
    """What has arrived at the sink."""

    of_ports: tuple[int, int]
    bytes: int
    delays: tuple[int, ...]  # by slot: `delay_ns`

    @property
    def frames(self) -> int:
        return sum(self.of_ports)

    def since(self, earlier: Frames) -> Frames:
        one, two = (now - was for now, was in zip(self.of_ports, earlier.of_ports, strict=True))
        pairs = zip(self.delays, earlier.delays, strict=True)
        return Frames(
            (one, two), self.bytes - earlier.bytes, tuple(now - was for now, was in pairs)
        )

    def delay_ns(self, share: float) -> float | None:
        """A quantile of the time from the generator to the sink. None: nothing has arrived."""
        left = share * sum(self.delays)
        for slot, count in enumerate(self.delays):
            left -= count
            if count and left <= 0:
                return _middle_ns(slot)
        return None


def _middle_ns(slot: int) -> float:
    """Of a slot of slot_of(), arrivals.bpf.c."""
    if slot < 8:
        return float(slot)
    exponent = slot // 8 + 2
    return float((8 + slot % 8 + 0.5) * 2 ** (exponent - 3))


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
    _arrivals: _bench.Arrivals

    def netns_of(self, interface: str) -> str:
        """Of one of the three that receive: e0, e1, s2."""
        return self.sink if interface == SENDER else self.fwd

    def rps(self, cpus: Iterable[int]) -> None:
        """Have what e0 and e1 receive handed to these CPUs by its hash; none: to no other."""
        mask = f"{sum(1 << cpu for cpu in cpus):x}"
        for interface in RECEIVERS:
            with contextlib.closing(Interface(interface, path_of(self.fwd))) as receiver:
                receiver.write("queues/rx-0/rps_cpus", mask)

    def arrived(self) -> Frames:
        """All that has come to the sink so far."""
        one, two, bytes_ = self._arrivals.counts()
        return Frames((one, two), bytes_, tuple(array("Q", self._arrivals.delays())))


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
        yield Forwarder(gen, fwd, sink, program, arrivals)


def polled_by_thread(host: Forwarder, name: str) -> Polled:
    """e0, e1, e2 or s2, by a thread of its own that is as prompt as an interrupt."""
    netns = path_of(host.netns_of(name))
    with contextlib.closing(Interface(name, netns)) as interface:
        interface.set_gro(True)
        interface.write("threaded", "1")
    [napi] = [each for each in napis_of(netns, name) if each.pid is not None]
    found = Polled(netns, napi.ifindex, napi.id, napi.pid or 0)
    make_realtime(found.thread, None, TX_PRIORITY if name == SENDER else RX_PRIORITY)
    return found


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
