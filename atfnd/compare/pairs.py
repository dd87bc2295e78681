# SPDX-License-Identifier: GPL-2.0-or-later
"""Which slots are armed and which are paused: pairs of one each, in random order.

So a load that grows, or that comes and goes, does not favour either: both slots of a pair are near
each other, armed comes first in half of the pairs, and in which of them is chance. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from atfnd.compare.figures import Figures

__all__ = ["LEAST_PAIRS", "MOST_PAIRS", "Pair", "pairs_of", "pairs_within", "schedule"]

LEAST_PAIRS = 4  # with fewer, an interval of Student's t says next to nothing
MOST_PAIRS = 1000  # all are compared after each, in some milliseconds

Pair = tuple[Figures | None, Figures | None]  # armed, paused; None: the slot was lost


def pairs_within(total_s: float, slot_s: float) -> int:
    """How many pairs of slots there is time for."""
    return int(total_s // (2 * slot_s))


def schedule(pairs: int, random: Random) -> Sequence[bool]:
    """For each slot: it is armed. Slots 2n and 2n + 1 are a pair."""
    first = [number % 2 == 0 for number in range(pairs)]
    if random.random() < 0.5:
        first = [not each for each in first]  # of an odd number one is left over
    random.shuffle(first)
    return [armed for each in first for armed in (each, not each)]


def pairs_of(slots: Sequence[tuple[bool, Figures | None]]) -> list[Pair]:
    """Slots in the order of the schedule, each with whether it was armed, two by two. A pair that
    is not complete, or does not have one of each, is none."""
    found: list[Pair] = []
    for (first, a), (second, b) in zip(slots[::2], slots[1::2], strict=False):
        if first != second:
            found.append((a, b) if first else (b, a))
    return found
