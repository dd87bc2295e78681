# SPDX-License-Identifier: GPL-2.0-or-later
"""When steering a NIC costs more CPU per byte than it saves: a sequential test. Pure.

Now and then two slots that follow each other are compared, one steered and one unsteered. A coin
says which comes first. Where steering changes nothing, the coin alone decides the sign of the
pair's difference, whatever the load does: so a fair bet on the sign, at odds that depend on its
size, gains nothing on average. Each bet is 2 / (1 + exp(-2 s x)), with x the logarithm of the
ratio steered to unsteered, less MARGIN, and s one of STAKES. Its mean over +x and -x is 1; it grows
with x, so that steering that saves, or costs less than MARGIN, loses.

The stakes are added up as the e-detector of CUSUM: max(1, sum) * bet. Steering that does not cost
is stopped once in ENOUGH pairs on average, or less often (Shin, Ramdas, Rinaldo: E-detectors, 2023,
Theorem 2.4), and within n pairs with a probability of n / ENOUGH at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

__all__ = ["CALM_S", "EAGER_S", "ENOUGH", "MARGIN", "PRICE_SHARE", "Guard", "compared", "costs"]

MARGIN = math.log(1.02)  # less than 2 % is no reason to stop
STAKES = (2.0, 8.0, 32.0)  # of differences of a half, of a tenth, of a fiftieth
ENOUGH = 20_000.0
SUSPECT = 8.0
EAGER_S = 60.0  # between two pairs, at first and under suspicion
CALM_S = 300.0
EAGER_PAIRS = 16
PRICE_SHARE = 0.001  # of a core: what setting filters aside and back may cost
MOST_WAIT_S = 3600.0  # after pairs that said nothing
SHOWN = 16  # of the last pairs make the change that is shown


@dataclass(frozen=True, slots=True)
class Guard:
    """What is known of one NIC since it was armed."""

    due_s: float  # the next pair
    sums: tuple[float, ...] = (1.0,) * len(STAKES)
    pairs: int = 0
    lost_in_row: int = 0
    last: tuple[float, ...] = ()  # logarithms of the last ratios

    @classmethod
    def armed(cls, now_s: float) -> Guard:
        """Nothing is known yet."""
        return cls(now_s + EAGER_S)

    def put_off(self, now_s: float) -> Guard:
        """Nothing is steered now: no pair is due soon after that begins."""
        return replace(self, due_s=max(self.due_s, now_s + EAGER_S))

    @property
    def change(self) -> float | None:
        """By which share the CPU per byte is higher steered than unsteered, of the last pairs."""
        return math.expm1(fmean(self.last)) if self.last else None


def costs(guard: Guard) -> bool:
    """Steering costs more than it saves."""
    return fmean(guard.sums) >= ENOUGH


def compared(guard: Guard, ratio: float | None, price_s: float, now_s: float) -> Guard:
    """After a pair: `ratio` is steered to unsteered, None of a pair that says nothing; `price_s`
    is the CPU time of ours that setting aside and back took."""
    if ratio is None:
        lost = guard.lost_in_row + 1
        wait_s = min(MOST_WAIT_S, EAGER_S * 2.0**lost)
        return replace(guard, lost_in_row=lost, due_s=now_s + max(wait_s, price_s / PRICE_SHARE))
    log = math.log(ratio)
    sums = tuple(
        max(1.0, before) * _bet(stake, log - MARGIN)
        for stake, before in zip(STAKES, guard.sums, strict=True)
    )
    pairs = guard.pairs + 1
    eager = pairs < EAGER_PAIRS or fmean(sums) >= SUSPECT
    wait_s = max(EAGER_S if eager else CALM_S, price_s / PRICE_SHARE)
    return Guard(now_s + wait_s, sums, pairs, 0, (*guard.last, log)[-SHOWN:])


def _bet(stake: float, x: float) -> float:
    return 1.0 + math.tanh(stake * x)
