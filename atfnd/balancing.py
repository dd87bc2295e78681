# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps irqbalance off the interrupts of armed NICs: tells it to leave them alone, beside what it
leaves alone already, and again when it has started again. It is never restarted itself.

What it moved before it was told is put back, once; if it cannot be told, it is somebody else.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from atfnd.model import Means, NicView, Restored, cpu_list
from atfnd.observe.nics import NicWatch
from atfnd.program import balance
from atfnd.program.balance import Ban
from atfnd.program.originals import Originals
from atfnd.program.record_file import Unrecorded
from atfnd.published import Published

__all__ = ["Balancing"]

LOOK_S = 2.0  # it moves nothing in its first interval, which is 10 s
DOUBTS = 15  # looks: so long it may sleep


class Balancing:
    """`put_back` puts queues of a NIC where we had put them, if these interrupts are theirs."""

    def __init__(
        self,
        shown: Published,
        originals: Originals,
        put_back: Callable[[NicWatch, frozenset[int]], None],
    ) -> None:
        self._shown, self._originals, self._put_back = shown, originals, put_back
        self._here: frozenset[int] = frozenset()  # pids
        self._told: dict[int, frozenset[int]] = {}  # by pid: what it leaves alone, as last asked
        self._refused: dict[int, str] = {}
        self._doubts: dict[int, int] = {}  # looks without an answer
        self._awake = asyncio.Event()
        self._one = asyncio.Lock()

    async def keep(self) -> None:
        """Look now and then, and when `look_soon` says so."""
        while True:
            await self.look()
            try:
                await asyncio.wait_for(self._awake.wait(), LOOK_S)
            except TimeoutError:
                continue
            self._awake.clear()

    def look_soon(self) -> None:
        """A NIC was armed, or has other interrupts."""
        self._awake.set()

    def may_have_moved(self, irq: int) -> bool:
        """An irqbalance that is not known to leave this interrupt alone runs, and is about to be
        told."""
        here = [pid for pid in balance.running() if self._hopeful(pid)]
        if irq in balance.let_go(self._originals):
            return False
        return any(irq not in self._told.get(pid, ()) for pid in here)

    def _hopeful(self, pid: int) -> bool:
        return pid not in self._refused and self._doubts.get(pid, 0) < DOUBTS

    async def look(self) -> None:
        """Tell every irqbalance that runs now what it is not to move."""
        async with self._one:
            await self._look()

    async def _look(self) -> None:
        here = balance.running()
        for known in (self._told, self._refused, self._doubts):
            for pid in known.keys() - here:
                del known[pid]
        self._here = here
        if any(self._wanted().values()) or balance.bans(self._originals):
            for pid in sorted(here):
                await self._tell(pid)

    def _wanted(self) -> dict[str, frozenset[int]]:
        return {name: _irqs(watch.view) for name, watch in self._shown.watches.items()}

    async def _tell(self, pid: int) -> None:
        told = await asyncio.to_thread(balance.spared, pid)
        if told is None:
            self._doubts[pid] = self._doubts.get(pid, 0) + 1
            return
        self._doubts.pop(pid, None)
        wanted = self._wanted()  # as it is now
        stale = self._stale(pid, told)
        his = told | balance.let_go(self._originals)
        new = {name: irqs - his for name, irqs in wanted.items() if irqs - his}
        if not new and not stale:
            self._told[pid] = told
            return
        try:
            for name, irqs in new.items():
                for irq in sorted(irqs):
                    balance.journal(self._originals, Ban(pid, name, irq))
        except Unrecorded as refusal:
            self._refuse(pid, new, f"the journal cannot be written: {refusal.strerror}")
            return
        more = frozenset[int]().union(*new.values())
        less = {ban.irq for ban in stale} - more
        code, left = await asyncio.to_thread(balance.banned, pid, more, less)
        for ban in stale:
            balance.forget(self._originals, ban)
        if code:
            for name, irqs in new.items():
                for irq in irqs:
                    balance.forget(self._originals, Ban(pid, name, irq))
            self._refuse(pid, new, left)
            return
        self._told[pid] = (told - less) | more
        self._refused.pop(pid, None)
        for name, irqs in new.items():
            what = f"irqbalance (pid {pid}) leaves interrupts {cpu_list(irqs)} alone"
            self._shown.log.add("ban", what, "their queues are ours", nic=name)
            if name in self._shown.watches:
                with _while_there():
                    self._put_back(self._shown.watches[name], irqs)

    def _refuse(self, pid: int, new: dict[str, frozenset[int]], why: str) -> None:
        if pid not in self._refused:
            for name, irqs in new.items():
                what = f"irqbalance (pid {pid}) goes on to move interrupts {cpu_list(irqs)}"
                self._shown.log.add("refused", what, why, nic=name)
        self._refused[pid] = why

    def _stale(self, pid: int, told: frozenset[int]) -> list[Ban]:
        """Bans of ours that ended with an irqbalance, and those of interrupts that are not the
        NIC's any more."""
        stale = []
        for ban in balance.bans(self._originals):
            watch = self._shown.watches.get(ban.nic)
            theirs = {queue.irq for queue in watch.view.queues} if watch else set()
            if watch and not watch.view.up:
                theirs.add(ban.irq)  # it may have none while it is down
            if ban.pid not in self._here:
                balance.forget(self._originals, ban)
            elif ban.pid == pid and ban.irq not in told:
                balance.forget(self._originals, ban, his=True)
                what = f"irqbalance (pid {pid}) was told to move interrupt {ban.irq} again"
                why = f"somebody else did: left alone until `atfnctl resume {ban.nic}`"
                self._shown.log.add("manual", what, why, nic=ban.nic)
            elif ban.pid == pid and ban.irq not in theirs:
                stale.append(ban)
        return stale

    async def lift(self, nic: str) -> list[Restored]:
        """Take back what it was told of one NIC."""
        done = []
        async with self._one:
            for pid, ours in balance.lift(self._originals, nic):
                irqs = {ban.irq for ban in ours}
                code, left = await asyncio.to_thread(balance.unban, pid, irqs)
                done += balance.settle(self._originals, ours, code, left)
                self._told.pop(pid, None)
        return done

    def lift_all(self) -> Sequence[Restored]:
        """At the end: the loop stands meanwhile."""
        return balance.restored(self._originals)


@contextmanager
def _while_there() -> Iterator[None]:
    """A NIC that is gone: the loop is about to be told."""
    try:
        yield
    except OSError as refusal:
        if refusal.errno != errno.ENODEV:
            raise


def _irqs(view: NicView) -> frozenset[int]:
    """Interrupts whose CPU is ours to choose."""
    if not view.armed or view.means is Means.NONE:
        return frozenset()
    return frozenset(
        queue.irq
        for queue in view.queues
        if queue.irq is not None and f"queue-cpu:{queue.index}" not in view.manual
    )
