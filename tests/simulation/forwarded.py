# SPDX-License-Identifier: GPL-2.0-or-later
"""What the machine forwards from one of its NICs to another, as counts: no packet is made.

A packet is forwarded on the CPU that polls its receive queue, and goes out by the TX queue that
`xps_cpus` has for that CPU; else by that of the receive queue's number (docs/forwarding.md). What
waits in a TX queue is overtaken when a stream comes to another one: that is what is checked.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from atfnd.kernel.system.cpulist import parse_cpulist
from atfnd.model import ForwardedCount
from atfnd.observe.nics.forwarded import InterfaceMap
from tests.simulation.machine import NETNS
from tests.simulation.nic import WorldNic
from tests.simulation.world import World

__all__ = ["Forwards", "Stream"]

BYTES = 1000  # of a packet
PACKET_NS = 2_000  # of CPU time


class Stream(NamedTuple):
    """What comes in by a queue of one NIC and goes out by another; NICs by their place."""

    ingress: int
    queue: int
    egress: int


class Forwards:
    """`strict` says whether what is forwarded keeps its order where atfnd writes to this NIC."""

    def __init__(self, world: World, nics: Callable[[], list[WorldNic]]) -> None:
        self._world, self._nics = world, nics
        self.pps: dict[Stream, int] = {}
        self.strict: Callable[[WorldNic], bool] = lambda nic: False
        self.refusing = 0  # the next so many programs
        self._counts: Counter[tuple[int, int, int, int]] = Counter()
        self._counted_ns = world.now_ns
        self._windows = [world.now_ns, world.now_ns]  # the last two readings
        self._changed_ns = world.now_ns  # by something else than atfnd
        self.work: Callable[[int, int], None] = lambda cpu, ns: None
        self.loaded = False  # the program counts

    # ---- `observe.nics.forwarded`

    def open(self) -> Forwards:
        """As a `ForwardedPackets`: it counts from 0 on."""
        if self.refusing:
            self.refusing -= 1
            self._world.note("count refused", "the kernel refuses the program")
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        self.spend()
        self._counts.clear()
        self.loaded = True
        return self

    def read(self) -> list[ForwardedCount]:
        self.spend()
        self._windows = [self._windows[1], self._world.now_ns]
        return [
            ForwardedCount(NETNS, *key, count // 1_000_000_000, count * BYTES // 1_000_000_000)
            for key, count in self._counts.items()
        ]

    def missed(self) -> int:
        return 0

    def close(self) -> None:
        self.loaded = False

    def interfaces(self, namespaces: object) -> InterfaceMap:
        return InterfaceMap({(NETNS, nic.ifindex): nic.kernel_name for nic in self._nics()}, {})

    # ---- what happens

    def shift(self, stream: Stream, pps: int) -> None:
        """So much is forwarded from now on; 0: nothing."""
        self.others()
        self.pps[stream] = pps

    def others(self) -> None:
        """Another than atfnd is about to change something: what atfnd knows is old."""
        self.spend()
        self._changed_ns = self._world.now_ns

    def spend(self) -> None:
        """Count what was forwarded since the last call, as if all had been as it is now."""
        now_ns = self._world.now_ns
        since_ns, self._counted_ns = now_ns - self._counted_ns, now_ns
        if not since_ns:
            return
        for stream, pps in self.pps.items():
            way = self._way(stream) if pps else None
            if way is not None:
                ingress, egress = self._ends(stream)
                key = ingress.ifindex, egress.ifindex, way.tx_queue, way.cpu
                self._counts[key] += pps * since_ns
                self.work(way.cpu, pps * since_ns * PACKET_NS // 1_000_000_000)

    def ways(self, by: WorldNic) -> dict[Stream, int]:
        """The TX queue of each stream with packets to or from this NIC."""
        self.spend()
        found = {}
        for stream, pps in self.pps.items():
            if pps and by in self._ends(stream) and (way := self._way(stream)) is not None:
                found[stream] = way.tx_queue
        return found

    def written(self, nic: WorldNic, name: str, before: dict[Stream, int]) -> None:
        """atfnd has written a setting of this NIC: no stream has got another TX queue, if the rule
        keeps order. Where something else changed after the count that atfnd knows had begun, it
        cannot know."""
        for stream, tx_queue in self.ways(nic).items():
            was = before.get(stream, tx_queue)
            if was == tx_queue or not self.strict(nic):
                continue
            if self._changed_ns >= self._windows[0]:
                self._world.seen["excused: forwarded elsewhere meanwhile"] += 1
                continue
            how = f"{stream} goes out by TX queue {tx_queue}, and did by {was}: {nic.name} {name}"
            self._world.broken("forward order", how)

    class _Way(NamedTuple):
        cpu: int
        tx_queue: int

    def _ends(self, stream: Stream) -> tuple[WorldNic, WorldNic]:
        nics = self._nics()
        return nics[stream.ingress], nics[stream.egress]

    def _way(self, stream: Stream) -> _Way | None:
        """None: a link is down."""
        ingress, egress = self._ends(stream)
        if not (ingress.table.up and egress.table.up):
            return None
        ring = ingress.rings[stream.queue]
        cpu = ring.rx_cpu
        if cpu is None:  # it may run on several
            cpu = min(parse_cpulist(ingress.values[f"queue-cpu:{ring.index}"]) - ingress.offline)
        masks = (parse_cpulist(egress.values[f"xps-cpus:{each.index}"]) for each in egress.rings)
        own = (queue for queue, mask in enumerate(masks) if cpu in mask)
        return self._Way(cpu, next(own, stream.queue % len(egress.rings)))
