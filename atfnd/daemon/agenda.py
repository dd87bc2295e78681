# SPDX-License-Identifier: GPL-2.0-or-later
"""When the loop looks again without being woken by an event: one timer, for the earliest thing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from atfnd.engine.table.memory import Memory

__all__ = ["Agenda"]


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
