# SPDX-License-Identifier: GPL-2.0-or-later
"""A real NIC's receive queues: queue, NAPI, interrupt, CPU.

The kernel is asked first (queue-get, napi-get); before 6.8 only NAPIs with threads are known.
Drivers that link nothing (ixgbe, i40e, sfc, ...: reference/drivers.md) leave two deductions:

- the interrupt of a queue by the name it was requested under (`kernel.interrupts.irq_names`);
- the NAPI of a queue by order: drivers create NAPIs and interrupt vectors in one loop, and ids go
  up (net/core/dev.c, napi_hash_add). It is made only when there are as many NAPIs as interrupts of
  queues, or as interrupts that receive, or as queues.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import replace

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.irq import Affinities, actions, device_irqs, set_affinity
from atfnd.kernel.interrupts.irq_names import QueueIrq, queue_irqs
from atfnd.kernel.interrupts.napi import Napi, thread_cpus
from atfnd.kernel.interrupts.napi_threads import polled
from atfnd.kernel.interrupts.packet_steering import receive_queues
from atfnd.kernel.netlink.netdev import NetdevFamily, ReceiveQueue
from atfnd.model import Queue
from atfnd.model.nic import thread_switches

__all__ = ["Queues", "confine", "napi_by_order"]


class Queues:
    """Those of one interface. `netdev` None: a kernel before 6.3. `borrowed`: the switches
    (napi_switches.py) of queues whose NAPI thread we have borrowed. Such a queue is still where its
    interrupt goes: its thread is kept on that CPU."""

    def __init__(self, interface: Interface, netdev: NetdevFamily | None) -> None:
        self._interface = interface
        self._netdev = netdev
        self.borrowed: set[str] = set()
        self._affinities = Affinities()
        self._named: tuple[object, list[QueueIrq]] = (None, [])

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
            linked = linked or napi_by_order(napis, named, count)
            irqs = _by_queue([irq for irq in named if irq.receives], count) | irqs
        for index, napi in linked.items():
            if napi.pid is None:  # given back, by us or by another program
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

    def _irqs_by_name(self, *state: object) -> list[QueueIrq]:
        """Interrupts of the interface's queues by their names; none without hardware behind it.
        Read again when the queues have new NAPIs, whose ids are never used twice, or when an
        interrupt is gone."""
        before, named = self._named
        gone = any(self._affinities.cpus(irq.irq) is None for irq in named if irq.receives)
        if before != state or gone:
            named = []
            if "device" in self._interface.list():
                own = device_irqs(self._interface)
                names = actions(own or None)
                named = queue_irqs(names, self._interface.name(), own=bool(own))
            self._named = state, named
        return named


def _by_queue(receiving: list[QueueIrq], count: int) -> dict[int, int]:
    """By queue number. Some drivers count from 1 (tg3, mlx4): as many as queues are all of them."""
    ordered = sorted(receiving, key=lambda irq: irq.queue)
    if len(ordered) == count:
        return {rank: irq.irq for rank, irq in enumerate(ordered)}
    return {irq.queue: irq.irq for irq in ordered if irq.queue < count}


def napi_by_order(napis: list[Napi], named: list[QueueIrq], count: int) -> dict[int, Napi]:
    """The deduction by order; empty when nothing adds up. `napis` by id, `named` by number."""
    receiving = [irq for irq in named if irq.receives]
    for candidates in (named, receiving):
        if candidates and len(candidates) == len(napis):
            of_irq = {irq.irq: napi for irq, napi in zip(candidates, napis, strict=True)}
            return {index: of_irq[irq] for index, irq in _by_queue(receiving, count).items()}
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
