# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab NIC as a `Nic`: emulated filters and RSS, real queues, NAPI threads and rings.

Filters, RSS and counters are the emulated device's (`lab_device`). A queue is a receive queue of
veth with its own NAPI thread, which stands for the interrupt, or which causes one on another CPU
(`interrupts`); then the queue has no thread that anybody sees. veth has no IRQ, and does not say
which NAPI serves which queue: they are created in queue order (drivers/net/veth.c,
__veth_napi_enable_range), so the lowest NAPI id is the first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import Napi, make_realtime, thread_cpus
from atfnd.kernel.interrupts.napi_threads import polled
from atfnd.kernel.interrupts.packet_steering import (
    FLOW_ENTRIES,
    read_one,
    write_steering,
)
from atfnd.kernel.netlink.netdev import NetdevFamily
from atfnd.kernel.system.cpulist import format_cpulist, parse_cpulist
from atfnd.model import (
    Actuator,
    Caps,
    Conflict,
    Device,
    Filter,
    Match,
    NicStats,
    Queue,
    QueueStats,
    Rss,
)
from atfnd.model.nic import RSS_KEY
from atfnd.model.reception import OF_NAPI
from atfnd.model.toeplitz import KEY_BYTES, hash_table
from atfnd.nic import Claims
from atfnd.nic.lab.device import HOST_LINK, WIRE_LINK, LabDevice, host_netns, wire_netns
from atfnd.nic.lab.filters import LabNtuple
from atfnd.nic.lab.interrupts import cpus_of, set_cpus
from atfnd.nic.napi_settings import NapiSettings

__all__ = ["INTERRUPT_PRIORITY", "LabNic", "write_rss"]

INTERRUPT_PRIORITY = 10  # SCHED_FIFO: as SCHED_OTHER a NAPI thread waits behind busy processes
_RFS = "rps-flow-cnt", FLOW_ENTRIES
RING_SIZE = 256  # drivers/net/veth.c, VETH_RING_SIZE


class LabNic:
    """One lab's NIC; many may be open at once, in any process."""

    def __init__(self, name: str) -> None:
        """Open the NIC of a lab that is up; OperatorError when it is not."""
        with ExitStack() as undo:
            self._device = LabDevice.open(name)
            undo.callback(self._device.close)
            self.name, self.netns = f"lab:{name}", host_netns(name)
            self._ntuple = LabNtuple(self._device)
            self.interface = Interface(HOST_LINK, self.netns)
            self.ifindex = self.interface.ifindex
            undo.callback(self.interface.close)
            self._wire = Interface(WIRE_LINK, wire_netns(name))
            undo.callback(self._wire.close)
            self._napi = NetdevFamily(self.netns)
            undo.callback(self._napi.close)
            self._deferral = NapiSettings(self.interface, self.queues)
            self._dropped = self._wire.open("statistics/tx_dropped")
            undo.callback(os.close, self._dropped)
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    @property
    def interrupts(self) -> bool:
        """Packets come by interrupts, not from NAPI threads."""
        return self._device.interrupts

    def caps(self) -> Caps:
        return Caps(
            driver="lab",
            filters=True,
            filter_slots=self._device.slots,
            prefix_masks=True,
            location_any=True,
            rss_table=True,
            queue_cpu=True,
            actuator=Actuator.IN_PLACE,
            exact_wins=True,
        )

    def probe(self, claims: Claims | None = None) -> Caps:
        """As `caps`: the emulated NIC is ours, and does what it says."""
        return self.caps()

    def device(self) -> Device:
        """veth announces each packet at once (veth_xmit(), __veth_xdp_flush())."""
        queues = self._device.queues
        sizes = queues, queues, RING_SIZE, RING_SIZE
        return Device("lab", None, None, *sizes, rx_usecs=0, adaptive_rx=False)

    def conflicts(self) -> tuple[Conflict, ...]:
        """Nothing else can be set up that works against it."""
        return ()

    def settings(self) -> Mapping[str, str]:
        """The CPU lists of its queues' interrupts or NAPI threads, the indirection table and the
        key of its hash, what defers interrupts, and the tables of RFS, unless its packets come by
        interrupts (which RPS plays)."""
        every = range(self._device.queues)
        names = ["rss", RSS_KEY, *(f"queue-cpu:{index}" for index in every), FLOW_ENTRIES]
        names += [f"rps-flow-cnt:{index}" for index in every]
        rings = self._rings()
        found = ((name, self._setting(name, rings)) for name in names)
        values = {name: value for name, value in found if value is not None}
        return values | self._deferral.read()

    def setting(self, name: str) -> str | None:
        if name.partition(":")[0] in OF_NAPI:
            return self._deferral.one(name)
        return self._setting(name, self._rings() if name.startswith("queue-cpu:") else [])

    def _setting(self, name: str, rings: Sequence[Napi | None]) -> str | None:
        kind, _, index = name.partition(":")
        if name == "rss":
            return " ".join(map(str, self.rss().table))
        if name == RSS_KEY:
            return self.rss().key.hex()
        if name == FLOW_ENTRIES or (index.isdecimal() and int(index) < self._device.queues):
            if kind in _RFS:
                return None if self.interrupts else read_one(self.interface, name)
            napi = rings[int(index)] if kind == "queue-cpu" else None
            if napi is not None and napi.pid is not None:
                queue = int(index)
                cpus = cpus_of(self.interface, queue) if self.interrupts else thread_cpus(napi.pid)
                return format_cpulist(cpus)
        return None

    def write_setting(self, name: str, value: str) -> None:
        """As `Nic.write_setting`; OSError(ENETDOWN) for a queue of a link that is down."""
        if name == "rss":
            self.set_rss(Rss(self.rss().key, tuple(map(int, value.split()))))
            return
        if name == RSS_KEY:
            self.set_rss(Rss(bytes.fromhex(value), self.rss().table))
            return
        kind, _, index = name.partition(":")
        if kind in OF_NAPI:
            self._deferral.write(name, value)
            return
        if kind in _RFS and not self.interrupts:
            write_steering(self.interface, name, value)
            return
        if kind != "queue-cpu" or not index.isdigit():
            raise KeyError(name)
        if self.interrupts:
            self._interrupt(int(index), parse_cpulist(value))
        else:
            os.sched_setaffinity(self._thread(int(index)), parse_cpulist(value))

    def up(self) -> bool:
        """Both ends are up. OSError(ENODEV) once the lab is gone."""
        return self.interface.up() and self._wire.up()

    def queues(self) -> tuple[Queue, ...]:
        """While the link is down a queue has no NAPI, thread or CPU."""
        return tuple(self._queue(index, napi) for index, napi in enumerate(self._rings()))

    def set_queue_cpu(self, index: int, cpu: int) -> None:
        """Also makes the thread prompt again, which a link flap undoes (its pid is a new one)."""
        if self.interrupts:
            self._interrupt(index, frozenset({cpu}))
        else:
            make_realtime(self._thread(index), cpu, INTERRUPT_PRIORITY)

    def _interrupt(self, index: int, cpus: frozenset[int]) -> None:
        thread = self._thread(index)
        unused = self._napis()[0].pid  # never confined
        online = thread_cpus(unused) if unused is not None else frozenset[int]()
        set_cpus(self.interface, index, cpus, thread, online, INTERRUPT_PRIORITY)

    def _thread(self, index: int) -> int:
        """What polls a queue's ring."""
        if not 0 <= index < self._device.queues:
            raise OSError(errno.EINVAL, f"no queue {index}, there are {self._device.queues}")
        napi = self._rings()[index]
        if napi is None or napi.pid is None:
            raise OSError(errno.ENETDOWN, f"queue {index} has no NAPI thread: the link is down")
        return napi.pid

    def _rings(self) -> list[Napi | None]:
        """The NAPI of each queue."""
        rings: list[Napi | None] = [*self._napis()[self._device.first_ring :]]
        return rings + [None] * (self._device.queues - len(rings))

    def _napis(self) -> list[Napi]:
        return polled(self.interface, self._napi.napis(self.ifindex) or [])

    def _queue(self, index: int, napi: Napi | None) -> Queue:
        if napi is None:
            return Queue(index, None, None, None, None, None)
        try:
            if self.interrupts:
                cpus = cpus_of(self.interface, index)
            else:
                cpus = thread_cpus(napi.pid) if napi.pid is not None else frozenset[int]()
        except ProcessLookupError:  # the link went down since the kernel listed it
            return Queue(index, None, None, None, None, None)
        cpu = next(iter(cpus)) if len(cpus) == 1 else None
        if self.interrupts:
            return Queue(index, napi.id, None, cpu, False, None)
        return Queue(index, napi.id, napi.irq, cpu, napi.threaded, napi.pid)

    def filters(self) -> list[Filter]:
        self.interface.up()  # ENODEV when the device is gone: our mapping of its registers stays
        return self._ntuple.list()

    def filter(self, location: int) -> Filter | None:
        self.interface.up()
        return self._ntuple.filter(location)

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        """As `Nic.insert`; the highest free location when none is given. Hits of a filter whose
        queue is replaced go on counting."""
        self.interface.up()
        return self._ntuple.insert(match, queue, location)

    def delete(self, location: int) -> None:
        self.interface.up()
        self._ntuple.delete(location)

    def rss(self) -> Rss:
        self.interface.up()
        return Rss(bytes(self._device.rss_key), tuple(self._device.rss_table))

    def set_rss(self, rss: Rss) -> None:
        """Entry by entry, as hardware does it: packets in between are spread by part of each."""
        self.interface.up()
        write_rss(self._device, rss)

    def ring_size(self) -> int | None:
        return RING_SIZE

    def stats(self) -> NicStats:
        """Drops: the ring was full, which veth counts as dropped where the wire transmits."""
        dropped = int(os.pread(self._dropped, 32, 0))
        device = self._device
        queues = tuple(
            QueueStats(
                index=index,
                packets=device.by_filter[index] + device.by_rss[index],
                bytes=device.bytes[index],
                by_filter=device.by_filter[index],
                by_rss=device.by_rss[index],
            )
            for index in range(device.queues)
        )
        return NicStats(queues, dropped)


def write_rss(device: LabDevice, rss: Rss) -> None:
    """Write key and indirection table, and the hash table made from the key."""
    if len(rss.key) != KEY_BYTES or len(rss.table) != len(device.rss_table):
        raise OSError(
            errno.EINVAL,
            f"RSS wants a key of {KEY_BYTES} bytes and {len(device.rss_table)} entries",
        )
    if not all(0 <= queue < device.queues for queue in rss.table):
        raise OSError(errno.EINVAL, f"RSS table names a queue beyond {device.queues - 1}")
    with device.locked():
        if rss.key != device.rss_key:
            device.toeplitz[:] = memoryview(hash_table(rss.key))
            device.rss_key[:] = rss.key
        for entry, queue in enumerate(rss.table):
            device.rss_table[entry] = queue
