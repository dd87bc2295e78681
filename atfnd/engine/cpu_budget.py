# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's own CPU time, as an account: what it may spend, and which moves wait. Pure.

It earns `share` of one core, and keeps what it earns in WINDOW_NS. Each reading takes off what was
spent, whatever for. Between two readings each move counts as what moves cost lately. A move that
the account cannot pay waits; at each reading as many of those that wait are begun as it can pay
then, the worthiest first, and one at least: so nothing is stalled. Orders of an operator, undo and
the deletes of filters of closed sockets never ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest

from atfnd.model import CpuUse, FlowKey

__all__ = ["LOOKED_AT", "WINDOW_NS", "CpuBudget"]

WINDOW_NS = 10_000_000_000
LOOKED_AT = 256  # of those that wait, at a reading: the others have their turn at the next one
_MOVE_NS, _LEAST_NS, _MOST_NS = 500_000, 100_000, 5_000_000  # what a move costs: first, and bounds


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

    def read(self, spent_ns: int, now_ns: int) -> bool:
        """What was spent until now, since the start. True: whether it is `over` has changed."""
        full_ns = self.share * WINDOW_NS
        if self._readings:
            before_ns, spent_before_ns = self._readings[-1]
            spent = spent_ns - spent_before_ns
            earned_ns = self.share * (now_ns - before_ns)
            self._left_ns = min(full_ns, self._left_ns + earned_ns - spent)
            if self._begun:
                each_ns = min(max(spent / self._begun, _LEAST_NS), _MOST_NS)
                self._move_ns += (each_ns - self._move_ns) / 4
        else:
            self._left_ns = full_ns
        # What was overspent is paid back within a window: a burst does not stop moves for longer.
        self._left_ns = max(self._left_ns, -full_ns)
        self._readings.append((now_ns, spent_ns))
        while now_ns - self._readings[0][0] > WINDOW_NS:
            self._readings.popleft()
        self._begun = self._granted = 0
        enough_ns = full_ns / 4 if self.over else self._move_ns
        was, self.over = self.over, self._left_ns < enough_ns
        return was != self.over

    def pays(self) -> bool:
        """One more move, which is then taken off. False: it has to wait."""
        short = self._left_ns - self._begun * self._move_ns < self._move_ns
        if self._readings and short and not self._granted:
            return False
        self._granted = max(0, self._granted - 1)
        self._begun += 1
        return True

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
        room = max(1, int(self._left_ns / self._move_ns))
        chosen = [key for _, key in nlargest(room, found, key=lambda each: each[0])]
        taken = set(chosen)
        self.waiting.update(dict.fromkeys(key for _, key in found if key not in taken))
        self._granted = len(chosen)
        return chosen

    def cpu_use(self) -> CpuUse | None:
        """For show. None: never read."""
        if not self._readings:
            return None
        (since_ns, before_ns), (now_ns, spent_ns) = self._readings[0], self._readings[-1]
        took_ns = now_ns - since_ns
        used = (spent_ns - before_ns) / took_ns if took_ns else 0.0
        return CpuUse(self.share, used, self.over, len(self.waiting))
