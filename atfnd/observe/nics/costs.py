# SPDX-License-Identifier: GPL-2.0-or-later
"""What the traffic of one NIC costs: every counter that a measurement compares, at one moment.

Reads the link's statistics and its queues' interrupts in sysfs, /proc (`observe.processes`,
`observe.machine.softnet`), sock_diag and three tracepoints; changes nothing. What the kernel
refuses or does not have is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from threading import Lock

from atfnd.kernel.interrupts.irq import deliveries
from atfnd.model import NicFacts, ReadBytes, SlotReading
from atfnd.nic import Nic
from atfnd.observe.machine.busy import BusyCpus, handoffs
from atfnd.observe.processes.cpu_time import context_switches, ran_ns, threads_ran_ns
from atfnd.observe.sockets.round_trips import RoundTrips

__all__ = ["Costs"]


class Costs:
    """To be made and read in any thread; a close waits for a read that is under way."""

    def __init__(self, nic: Nic, proc: str = "/proc") -> None:
        self._nic, self._proc, self._one = nic, proc, Lock()
        self._busy: BusyCpus | None = None
        self._round_trips: RoundTrips | None = None
        with ExitStack() as undo:
            with suppress(OSError):
                self._busy = BusyCpus()
                undo.callback(self._busy.close)
            with suppress(OSError):
                self._round_trips = RoundTrips(nic.netns)
                undo.callback(self._round_trips.close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        with self._one:
            self._undo.close()

    def read(
        self,
        facts: NicFacts,
        addresses: Collection[bytes],
        applications: Collection[int],
        reads: ReadBytes | None,
    ) -> SlotReading:
        """Now, of the NIC with these addresses and of these processes; `reads` was read by the
        observer. OSError: the NIC is gone, or this is closed."""
        with self._one:
            times = None if self._busy is None else self._busy.read()
            found = None if self._round_trips is None else self._round_trips.read()
        ours = None if found is None else [each for each in found if each.local in addresses]
        polls = [queue.pid for queue in facts.queues if queue.pid is not None]
        napi = threads_ran_ns(((pid, pid) for pid in polls), self._proc)
        daemon = ran_ns([os.getpid()], self._proc)
        return SlotReading(
            at_ns=time.monotonic_ns(),
            busy_ns=None if times is None else times.busy_ns,
            network_ns=None if times is None else times.network_ns,
            napi_ns=None if polls and not napi else napi,
            application_ns=ran_ns(applications, self._proc) if applications else None,
            daemon_ns=sum((daemon or {}).values()),
            packets=self._both("packets"),
            bytes=self._both("bytes"),
            interrupts=_interrupts(facts),
            handoffs=handoffs(self._proc),
            switches=context_switches(self._proc),
            reads=reads,
            sockets=None if ours is None else {each.cookie: each.rtt for each in ours},
        )

    def _both(self, what: str) -> int | None:
        """Received and sent."""
        said = [self._nic.interface.read(f"statistics/{way}_{what}") for way in ("rx", "tx")]
        return None if None in said else sum(int(each) for each in said if each is not None)


def _interrupts(facts: NicFacts) -> int | None:
    """Of all queues. None: some queue has no interrupt that the kernel counts."""
    counts = [None if queue.irq is None else deliveries(queue.irq) for queue in facts.queues]
    return None if not counts or None in counts else sum(filter(None, counts))
