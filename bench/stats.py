# SPDX-License-Identifier: GPL-2.0-or-later
"""Medians, quantiles, shares and their confidence intervals. Pure; no distribution is assumed.

A quantile's interval is two order statistics of the samples (H. A. David, Order Statistics,
section 7.1): the number of samples below the q-quantile is binomial(n, q), so the r-th and s-th
smallest enclose it with probability P(r <= B < s). It needs n >= 6 for 95 % at the median; with
fewer samples, or far in a tail, the interval is cut off at the smallest or largest sample and
`coverage` says what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

__all__ = ["Estimate", "median", "proportion", "quantile", "ratios"]

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A quantile of `n` samples and the interval that encloses it with probability `coverage`."""

    value: float
    low: float
    high: float
    coverage: float
    n: int

    def text(self, scale: float = 1.0, digits: int = 3) -> str:
        """`1.23 [1.1, 1.3]`, each multiplied by `scale`, to `digits` significant digits."""
        value, low, high = (f"{scale * x:.{digits}g}" for x in self[:3])
        return f"{value} [{low}, {high}]"


def _binomial(n: int, q: float, most: int) -> list[float]:
    """P(B = k) for k = 0..most, by logarithms: no overflow at large n."""
    if q in (0.0, 1.0):
        return [float(k == n * int(q)) for k in range(most + 1)]
    log_n = math.lgamma(n + 1)
    return [
        math.exp(
            log_n
            - math.lgamma(k + 1)
            - math.lgamma(n - k + 1)
            + k * math.log(q)
            + (n - k) * math.log1p(-q)
        )
        for k in range(most + 1)
    ]


def _ranks(n: int, q: float) -> tuple[int, int, float]:
    """1-based ranks (r, s) of the interval's ends, each tail at most half of what is left out."""
    chance = _binomial(n, q, n)
    tail = (1 - CONFIDENCE) / 2
    r, below = 1, chance[0]  # below = P(B < r)
    while r < n and below + chance[r] <= tail:
        below += chance[r]
        r += 1
    s, above = n, chance[n]  # above = P(B >= s)
    while s > 1 and above + chance[s - 1] <= tail:
        above += chance[s - 1]
        s -= 1
    return r, s, 1 - below - above


def quantile(samples: Iterable[float], q: float) -> Estimate:
    """The q-quantile (linear between neighbours) with its interval; ValueError without samples."""
    ordered = sorted(samples)
    n = len(ordered)
    if not n or not 0 <= q <= 1:
        raise ValueError(f"no {q}-quantile of {n} samples")
    at = q * (n - 1)
    left = math.floor(at)
    right = min(left + 1, n - 1)
    # min/max: rounding must not push the value past its neighbours
    value = ordered[left] + (at - left) * (ordered[right] - ordered[left])
    value = min(max(value, ordered[left]), ordered[right])
    r, s, coverage = _ranks(n, q)
    low, high = min(ordered[r - 1], value), max(ordered[s - 1], value)
    return Estimate(value, low, high, max(0.0, min(1.0, coverage)), n)


def median(samples: Iterable[float]) -> Estimate:
    """The median with its interval."""
    return quantile(samples, 0.5)


def ratios(ours: Sequence[float], rival: Sequence[float]) -> Estimate:
    """Median of the per-round ratios ours/rival: what both felt in a round cancels out."""
    return median([a / b for a, b in zip(ours, rival, strict=True)])


def proportion(count: int, n: int) -> Estimate:
    """`count` of `n` trials as a share, with its exact interval (Clopper and Pearson, Biometrika,
    1934). Of none, or of all, the one-sided one: none of n bounds the share at about 3/n.
    ValueError: without trials, or with more hits than those."""
    if not 0 <= count <= n or not n:
        raise ValueError(f"no share of {count} in {n} trials")
    tail = 1 - CONFIDENCE if count in (0, n) else (1 - CONFIDENCE) / 2
    low = 0.0 if not count else _share(lambda share: _at_most(count - 1, n, share) > 1 - tail)
    high = 1.0 if count == n else _share(lambda share: _at_most(count, n, share) > tail)
    return Estimate(count / n, low, high, CONFIDENCE, n)


def _share(below: Callable[[float], bool]) -> float:
    """Where `below` turns false."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def _at_most(count: int, n: int, share: float) -> float:
    """P(B <= count) of binomial(n, share)."""
    return math.fsum(_binomial(n, share, count))
