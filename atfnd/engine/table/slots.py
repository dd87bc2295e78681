# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table laid out in slots, so that it can be read a page at a time.

A reader that walks the slots in order sees every flow that was there throughout exactly once,
whatever comes and goes meanwhile. Each change is O(1); nothing is sorted, copied or compacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from atfnd.model import Flow

__all__ = ["FlowSlots"]


class FlowSlots(Sequence[Flow | None]):
    """Flows by slot. The table that puts them remembers the slot of each."""

    def __init__(self) -> None:
        self._flows: list[Flow | None] = []
        self._free: list[int] = []

    def add(self, flow: Flow) -> int:
        """Put a flow into a free slot, and return that."""
        if self._free:
            slot = self._free.pop()
            self._flows[slot] = flow
            return slot
        self._flows.append(flow)
        return len(self._flows) - 1

    def replace(self, slot: int, flow: Flow) -> None:
        """What is known of the flow in this slot: it keeps its slot."""
        self._flows[slot] = flow

    def drop(self, slot: int) -> None:
        """Free a slot."""
        self._flows[slot] = None
        self._free.append(slot)
        if len(self._free) == len(self._flows):
            self._flows.clear()
            self._free.clear()

    def __len__(self) -> int:
        """Slots, taken or free."""
        return len(self._flows)

    @overload
    def __getitem__(self, slot: int) -> Flow | None: ...
    @overload
    def __getitem__(self, slot: slice) -> list[Flow | None]: ...
    def __getitem__(self, slot: int | slice) -> Flow | list[Flow | None] | None:
        return self._flows[slot]
