# SPDX-License-Identifier: GPL-2.0-or-later
"""Two sequences of flows read as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from atfnd.model import Flow

__all__ = ["Joined"]


class Joined(Sequence[Flow | None]):
    """Two sequences one after the other, neither copied."""

    def __init__(self, first: Sequence[Flow | None], second: Sequence[Flow | None]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @overload
    def __getitem__(self, at: int) -> Flow | None: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Flow | None]: ...
    def __getitem__(self, at: int | slice) -> Flow | Sequence[Flow | None] | None:
        border = len(self._first)
        if isinstance(at, int):
            return self._first[at] if at < border else self._second[at - border]
        start, stop, _ = at.indices(len(self))
        tail = self._second[max(0, start - border) : max(0, stop - border)]
        return [*self._first[start:stop], *tail]
