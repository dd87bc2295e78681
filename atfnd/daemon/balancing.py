# SPDX-License-Identifier: GPL-2.0-or-later
"""Looks which irqbalances run and what they leave alone, and asks them for what the engine decides
(`engine.balancers`). None is restarted by us."""

from __future__ import annotations

import asyncio

from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.engine.balancers import Balancers
from atfnd.engine.command import AskBalancer, ReadBalancer
from atfnd.engine.event import BalancerAsked, BalancerRead, BalancersFound, BansEnding, Event
from atfnd.model import Restored
from atfnd.model.reason import Code
from atfnd.program.balance import bans, journaled, running, spared
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import UndoJournal

__all__ = ["Balancing"]

LOOK_S = 2.0  # it moves nothing in its first interval, which is 10 s


class Balancing:
    """`balancers` is what the engine knows of them."""

    def __init__(self, balancers: Balancers, executor: Executor, undo_journal: UndoJournal) -> None:
        self._balancers, self._executor, self._undo_journal = balancers, executor, undo_journal
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
        """An irqbalance runs that may still move this interrupt, and is about to be asked not
        to."""
        return self._balancers.may_have_moved(irq, running(), journaled(self._undo_journal))

    async def look(self) -> None:
        """Ask every irqbalance that runs now not to move our interrupts."""
        async with self._one:
            await self._take(BalancersFound(running(), journaled(self._undo_journal)))

    async def _take(self, event: Event) -> None:
        """Give it to the engine; carry out what that asks for, and wait for what is slow."""
        for command in self._executor.decide(event):
            if isinstance(command, ReadBalancer):
                spares = await asyncio.to_thread(spared, command.pid)
                bans_now = journaled(self._undo_journal)
                await self._take(BalancerRead(command.pid, spares, bans_now))
            elif isinstance(command, AskBalancer):
                await self._take(BalancerAsked(command, await self._ask(command)))
            else:
                self._executor.carry_out([command])

    async def _ask(self, command: AskBalancer) -> str | None:
        """Returns why it is not done, if so."""
        ended = {ban: UndoPermit(ban.nic, Code.OTHER_INTERRUPT()) for ban in command.ended}
        try:
            code, left = await self._executor.ban(command.pid, command.new, ended)
        except Unrecorded as refusal:
            return f"the journal cannot be written: {refusal.strerror}"
        return left if code else None

    async def lift(self, nic: str) -> list[Restored]:
        """Take back the bans of one NIC."""
        async with self._one:
            ours = (ban.pid for ban in bans(self._undo_journal) if ban.nic == nic)
            self._executor.take(BansEnding(frozenset(ours)))
            return await self._executor.lift_bans(UndoPermit(nic, Code.ASKED_FOR()))
