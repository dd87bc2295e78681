# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps irqbalance off the interrupts of armed NICs: asks it to leave them alone, in addition to
those it leaves alone already, and asks again after it restarts. It is never restarted by us.

What it moved before we asked is put back once. If it cannot be asked, it counts as any other
program that moves our interrupts.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.daemon.session import NicSession, Sessions, views_of
from atfnd.errors import refusable
from atfnd.model import NicView, Restored, SteeringMethod, cpu_list
from atfnd.program.balance import (
    BALANCER,
    Ban,
    bans,
    doubtful,
    forget,
    left_alone,
    made,
    running,
    spared,
)
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog

__all__ = ["Balancing"]

LOOK_S = 2.0  # it moves nothing in its first interval, which is 10 s
DOUBTS = 15  # looks: it may sleep that long


class Balancing:
    """`put_back` puts queues of a NIC where we had put them, if these interrupts are theirs."""

    def __init__(
        self,
        executor: Executor,
        sessions: Sessions,
        log: EventLog,
        undo_journal: UndoJournal,
        put_back: Callable[[NicSession, frozenset[int]], None],
    ) -> None:
        self._executor, self._sessions, self._log = executor, sessions, log
        self._undo_journal, self._put_back = undo_journal, put_back
        self._here: frozenset[int] = frozenset()  # pids
        self._spared: dict[int, frozenset[int]] = {}  # by pid: what it leaves alone, as last asked
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
        """An irqbalance runs that may still move this interrupt, and we are about to tell it not
        to."""
        here = [pid for pid in running() if self._hopeful(pid)]
        if irq in left_alone(self._undo_journal):
            return False
        return any(irq not in self._spared.get(pid, ()) for pid in here)

    def _hopeful(self, pid: int) -> bool:
        return pid not in self._refused and self._doubts.get(pid, 0) < DOUBTS

    async def look(self) -> None:
        """Tell every irqbalance that runs now which interrupts it must not move."""
        async with self._one:
            await self._look()

    async def _look(self) -> None:
        here = running()
        for known in (self._spared, self._refused, self._doubts):
            for pid in known.keys() - here:
                del known[pid]
        self._here = here
        if any(self._wanted().values()) or bans(self._undo_journal):
            for pid in sorted(here):
                await self._tell(pid)

    def _wanted(self) -> dict[str, frozenset[int]]:
        views = views_of(self._sessions).items()
        return {name: _irqs(view) for name, view in views if self._executor.armed(name)}

    async def _tell(self, pid: int) -> None:
        alone = await asyncio.to_thread(spared, pid)
        if alone is None:
            self._doubts[pid] = self._doubts.get(pid, 0) + 1
            return
        self._doubts.pop(pid, None)
        wanted = self._wanted()  # as it is now
        stale = self._stale(pid, alone)
        kept = alone | left_alone(self._undo_journal)
        new = {name: irqs - kept for name, irqs in wanted.items() if irqs - kept}
        if not new and not stale:
            self._spared[pid] = alone
            return
        why = "the interrupt is another's now"
        ended = {ban: UndoPermit(ban.nic, why) for ban in stale}
        try:
            code, left = await self._executor.ban(pid, new, ended)
        except Unrecorded as refusal:
            self._refuse(pid, new, f"the journal cannot be written: {refusal.strerror}")
            return
        if code:
            self._refuse(pid, new, left)
            return
        more = frozenset[int]().union(*new.values())
        self._spared[pid] = (alone - {ban.irq for ban in stale}) | more
        self._refused.pop(pid, None)
        for name, irqs in new.items():
            what = f"irqbalance (pid {pid}) leaves interrupts {cpu_list(irqs)} alone"
            self._log.add("ban", what, "their queues are ours", nic=name)
            if name in self._sessions:
                with refusable(errno.ENODEV):  # it is gone: the loop is about to hear of that
                    self._put_back(self._sessions[name], irqs)

    def _refuse(self, pid: int, new: dict[str, frozenset[int]], why: str) -> None:
        if pid not in self._refused:
            for name, irqs in new.items():
                what = f"irqbalance (pid {pid}) still moves interrupts {cpu_list(irqs)}"
                self._log.add("refused", what, why, nic=name)
        self._refused[pid] = why

    def _stale(self, pid: int, alone: frozenset[int]) -> list[Ban]:
        """Bans of ours that ended with an irqbalance, and those of interrupts that no longer belong
        to the NIC."""
        stale, in_doubt = [], doubtful(self._undo_journal)
        for ban in bans(self._undo_journal):
            view = self._sessions[ban.nic].view if ban.nic in self._sessions else None
            theirs = {queue.irq for queue in view.queues} if view else set()
            if view and not view.up:
                theirs.add(ban.irq)  # it may have none while the link is down
            if ban.pid not in self._here:
                forget(self._undo_journal, ban)
            elif ban.pid == pid and ban in in_doubt:
                (made if ban.irq in alone else forget)(self._undo_journal, ban)
            elif ban.pid == pid and ban.irq not in alone:
                forget(self._undo_journal, ban, theirs=True)
                what = f"irqbalance (pid {pid}) was asked to move interrupt {ban.irq} again"
                why = f"another program asked it to: left alone until `atfnctl resume {ban.nic}`"
                self._log.add("manual", what, why, nic=ban.nic)
            elif ban.pid == pid and ban.irq not in theirs:
                stale.append(ban)
        return stale

    async def lift(self, nic: str) -> list[Restored]:
        """Take back the bans of one NIC."""
        async with self._one:
            for pid in {ban.pid for ban in bans(self._undo_journal) if ban.nic == nic}:
                self._spared.pop(pid, None)
            return await self._executor.lift_bans(UndoPermit(nic, "asked for"))

    def lift_all(self, why: str) -> Sequence[Restored]:
        """At the end. The loop is blocked meanwhile."""
        return self._executor.lift_every_ban(UndoPermit(BALANCER, why))


def _irqs(view: NicView) -> frozenset[int]:
    """Interrupts whose CPU we may choose."""
    if view.method is SteeringMethod.NONE:
        return frozenset()
    return frozenset(
        queue.irq
        for queue in view.queues
        if queue.irq is not None and f"queue-cpu:{queue.index}" not in view.manual
    )
