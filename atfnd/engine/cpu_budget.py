# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's own CPU time, as an account: what it may spend, and what waits for that. Pure.

In any WINDOW_NS it spends `share` of one core. Each reading says what was spent, whatever for. A
fifth is kept for what never asks: orders of an operator, undo and the deletes of filters of closed
sockets. Of what is left of the rest a quarter is for moves until the next reading, and a quarter
for looks at what sockets report. A move counts as what moves cost lately, a look as what it took,
and so does the end of a socket. At each reading as many of the moves that wait are begun as can be
paid then, the worthiest first. Where none can, one is begun when a quarter of the share has earned
the last one, and within a window at the latest: so nothing is stalled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest
from math import inf

from atfnd.model import CpuUse, FlowKey

__all__ = ["LOOKED_AT", "WINDOW_NS", "CpuBudget"]

WINDOW_NS = 10_000_000_000
LOOKED_AT = 64  # of those that wait, at a reading: the others have their turn at the next one
# What a move costs: first, and bounds. A hold may look for long.
_MOVE_NS, _LEAST_NS, _MOST_NS = 500_000, 100_000, 100_000_000
_KEPT = 0.2  # of the share
_LOOK_NS = 500_000  # for looks, at a reading at which nothing is left


@dataclass(slots=True)
class CpuBudget:
    """`share` of one core. Until the first reading nothing is limited."""

    share: float
    waiting: dict[FlowKey, None] = field(default_factory=dict)  # in the order of their turns
    over: bool = False  # it cannot pay a move, and has not saved a quarter of a window since
    _readings: deque[tuple[int, int]] = field(default_factory=deque)  # (at, spent), in the window
    _left_ns: float = 0.0
    _move_ns: float = _MOVE_NS
    _begun: int = 0  # moves since the last reading
    _granted: int = 0  # of these that waited, not begun yet
    _forced_ns: int | None = None  # when a move was begun last that could not be paid

    def read(self, spent_ns: int, now_ns: int) -> bool:
        """What was spent until now, since the start. True: whether it is `over` has changed."""
        full_ns, readings = self.share * (1 - _KEPT) * WINDOW_NS, self._readings
        if readings and self._begun:
            each_ns = (spent_ns - readings[-1][1]) / self._begun
            self._move_ns += (min(max(each_ns, _LEAST_NS), _MOST_NS) - self._move_ns) / 4
        readings.append((now_ns, spent_ns))
        while len(readings) > 1 and now_ns - readings[1][0] >= WINDOW_NS:
            readings.popleft()
        self._left_ns = max(0.0, full_ns - (spent_ns - readings[0][1]))
        self._begun = self._granted = 0
        enough_ns = full_ns / 4 if self.over else self._move_ns
        was, self.over = self.over, self._left_ns < enough_ns
        return was != self.over

    def pays(self) -> bool:
        """One more move, which is then taken off. False: it has to wait."""
        short = (self._begun + 1) * self._move_ns > self._left_ns / 4
        if self._readings and short and not self._granted:
            return False
        self._granted = max(0, self._granted - 1)
        self._begun += 1
        return True

    @property
    def looks_ns(self) -> float:
        """What looks may take between two readings."""
        return max(self._left_ns / 4, _LOOK_NS) if self._readings else inf

    def wait(self, key: FlowKey) -> None:
        """A move of this flow cannot be paid now."""
        self.waiting.setdefault(key)

    def turn(self, worth: Callable[[FlowKey], float | None]) -> list[FlowKey]:
        """After a reading: the flows that are moved now, the worthiest first. `worth` None: there
        is nothing to move any more. They wait no more."""
        looked = list(self.waiting)[:LOOKED_AT]
        for key in looked:
            del self.waiting[key]
        found = [(value, key) for key in looked if (value := worth(key)) is not None]
        room = int(self._left_ns / 4 / self._move_ns) or self._forces()
        chosen = [key for _, key in nlargest(room, found, key=lambda each: each[0])]
        taken = set(chosen)
        self.waiting.update(dict.fromkeys(key for _, key in found if key not in taken))
        self._granted = len(chosen)
        return chosen

    def _forces(self) -> bool:
        """A move that cannot be paid is begun nevertheless: a quarter of the share has earned the
        last one by now."""
        now_ns = self._readings[-1][0] if self._readings else 0
        earned_ns = min(4 * self._move_ns / self.share, WINDOW_NS)
        if self._forced_ns is not None and now_ns - self._forced_ns < earned_ns:
            return False
        self._forced_ns = now_ns
        return True

    def cpu_use(self) -> CpuUse | None:
        """For show. None: never read."""
        if not self._readings:
            return None
        (since_ns, before_ns), (now_ns, spent_ns) = self._readings[0], self._readings[-1]
        took_ns = now_ns - since_ns
        used = (spent_ns - before_ns) / took_ns if took_ns else 0.0
        return CpuUse(self.share, used, self.over, len(self.waiting))
