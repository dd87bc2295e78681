# SPDX-License-Identifier: GPL-2.0-or-later
"""The emulated device behind a lab NIC: its registers and filter slots, mapped into our memory.

The device is the BPF program on the wire's end of the lab (`bpf/shared/classifier.h`); nothing is
pinned. The tc filter keeps program and maps, and each opener finds them again: filter, program id,
map ids.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout
from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink.clsact import egress_programs
from atfnd.kernel.system.netns import exists, path_of
from atfnd.model import LAB_LINK

__all__ = [
    "FILTER",
    "FIRST_RING",
    "HOST_LINK",
    "MASKS",
    "MAX_QUEUES",
    "MAX_SLOTS",
    "WIRE_LINK",
    "LabDevice",
    "host_netns",
    "missing",
    "peer_netns",
    "wire_netns",
]

WIRE_LINK, HOST_LINK = "s0", LAB_LINK  # the NIC's wire side and the interface the host sees
MAX_QUEUES, MAX_SLOTS, MASKS = 64, 65536, 32
# RPS and RFS read the receive queue that a packet has recorded, and veth's is one too low:
# veth_xmit() leaves it counted from 0, and skb_get_rx_queue() expects it counted from 1. So the
# NIC's queue i is veth's FIRST_RING + i, whose packets RPS finds at `rx-i`. Veth's first has none.
FIRST_RING = 1
FILTER = layout("classifier", "filter").codec


def peer_netns(name: str) -> str:
    return path_of(f"{name}-peer")


def wire_netns(name: str) -> str:
    return path_of(f"{name}-wire")


def host_netns(name: str) -> str:
    return path_of(f"{name}-host")


def missing(name: str) -> OperatorError:
    """What to say when there is no such lab, or half of one."""
    also = "" if name == "lab" else f" --name {name}"
    return OperatorError(f"lab {name} is not up", f"atfnd lab up{also}")


class LabDevice:
    """Registers as typed views: reading one reads the device, writing one writes it.

    A number of up to 32 bits is stored in one piece (memoryview copies the aligned word), so the
    classifier on another CPU sees the old or the new one.
    """

    def __init__(self, program: int, wire: str) -> None:
        size, fields = _bpf.layout("classifier", "registers")
        with ExitStack() as undo:
            maps = _bpf.classifier_maps(program)
            for fd, _, _ in maps.values():
                undo.callback(os.close, fd)
            shape = {name: value_size for name, (_, value_size, _) in maps.items()}
            if shape != {"registers": size, "filters": FILTER.size, "locations": 4}:
                raise OperatorError(
                    "the lab was brought up by another version of atfnd",
                    "take it down and up again",
                )
            self._lock_fd = os.open(wire, os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, self._lock_fd)
            self.locations_fd = maps["locations"][0]
            self._registers = mmap.mmap(maps["registers"][0], size)
            self._filters = mmap.mmap(maps["filters"][0], FILTER.size * maps["filters"][2])
            self._undo = undo.pop_all()
        self._thread_lock = threading.Lock()
        self._views: list[memoryview] = []
        self._field = {name: (offset, code) for name, offset, code in fields}
        self._queues, self._slots = self._view("queues"), self._view("slots")
        self._first_ring, self._interrupts = self._view("first_ring"), self._view("interrupts")
        self._busy = self._view("busy")
        self.masks, self.mask_filters = self._view("masks"), self._view("mask_filters")
        self.mask, self.free = self._kept(self._view("mask").cast("B")), self._view("free")
        self.rss_key, self.rss_table = self._view("rss_key"), self._view("rss_table")
        self.toeplitz = self._view("toeplitz")
        self.by_filter, self.by_rss = self._view("by_filter"), self._view("by_rss")
        self.bytes = self._view("bytes")
        self.filters = self._kept(memoryview(self._filters))
        self.filters_u32 = self._kept(self.filters.cast("I"))

    @classmethod
    def open(cls, name: str) -> LabDevice:
        """The device of the lab `name`; OperatorError when it is not there."""
        wire = wire_netns(name)
        if not exists(wire):
            raise missing(name)
        try:
            with closing(Interface(WIRE_LINK, wire)) as link:
                programs = egress_programs(wire, link.ifindex)
        except PermissionError as error:  # it may be up
            raise OperatorError(
                f"only root can look at lab {name}", "run this as root", exit_code=1
            ) from error
        except OSError as error:
            raise missing(name) from error
        if not programs:
            raise missing(name)
        return cls(programs[0], wire)

    def close(self) -> None:
        for view in reversed(self._views):
            view.release()
        self._registers.close()
        self._filters.close()
        self._undo.close()

    @property
    def queues(self) -> int:
        return self._queues[0]

    @property
    def slots(self) -> int:
        return self._slots[0]

    @property
    def first_ring(self) -> int:
        """The receive queue of veth that is the NIC's queue 0."""
        return self._first_ring[0]

    @property
    def interrupts(self) -> bool:
        """Packets come by interrupts, else from NAPI threads."""
        return bool(self._interrupts[0])

    def size(self, queues: int, slots: int, first_ring: int, *, interrupts: bool) -> None:
        """Before the first packet: how many queues and filter slots there are, all free."""
        self._queues[0], self._slots[0], self._first_ring[0] = queues, slots, first_ring
        self._interrupts[0] = interrupts
        self.free[: (slots + 7) // 8] = ((1 << slots) - 1).to_bytes((slots + 7) // 8, "little")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude every other user of the table, in all processes; what RTNL does for a real NIC.

        The lock is on the wire's namespace file, so it ends with the lab. The kernel drops it when
        its owner dies.
        """
        with self._thread_lock:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Mark the table as between two states. The mark stays when the body does not end."""
        self._busy[0] = 1
        yield
        self._busy[0] = 0

    @property
    def left_busy(self) -> bool:
        """With the lock held: the last writer did not finish."""
        return bool(self._busy[0])

    def _kept(self, view: memoryview) -> memoryview:
        self._views.append(view)
        return view

    def _view(self, name: str) -> memoryview:
        """The field `name` as an array of its element type."""
        offset, declared = self._field[name]
        count, element = int(declared[:-1] or 1), declared[-1]
        whole = self._kept(memoryview(self._registers))
        match element:
            case "I":
                return self._kept(self._kept(whole[offset : offset + 4 * count]).cast("I"))
            case "Q":
                return self._kept(self._kept(whole[offset : offset + 8 * count]).cast("Q"))
        return self._kept(whole[offset : offset + count])
