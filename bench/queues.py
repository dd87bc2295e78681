# SPDX-License-Identifier: GPL-2.0-or-later
"""Single queues of a lab NIC: their NAPI, what its thread and an application take, and beds whose
other traffic keeps to CPUs of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.kernel.system.netns import path_of
from atfnd.lab.wiring import PEER_WIRE_LINK
from atfnd.nic.lab.device import wire_netns
from bench.bed import Bed, lab_bed
from bench.connections import connections
from bench.pollers import Pollers, PollerTotals, thread_use
from bench.polling import Polled, napis_of

__all__ = ["Used", "apart", "napi_of", "two_cpus", "watched"]


@contextlib.contextmanager
def two_cpus() -> Iterator[Bed]:
    """A lab NIC of two queues, one on each of two CPUs. Clients and senders, and the wire from
    them, are on the first. OperatorError: there is only one CPU."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        raise OperatorError("two CPUs are needed: a server's, and that of its clients")
    with lab_bed(queues=2) as bed:
        yield apart(bed, (cpus[0],))


def apart(bed: Bed, cpus: tuple[int, ...]) -> Bed:
    """The bed, its clients and the wire from them on these CPUs."""
    for napi in napis_of(wire_netns(bed.nic.removeprefix("lab:")), PEER_WIRE_LINK):
        if napi.pid is not None:
            os.sched_setaffinity(napi.pid, cpus)
    return replace(bed, spare=cpus)


def napi_of(bed: Bed, queue: int) -> Polled:
    """The NAPI of one queue. OperatorError: the kernel does not say it, or no thread polls it."""
    with bed.open() as nic:
        found = nic.queues()[queue]
    if found.napi_id is None or found.pid is None:
        raise OperatorError(f"no thread polls queue {queue} of {bed.nic}", exit_code=1)
    return Polled(path_of(bed.host or ""), bed.ifindex, found.napi_id, found.pid)


class Used(NamedTuple):
    """What a queue's thread and an application have done so far, or between two readings."""

    ns: int
    bytes: int  # that the host's connections have received and acknowledged
    wakes: int  # of the thread
    thread: PollerTotals
    application: PollerTotals

    def since(self, earlier: Used) -> Used:
        ns, bytes_, wakes = (now - was for now, was in zip(self[:3], earlier[:3], strict=True))
        own = self.application.since(earlier.application)
        return Used(ns, bytes_, wakes, self.thread.since(earlier.thread), own)


@contextlib.contextmanager
def watched(bed: Bed, napi: Polled, application: int) -> Iterator[Callable[[], Used]]:
    """Reads both, until the `with` ends. `application`: a pid."""
    with contextlib.closing(Pollers([napi.thread, application])) as pollers:

        def read() -> Used:
            bytes_ = sum(each.bytes for each in connections(bed).values())
            wakes, at_ns = thread_use(napi.thread).wakes, time.monotonic_ns()
            thread, own = pollers.totals(napi.thread), pollers.totals(application)
            return Used(at_ns, bytes_, wakes, thread, own)

        yield read
