# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts for some seconds what the machine forwards, on request.

Writes nothing to a NIC. One count runs at a time: a request meanwhile gets the answer of that one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from threading import Event

from atfnd.daemon.session import Sessions
from atfnd.diagnose.gain import Parts
from atfnd.diagnose.pairs import Counted, paired
from atfnd.model import Pairs
from atfnd.observe.machine.topology import CpuWatch
from atfnd.observe.nics.forwarded import ForwardedPackets, interface_names, namespace

__all__ = ["Pairing"]


class Pairing:
    """Holds the count that runs, if one does."""

    def __init__(self, sessions: Sessions, cpus: CpuWatch) -> None:
        self._sessions, self._cpus = sessions, cpus
        self._running: asyncio.Future[Counted] | None = None
        self._ended = Event()

    async def pairs(self, nic: str | None, seconds: float) -> Pairs:
        """As `serve.Source.pairs`."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(asyncio.to_thread(_count, seconds, self._ended))
        try:
            counted = await asyncio.shield(self._running)
        except OSError as refusal:
            return Pairs(0.0, f"the kernel refuses the program: {refusal.strerror}", 0, ())
        views = [session.view for session in self._sessions.values()]
        names = await asyncio.to_thread(interface_names, {None, *(view.netns for view in views)})
        tx_cpus: dict[tuple[int, int, int], int | None] = {}
        for view in views:
            try:
                inode = namespace(view.netns)
            except FileNotFoundError:
                continue  # it has just gone
            names[inode, view.ifindex] = view.name
            tx_cpus |= {(inode, view.ifindex, queue.index): queue.cpu for queue in view.queues}
        return paired(counted, names, tx_cpus, Parts(self._cpus.known()), nic)

    def close(self) -> None:
        """A count that is under way ends now."""
        self._ended.set()


def _count(seconds: float, ended: Event) -> Counted:
    """On a thread: to load the program takes longer than the event loop may wait."""
    with closing(ForwardedPackets()) as counter:
        began = time.monotonic()
        ended.wait(seconds)
        counts, took_s = tuple(counter.read()), time.monotonic() - began
        return Counted(took_s, counter.missed(), counts)
