# SPDX-License-Identifier: GPL-2.0-or-later
"""When the loop looks again without being woken by an event: one timer, for the earliest thing;
and how late the loop is: due work waits for running work, or for a CPU."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable

from atfnd.engine.table.memory import Memory
from atfnd.model import Lateness

__all__ = ["Agenda", "Punctuality"]


class Agenda:
    """Calls `due` when a deferred flow is due, or as soon as something is `waiting`."""

    def __init__(
        self, memory: Memory, waiting: Callable[[], bool], due: Callable[[], None]
    ) -> None:
        self._memory, self._waiting, self._due = memory, waiting, due
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def schedule(self) -> None:
        """After every change of the memory."""
        if self._ended:
            return
        due_ns = time.monotonic_ns() if self._waiting() else self._memory.next_due_ns()
        if due_ns is None:
            return
        loop = asyncio.get_running_loop()
        at_s = loop.time() + max(0, due_ns - time.monotonic_ns()) / 1e9
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._call)

    def end(self) -> None:
        """Nothing is due any more."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _call(self) -> None:
        self._timer = None
        self._due()


_EVERY_S = 0.25
_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Punctuality:
    """Counts since it was made. A timer may be a millisecond late by itself: epoll's resolution."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._sum_s = 0.0

    async def watch(self) -> None:
        """Look four times a second, without end."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            self.add(max(0.0, loop.time() - due_s))

    def add(self, late_s: float) -> None:
        """Something ran this late."""
        self._counts[bisect_left(_BOUNDS_S, late_s)] += 1
        self._sum_s += late_s

    def counted(self) -> Lateness:
        """As it is now."""
        return Lateness(_BOUNDS_S, tuple(self._counts), self._sum_s)
