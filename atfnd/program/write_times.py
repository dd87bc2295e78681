# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a NIC takes to write a rule: as measured, each write from call to answer. Pure.

A hold has to outlast a write. What it is expected to take decides only whether one is tried: a
write that outlasts its hold is seen to. So one that was long by accident does not count.
"""

from __future__ import annotations

from collections import deque

__all__ = ["WriteTimes"]

KEPT = 16


class WriteTimes:
    """The last writes."""

    def __init__(self) -> None:
        self._took_ns: deque[int] = deque(maxlen=KEPT)

    def note(self, took_ns: int) -> None:
        self._took_ns.append(took_ns)

    def expected_ns(self) -> int | None:
        """The longest but one of the last 16, as soon as there are two. None: there were not."""
        return sorted(self._took_ns)[-2] if len(self._took_ns) > 1 else None
