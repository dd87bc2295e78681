# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether NAPIs are polled by threads: `threaded` of the device, or `threaded:N` of queue N's NAPI.

Reads and writes /sys/class/net/X/threaded (5.12; Documentation/ABI/testing/sysfs-class-net), and by
netlink the one of each NAPI, where a write was shown to work (6.17). To switch it changes who polls
next, not what: a NAPI has one poller at a time (NAPI_STATE_SCHED, ____napi_schedule(),
net/core/dev.c).

The kernel takes a NAPI's own thread away when its ring is empty, and waits for that as long as it
takes (napi_stop_kthread(), 6.17). On a ring that a sender keeps full we would wait, too. So a
thread is taken away only while it sleeps.

What is switched on by these is borrowed: each thread is confined to the CPU that its queue's
interrupt goes to, and `queue-cpu` goes on to mean the interrupt.

`napi-thread` or `napi-thread:N` is the same switch, for a thread that a policy asks for (`0`, `1`,
or `2`, one that polls without end, 6.19). A thread that is borrowed does not count as one: it reads
`0`, and what is written there ends the loan. `queue-cpu` then means the thread. A switch of it
leaves the CPUs that the queue is delivered on as they were: the thread gets those of the interrupt,
and later the interrupt those of the thread.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping

from atfnd.errors import refusable
from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.irq import set_affinity
from atfnd.kernel.interrupts.napi import asleep
from atfnd.kernel.netlink.netdev import NetdevFamily
from atfnd.model import Queue
from atfnd.model.nic import thread_switches
from atfnd.model.reception import BUSY_THREAD, OWN_THREAD, SOFTIRQ, THREAD
from atfnd.nic.ethtool.queues import Queues, confine

__all__ = ["NapiSwitches"]

OF_DEVICE = "threaded"
ON, OFF = "1", "0"
_LOOKS, _BETWEEN_S = 40, 0.0005  # at a thread that does not sleep


class NapiSwitches:
    """Those of one interface. `netdev` None: a kernel before 6.3."""

    def __init__(self, interface: Interface, netdev: NetdevFamily | None, queues: Queues) -> None:
        self._interface, self._netdev, self._queues = interface, netdev, queues
        self._each = False  # a NAPI's own was shown to work

    def probe(self) -> None:
        """Write to one NAPI what it has."""
        queue = next((q for q in self._queues.read() if q.napi_id is not None), None)
        try:
            self._each = queue is not None and self._switch(queue, _said(queue))
        except OSError as refusal:
            if refusal.errno == errno.ENODEV:
                raise
            self._each = False

    def read(self) -> dict[str, str]:
        """All of one kind. Of a device that is down, the device's only."""
        if not self._each:
            value = self._interface.read(OF_DEVICE)
            if value is None:
                return {}
            return {OF_DEVICE: value, THREAD: self._lasts(OF_DEVICE, value)}
        return self._of_queues()

    def one(self, name: str) -> str | None:
        """Of either kind. None: there is none of this name now."""
        if name in (OF_DEVICE, THREAD):
            value = self._interface.read(OF_DEVICE)
            return value if value is None or name == OF_DEVICE else self._lasts(OF_DEVICE, value)
        return self._of_queues().get(name)

    def _of_queues(self) -> dict[str, str]:
        queues = [q for q in self._queues.read() if q.napi_id is not None]
        polling, found = self._polling(), dict[str, str]()
        for queue in queues:
            switch, value = thread_switches(queue.index)[0], polling.get(queue.napi_id or 0)
            found[switch] = value or _said(queue)
            found[f"{THREAD}:{queue.index}"] = self._lasts(switch, found[switch])
        return found

    def _lasts(self, switch: str, value: str) -> str:
        """Without what is borrowed by this switch."""
        return SOFTIRQ if value == ON and switch in self._queues.borrowed else value

    def write(self, name: str, value: str) -> None:
        """Switch it on, and confine the threads, or off. KeyError: there is none of this name.
        OSError: it is refused, and is as before; EBUSY: a NAPI's thread did not sleep for 20 ms."""
        if name.partition(":")[0] == THREAD:
            self._lasting(name, value)
            return
        self._set(name, value)
        if value != ON:
            self._queues.borrowed.discard(name)
            return
        self._queues.borrowed.add(name)
        try:
            self._confine(name)
        except OSError:
            self._queues.borrowed.discard(name)
            self._set(name, OFF)
            raise

    def _lasting(self, name: str, value: str) -> None:
        _, _, index = name.partition(":")
        mine = [each for each in self._queues.read() if index in ("", str(each.index))]
        before = {each.index: (each, self._queues.cpus(each)) for each in mine}
        if value == SOFTIRQ:
            for queue, cpus in before.values():
                if queue.irq is not None and queue.pid is not None and cpus:
                    set_affinity(queue.irq, cpus)
        switch = thread_switches(int(index))[0] if index else OF_DEVICE
        self._set(switch, value)
        self._queues.borrowed.discard(switch)
        for queue in self._queues.read() if value != SOFTIRQ else ():
            _, cpus = before.get(queue.index, (queue, None))
            if queue.pid is not None and cpus:
                confine(queue, cpus)

    def _polling(self) -> Mapping[int, str]:
        """By NAPI id."""
        listed = None if self._netdev is None else self._netdev.napis(self._interface.ifindex)
        return {napi.id: str(napi.polling) for napi in listed or () if napi.polling is not None}

    def _confine(self, name: str) -> None:
        for queue in self._queues.read():
            if queue.borrowed and name in thread_switches(queue.index) and queue.pid is not None:
                cpus = self._queues.cpus(queue) if queue.cpu is None else {queue.cpu}
                if cpus:
                    os.sched_setaffinity(queue.pid, cpus)

    def _set(self, name: str, value: str) -> None:
        if name == OF_DEVICE:
            try:
                self._interface.write(OF_DEVICE, value)
            except FileNotFoundError:
                raise KeyError(name) from None
            return
        queue = self._queue(name)
        if queue is None or not self._switch(queue, value):
            raise KeyError(name)

    def _switch(self, queue: Queue, value: str) -> bool:
        if self._netdev is None or queue.napi_id is None:
            return False
        if value == OFF and queue.threaded and queue.pid is not None:
            if self._polling().get(queue.napi_id) == BUSY_THREAD:  # it never sleeps
                self._netdev.set_polling(queue.napi_id, int(OWN_THREAD))
            _wait_for_sleep(queue.pid)
        self._netdev.set_polling(queue.napi_id, int(value))
        return True

    def _queue(self, name: str) -> Queue | None:
        return next((q for q in self._queues.read() if thread_switches(q.index)[0] == name), None)


def _wait_for_sleep(thread: int) -> None:
    with refusable(errno.ESRCH, errno.ENOENT):
        for _ in range(_LOOKS):
            if asleep(thread):
                return
            time.sleep(_BETWEEN_S)
        raise OSError(errno.EBUSY, f"its NAPI thread {thread} polls without a pause")


def _said(queue: Queue) -> str:
    return ON if queue.threaded else OFF
