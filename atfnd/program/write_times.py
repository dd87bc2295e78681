# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a NIC takes to write a filter: as measured, each write from call to answer. Pure.

A hold has to outlast a write. The expected time only decides whether a hold is tried: a write that
outlasts its hold is noticed. So one write that happened to be slow does not count.
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
        """The second longest of the last 16, as soon as there are two. None: there are fewer."""
        return sorted(self._took_ns)[-2] if len(self._took_ns) > 1 else None
