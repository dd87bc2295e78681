# SPDX-License-Identifier: GPL-2.0-or-later
"""What was tried in vain is tried again after a rest, longer each time: the one back-off. Pure."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

__all__ = ["SECONDS", "Ladder", "Rest", "Rests"]

K = TypeVar("K")


class Ladder(NamedTuple):
    """The first rest, which doubles after each try in vain, and the longest."""

    first_ns: int
    most_ns: int

    def rest_ns(self, times: int) -> int:
        """After one try more than so many."""
        return min(self.first_ns << min(times, 32), self.most_ns)


SECONDS = Ladder(1_000_000_000, 64_000_000_000)


class Rest(NamedTuple):
    times: int  # in vain, in a row
    until_ns: int


_RESTED = Rest(0, 0)


class Rests(dict[K, Rest]):
    """By what was tried. What has succeeded is taken out."""

    def of(self, what: K) -> Rest:
        return self.get(what, _RESTED)

    def on(self, what: K, now_ns: int) -> bool:
        """It is not to be tried yet."""
        return now_ns < self.of(what).until_ns

    def vain(self, what: K, ladder: Ladder, now_ns: int) -> None:
        """It was tried."""
        times = self.of(what).times
        self[what] = Rest(times + 1, now_ns + ladder.rest_ns(times))
