# SPDX-License-Identifier: GPL-2.0-or-later
"""A real NIC's receive queues: queue, NAPI, interrupt, CPU.

The kernel is asked first (queue-get, napi-get); before 6.8 only NAPIs with threads are known.
Drivers that link nothing (ixgbe, i40e, sfc, ...: docs/hardware.md) leave deductions:

- the interrupt of a queue by the name it was requested under (`kernel.interrupts.irq_names`), or,
  where names do not tell, by what both count (`irq_names.IrqProof`). Until then it has none here,
  and none is written;
- the NAPI of a queue by its interrupt, or by order: drivers create NAPIs and interrupt vectors in
  one loop, and ids go up (net/core/dev.c, napi_hash_add). The latter is made only when there are as
  many NAPIs as interrupts of queues, or as interrupts that receive, or as queues.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.irq import (
    Affinities,
    actions,
    deliveries,
    device_irqs,
    set_affinity,
)
from atfnd.kernel.interrupts.irq_names import IrqProof, Named, QueueIrq, queue_irqs
from atfnd.kernel.interrupts.napi import Napi, thread_cpus
from atfnd.kernel.interrupts.napi_threads import polled
from atfnd.kernel.interrupts.packet_steering import receive_queues
from atfnd.kernel.netlink.netdev import NetdevFamily, ReceiveQueue
from atfnd.model import Queue
from atfnd.model.nic import thread_switches
from atfnd.model.reception import BUSY_THREAD

__all__ = ["Queues", "confine", "napi_of"]

_LOOK_NS = 1_000_000_000  # at most so often what counts is looked at, to prove an interrupt


class Queues:
    """Those of one interface. `netdev` None: a kernel before 6.3. `packets`: what each has
    received. `borrowed`: the switches (napi_switches.py) of queues whose NAPI thread we have
    borrowed. Such a queue is still where its interrupt goes: its thread is kept on that CPU."""

    def __init__(
        self,
        interface: Interface,
        netdev: NetdevFamily | None,
        packets: Callable[[], dict[int, int]] = dict,
    ) -> None:
        self._interface = interface
        self._netdev = netdev
        self._packets = packets
        self.borrowed: set[str] = set()
        self._affinities = Affinities()
        self._state: object = None  # when the names were read
        self._named: list[QueueIrq] = []
        self._own: list[int] = []  # interrupts of its device
        self._proof, self._looked_ns = IrqProof(), 0

    def close(self) -> None:
        self._affinities.close()

    def read(self) -> tuple[Queue, ...]:
        """In index order. While the link is down they have no NAPI and no interrupt."""
        said: list[ReceiveQueue] = []
        napis_known: list[Napi] | None = None
        if self._netdev is not None:
            said = self._netdev.receive_queues(self._interface.ifindex) or []
            napis_known = self._netdev.napis(self._interface.ifindex)
        napis = polled(self._interface, napis_known)
        count = len(said) or receive_queues(self._interface)
        by_id = {napi.id: napi for napi in napis}
        linked = {q.queue: by_id[q.napi_id] for q in said if q.napi_id in by_id}
        irqs = {index: napi.irq for index, napi in linked.items() if napi.irq is not None}
        if len(irqs) < count:
            named = self._irqs_by_name(count, self._interface.up(), tuple(by_id))
            linked = linked or napi_of(napis, named, count)
            named_irqs = {irq.queue: irq.irq for irq in named if irq.receives}
            irqs = (named_irqs or self._irqs_by_proof()) | irqs
        for index, napi in linked.items():
            # Given back, or made to poll without end, by us or by another program.
            if napi.pid is None or str(napi.polling) == BUSY_THREAD:
                self.borrowed.difference_update(thread_switches(index))
        self._affinities.keep(irqs.values())
        return tuple(self._queue(i, linked.get(i), irqs.get(i)) for i in range(count))

    def cpus(self, queue: Queue) -> frozenset[int] | None:
        """CPUs the queue may be delivered on; None where that is not known."""
        if queue.pid is None or queue.borrowed:
            return None if queue.irq is None else self._affinities.cpus(queue.irq)
        try:
            return thread_cpus(queue.pid)
        except ProcessLookupError:  # the link went down since the kernel listed it
            return None

    def _queue(self, index: int, napi: Napi | None, irq: int | None) -> Queue:
        queue = Queue(index, None, irq, None, None, None)
        if napi is not None:
            borrowed = None not in (irq, napi.pid) and not self.borrowed.isdisjoint(
                thread_switches(index)
            )
            queue = Queue(index, napi.id, irq, None, napi.threaded, napi.pid, borrowed)
        if queue.pid is None or queue.borrowed:
            cpu = None if irq is None else self._affinities.delivered_on(irq)
        else:
            cpus = self.cpus(queue)
            if cpus is None:
                return Queue(index, None, None, None, None, None)
            cpu = next(iter(cpus)) if len(cpus) == 1 else None
        return replace(queue, cpu=cpu)

    def _irqs_by_name(self, count: int, *state: object) -> list[QueueIrq]:
        """Interrupts of the interface's queues by their names; none without hardware behind it.
        Read again when it has another name, when the queues have new NAPIs, whose ids are never
        used twice, or when an interrupt is gone."""
        now = count, self._interface.name(), *state
        gone = any(self._affinities.cpus(irq.irq) is None for irq in self._named if irq.receives)
        if self._state != now or gone:
            self._named, self._own, self._proof = [], [], IrqProof()
            if "device" in self._interface.list():
                self._own = device_irqs(self._interface)
                names = actions(self._own or None)
                port = self._port()
                self._named = queue_irqs(names, port, count, own=bool(self._own))
            self._state = now
        return self._named

    def _port(self) -> Named:
        driver, name = self._interface.driver(), self._interface.name()
        buses = {driver.bus or "", self._interface.device() or ""}
        return Named(
            name,
            driver.name or "",
            frozenset({bus for each in buses for bus in (each, each.replace("-", ""))} - {""}),
            frozenset(self._interface.list("device/net")) - {name},
        )

    def _irqs_by_proof(self) -> dict[int, int]:
        """Those of its device's that the counters show to be a queue's by now."""
        now_ns = time.monotonic_ns()
        if self._own and now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            packets, counted = self._packets(), {irq: deliveries(irq) for irq in self._own}
            if None in counted.values():
                self._state = None
            delivered = {irq: count for irq, count in counted.items() if count is not None}
            self._proof.look(packets, delivered)
        return self._proof.proven()


def napi_of(napis: list[Napi], named: list[QueueIrq], count: int) -> dict[int, Napi]:
    """By queue, as deduced from its interrupt or by order; empty when nothing adds up. `napis` by
    id, `named` by number."""
    receiving = {irq.irq: irq.queue for irq in named if irq.receives}
    if napis and all(napi.irq is not None for napi in napis):
        return {
            queue: napi for napi in napis if (queue := receiving.get(napi.irq or 0)) is not None
        }
    for candidates in ([irq.irq for irq in named], list(receiving)):
        if candidates and len(candidates) == len(napis):
            of_irq = dict(zip(candidates, napis, strict=True))
            return {queue: of_irq[irq] for irq, queue in receiving.items()}
    return dict(enumerate(napis)) if len(napis) == count else {}


def confine(queue: Queue, cpus: Iterable[int]) -> None:
    """Have a queue delivered on these CPUs. For a threaded NAPI the thread is moved, not the
    interrupt, which only wakes it: one value to journal and to put back. A borrowed thread goes
    where the interrupt goes. The thread's scheduling class stays.

    OSError: as `irq.set_affinity`; EINVAL, no such CPU online; EOPNOTSUPP, the queue has neither
    thread nor interrupt; ESRCH, the thread is gone.
    """
    if queue.pid is not None:
        os.sched_setaffinity(queue.pid, cpus)
    if queue.irq is not None and (queue.pid is None or queue.borrowed):
        set_affinity(queue.irq, cpus)
    elif queue.pid is None:
        raise OSError(errno.EOPNOTSUPP, f"queue {queue.index} has no interrupt and no NAPI thread")
