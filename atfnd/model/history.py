# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon remembers of its last hour."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["History", "Sample"]


class Sample(NamedTuple):
    """What was so at one moment, or has ended since the sample before it."""

    at_ns: int  # CLOCK_MONOTONIC
    locality: float | None  # of the reads of some seconds; None: nothing was read
    moves: tuple[tuple[str, str, int], ...]  # mechanism, verdict, how many ended


class History(NamedTuple):
    """Samples, oldest first."""

    every_s: float
    samples: tuple[Sample, ...]
