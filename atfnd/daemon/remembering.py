# SPDX-License-Identifier: GPL-2.0-or-later
"""Remembers the last hour for the page: every ten seconds a sample of the little that it draws."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable

from atfnd.daemon.chores import Pace
from atfnd.model import History, Sample, Status

__all__ = ["Remembering"]

_CHORES = 5  # as often as a chore runs: a locality is of the reads of ten seconds
_SAMPLES = 360


class Remembering:
    """Samples of `status`, since the daemon's start."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status, self._every_s = status, _CHORES * Pace().every_s
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._moves = Counter[tuple[str, str]]()  # at the last sample

    async def keep(self, pace: Pace) -> None:
        """Without end."""
        self._every_s = _CHORES * pace.every_s
        while True:
            await asyncio.sleep(self._every_s)
            self.take(time.monotonic_ns())

    def take(self, now_ns: int) -> None:
        """One more sample."""
        status = self._status()
        moves = Counter({(mechanism, verdict): n for mechanism, verdict, n in status.moves})
        ended = tuple((*how, n) for how, n in sorted((moves - self._moves).items()))
        self._moves = moves
        self._samples.append(Sample(now_ns, status.locality, ended))

    def history(self) -> History:
        """The last hour, as it is known now."""
        return History(self._every_s, tuple(self._samples))
