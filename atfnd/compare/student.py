# SPDX-License-Identifier: GPL-2.0-or-later
"""Student's t: the interval of a mean. Pure.

The distribution function for whole degrees of freedom is a finite sum (Abramowitz and Stegun,
Handbook of Mathematical Functions, 26.7.3 and 26.7.4); its inverse is found by halving.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean

__all__ = ["interval", "quantile"]

_HALVINGS = 100


@lru_cache(maxsize=4)
def quantile(confidence: float, freedom: int) -> float:
    """The t that |T| stays below with probability `confidence`. ValueError: no degrees of
    freedom, or no probability."""
    if freedom < 1 or not 0 < confidence < 1:
        raise ValueError(f"no quantile {confidence} of t with {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def interval(samples: Sequence[float], confidence: float) -> tuple[float, float]:
    """The ends of the interval that encloses the true mean. ValueError: of fewer than two
    samples."""
    if len(samples) < 2:
        raise ValueError("an interval takes two samples")
    mean = fmean(samples)
    freedom = len(samples) - 1
    variance = math.fsum((each - mean) ** 2 for each in samples) / freedom
    half = quantile(confidence, freedom) * math.sqrt(variance / len(samples))
    return mean - half, mean + half


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = total = (math.cos(angle) if odd else 1.0) if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= square * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
