# SPDX-License-Identifier: GPL-2.0-or-later
"""Single queues of a lab NIC: their NAPI, and beds whose other traffic keeps to CPUs of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.system.netns import path_of
from atfnd.lab.wiring import PEER_WIRE_LINK
from atfnd.nic.lab.device import wire_netns
from bench.bed import Bed, lab_bed
from bench.polling import Napis

__all__ = ["apart", "napi_of", "two_cpus"]


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
    wire = wire_netns(bed.nic.removeprefix("lab:"))
    with contextlib.closing(Interface(PEER_WIRE_LINK, wire)) as link:
        for thread in Napis.of(wire, link.ifindex).threads:
            os.sched_setaffinity(thread, cpus)
    return replace(bed, spare=cpus)


def napi_of(bed: Bed, queue: int) -> Napis:
    """The NAPI of one queue. OperatorError: the kernel does not say it, or no thread polls it."""
    with bed.open() as nic:
        found = nic.queues()[queue]
    if found.napi_id is None or found.pid is None:
        raise OperatorError(f"no thread polls queue {queue} of {bed.nic}", exit_code=1)
    return Napis(path_of(bed.host or ""), (found.napi_id,), (found.pid,))
