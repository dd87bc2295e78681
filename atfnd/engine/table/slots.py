# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table laid out in slots, so that it can be read a page at a time.

A reader that walks the slots in order sees every flow that was there throughout exactly once,
whatever comes and goes meanwhile. Each change is O(1); nothing is sorted, copied or compacted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar, overload

from atfnd.model import Flow

__all__ = ["FlowSlots"]

K = TypeVar("K", bound=Hashable)


class FlowSlots(Sequence[Flow | None], Generic[K]):
    """Flows by slot, put and dropped by the key that their table uses."""

    def __init__(self) -> None:
        self._flows: list[Flow | None] = []
        self._slot: dict[K, int] = {}
        self._free: list[int] = []

    def put(self, key: K, flow: Flow) -> None:
        """Add a flow, or replace what is known of it: it keeps its slot."""
        slot = self._slot.get(key)
        if slot is None:
            slot = self._take()
            self._slot[key] = slot
        self._flows[slot] = flow

    def of(self, key: K) -> Flow | None:
        """The flow under this key."""
        slot = self._slot.get(key)
        return None if slot is None else self._flows[slot]

    def taken(self) -> int:
        """How many slots hold a flow."""
        return len(self._slot)

    def drop(self, key: K) -> Flow:
        """Free a flow's slot and return the flow. KeyError: it has none."""
        slot = self._slot.pop(key)
        flow = self._flows[slot]
        assert flow is not None
        self._flows[slot] = None
        self._free.append(slot)
        if not self._slot:
            self._flows.clear()
            self._free.clear()
        return flow

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._flows.append(None)
        return len(self._flows) - 1

    def __len__(self) -> int:
        """Slots, taken or free."""
        return len(self._flows)

    @overload
    def __getitem__(self, slot: int) -> Flow | None: ...
    @overload
    def __getitem__(self, slot: slice) -> list[Flow | None]: ...
    def __getitem__(self, slot: int | slice) -> Flow | list[Flow | None] | None:
        return self._flows[slot]
