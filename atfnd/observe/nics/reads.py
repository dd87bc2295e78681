# SPDX-License-Identifier: GPL-2.0-or-later
"""Read locality of a NIC over time: while armed, while not, and lately. Reads one counter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from atfnd.model import NicReads, ReadBytes

__all__ = ["Reads", "Slots"]

_RECENT_NS = 10_000_000_000
_APART_NS = 1_000_000_000  # of two looks that are kept


class Reads:
    """Of one NIC, since `began_ns`. `count` reads its counter, which began at 0 and only grows;
    None: it is not measured."""

    def __init__(self, count: Callable[[], ReadBytes | None], began_ns: int) -> None:
        self._count = count
        self._armed, self._unarmed = ReadBytes(), ReadBytes()
        self._last = began_ns, ReadBytes()
        self._looks = deque([self._last])  # a second apart, oldest first
        self._measured = False

    def look(self, now_ns: int, *, armed: bool) -> None:
        """Count what was read since the last look; the NIC was `armed` all that time, or not."""
        total = self._count()
        if total is None:
            return
        more = total.since(self._last[1])
        if armed:
            self._armed = self._armed.plus(more)
        else:
            self._unarmed = self._unarmed.plus(more)
        self._last, self._measured = (now_ns, total), True
        if now_ns - self._looks[-1][0] >= _APART_NS:
            self._looks.append(self._last)
        while len(self._looks) > 1 and self._looks[1][0] <= now_ns - _RECENT_NS:
            self._looks.popleft()

    def shown(self, nic: str) -> NicReads | None:
        """At the last look. None: it is not measured."""
        if not self._measured:
            return None
        (began_ns, began), (now_ns, now) = self._looks[0], self._last
        return NicReads(nic, self._armed, self._unarmed, now.since(began), now_ns - began_ns)


class Slots:
    """Which of a fixed number of counters belongs to a NIC. NAPIs of one NIC share one."""

    def __init__(self, count: int) -> None:
        self.none = count  # the slot of a NIC for which there is none left
        self._free = deque(range(count))  # the slot that was given back longest ago comes first
        self._of: dict[str, int] = {}

    def assign(self, nics: Iterable[str]) -> Mapping[str, int]:
        """The slot of each of these NICs, and of no others; a NIC that had one keeps it."""
        wanted = set(nics)
        for nic in self._of.keys() - wanted:
            self._free.append(self._of.pop(nic))
        for nic in sorted(wanted - self._of.keys()):
            if self._free:
                self._of[nic] = self._free.popleft()
        return {nic: self._of.get(nic, self.none) for nic in wanted}
