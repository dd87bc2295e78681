# SPDX-License-Identifier: GPL-2.0-or-later
"""How late the loop is: due work waits for running work, or for a CPU."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

from atfnd.model import Lateness

__all__ = ["Punctuality"]

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
