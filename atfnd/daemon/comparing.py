# SPDX-License-Identifier: GPL-2.0-or-later
"""Slots of one NIC, each steered in one of two ways: what `measure` and the guard compare.

A slot is turned, settles, and then is counted. No order is recorded, so that a daemon that is
killed meanwhile begins again as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from atfnd.compare.figures import Figures, figures
from atfnd.daemon.in_force import InForce
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.session import NicSession
from atfnd.errors import OperatorError
from atfnd.model import Policy, SlotReading
from atfnd.observe import Observer
from atfnd.observe.nics.costs import Costs

__all__ = ["Comparing", "EndedEarlyError", "Slot"]

_TICK_S = 1.0  # so late it is noticed that the NIC has gone, or a reader


class EndedEarlyError(Exception):
    """The reason."""


class Slot(NamedTuple):
    """What one slot says."""

    figures: Figures | None  # None: it is lost, the link was down or is another one
    turned_s: float  # CPU time of ours until it counted
    counted_s: float


class Comparing:
    """`put` puts a policy in force: OperatorError, not all of it. `ended`: called with the reason
    when it can go no further."""

    def __init__(
        self,
        session: NicSession,
        nics: ServedNics,
        observer: Observer,
        in_force: InForce,
        put: Callable[[Policy], None],
        ended: Callable[[str], object] = lambda why: None,
    ) -> None:
        self.session, self.usual = session, in_force.policy
        self._nics, self._observer, self._say = nics, observer, ended
        self._in_force, self._put, self._policy = in_force, put, self.usual
        self._standing = True, False  # armed, paused
        self._costs: Costs | None = None
        self._why, self._ended = "", asyncio.Event()

    @property
    def beside(self) -> Policy:
        """What is in force but for these slots."""
        ours = self._in_force.policy is self._policy
        return self.usual if ours else self._in_force.policy

    def use(self, policy: Policy) -> None:
        """Steer by this policy, unless another one has come. OperatorError: not all of it."""
        if self._in_force.policy is self._policy and policy is not self._policy:
            self._policy = policy
            self._put(policy)

    def end(self, why: str) -> None:
        """It goes no further, and the usual policy is in force. The first reason counts."""
        with suppress(OperatorError):  # it is in the log, and done again in a second
            self.use(self.usual)
        if not self._why:
            self._why = why
            self._ended.set()
            self._say(why)

    def close(self) -> None:
        """After the last slot, or when it has ended."""
        with suppress(OperatorError):
            self.use(self.usual)
        costs, self._costs = self._costs, None
        if costs is not None:
            costs.close()

    def check(self) -> None:
        """It goes on, or EndedEarlyError."""
        if not self._why:
            view = self.session.view
            if self._nics.sessions.get(self.session.name) is not self.session:
                self.end("the interface is gone, or has another name")
            elif self._in_force.policy is not self._policy:
                self.end("another policy is in force")
            elif (view.armed, view.paused) != self._standing:
                self.end("it was armed or disarmed")
        if self._why:
            raise EndedEarlyError(self._why)

    async def take(
        self,
        turn: Callable[[], object],
        settle_s: float,
        count_s: float,
        pids: Callable[[], Awaitable[Collection[int]]],
        *,
        paused: bool = False,
    ) -> AsyncGenerator[float | Slot, None]:
        """One slot: what is left of it, now and then, and at last what it says. `pids`: the
        processes that use the NIC. EndedEarlyError."""
        if self._costs is None:
            self._costs = await asyncio.to_thread(Costs, self.session.watch.nic)
        self.check()
        began_s = time.process_time()
        turn()
        self._standing = not paused, paused
        self.check()
        async for left_s in self.wait(settle_s):
            yield left_s + count_s
        of, lives = await pids(), self.session.watch.lives
        before, counts_s = await self._read(self._costs, of), time.process_time()
        async for left_s in self.wait(count_s):
            yield left_s
        now, ends_s = await self._read(self._costs, of), time.process_time()
        self.check()
        whole = self.session.view.up and self.session.watch.lives == lives
        found = figures(before, now) if whole else None
        yield Slot(found, counts_s - began_s, ends_s - counts_s)

    async def wait(self, for_s: float, tick_s: float = _TICK_S) -> AsyncGenerator[float, None]:
        """What is left of this time, now and then, until it is over. EndedEarlyError."""
        until_s = time.monotonic() + for_s
        while (left_s := until_s - time.monotonic()) > 0:
            yield left_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(left_s, tick_s))
            self.check()

    async def _read(self, costs: Costs, pids: Collection[int]) -> SlotReading:
        session = self.session
        try:
            reads, addresses = self._observer.reads(session.name), session.watch.addresses()
            return await asyncio.to_thread(costs.read, session.view, addresses, pids, reads)
        except OSError as gone:
            raise EndedEarlyError(f"it cannot be read: {gone.strerror or gone}") from None
