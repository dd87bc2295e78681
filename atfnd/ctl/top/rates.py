# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast counters go, by the moments the daemon read them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

__all__ = ["WINDOW_NS", "Rates", "Reading"]

WINDOW_NS = 500_000_000  # a rate covers at least this time, if readings reach back so far


class Reading(NamedTuple):
    """A counter, and when it was read (CLOCK_MONOTONIC)."""

    at_ns: int
    total: int


class Rates:
    """Readings by counter: as many of each as a rate over WINDOW_NS needs."""

    def __init__(self) -> None:
        self._readings: dict[Hashable, tuple[Reading, ...]] = {}

    def see(self, readings: Iterable[tuple[Hashable, Reading]]) -> None:
        """The present values of all counters; a counter that is not among them is forgotten."""
        self._readings = {of: _grown(self._readings.get(of, ()), new) for of, new in readings}

    def per_s(self, of: Hashable) -> float | None:
        """Of one counter; None: it was read once."""
        known = self._readings.get(of, ())
        if len(known) < 2:
            return None
        first, last = known[0], known[-1]
        return (last.total - first.total) * 1e9 / (last.at_ns - first.at_ns)


def _grown(known: tuple[Reading, ...], new: Reading) -> tuple[Reading, ...]:
    """The readings, without those that are older than a rate needs. A counter that went down has
    started again."""
    if not known or new.total < known[-1].total:
        return (new,)
    if new.at_ns <= known[-1].at_ns:
        return known
    grown = (*known, new)
    while len(grown) > 2 and new.at_ns - grown[1].at_ns >= WINDOW_NS:
        grown = grown[1:]
    return grown
