# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard's decision, over days of a fake clock and loads drawn at random: where it stops, how
soon, and where it never does."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

import pytest

from atfnd.compare import guard as guard_module
from atfnd.compare.guard import (
    CALM_S,
    EAGER_S,
    ENOUGH,
    MARGIN,
    PRICE_SHARE,
    STAKES,
    Guard,
    compared,
    costs,
)

SLOT_S = 5.0
DAY_S = 24 * 3600.0


class Load(NamedTuple):
    """What is to be steered: the CPU per byte of a slot."""

    cost: float  # of steering, as a share of what an unsteered byte costs
    noise: float  # of a slot: standard deviation of the logarithm
    tides: float = 0.0  # how far it comes and goes within a quarter of an hour
    bursts: float = 0.0  # share of slots in which something else runs, and makes it ten times
    kept: float = 0.0  # of a slot's noise in the next one


def stopped_s(load: Load, seed: int, for_s: float = DAY_S, better_until_s: float = 0.0) -> float:
    """When the guard stops steering; infinite: it does not. Until `better_until_s` steering saves
    a fifth."""
    random, guard, level = Random(seed), Guard.armed(0.0), 0.0
    while (now_s := guard.due_s) < for_s:
        cost = math.log1p(load.cost) if now_s >= better_until_s else math.log(0.8)
        slots = list[float]()
        for _ in range(2):
            level = load.kept * level + random.gauss(0, load.noise)
            burst = math.log(10) if random.random() < load.bursts else 0.0
            slots.append(level + burst + load.tides * math.sin(now_s / 140))
            now_s += SLOT_S
        first, second = slots
        steered, unsteered = (first, second) if random.random() < 0.5 else (second, first)
        guard = compared(guard, math.exp(steered + cost - unsteered), 0.0, now_s)
        if costs(guard):
            return now_s
    return math.inf


RESTLESS = {"tides": 0.3, "bursts": 0.05, "kept": 0.7}


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("more", [{}, RESTLESS], ids=["steady", "restless"])
def test_no_difference_is_not_stopped(noise: float, more: dict[str, float]) -> None:
    """In none of 40 days."""
    load = Load(0.0, noise, **more)
    assert all(stopped_s(load, seed) == math.inf for seed in range(40))


@pytest.mark.parametrize("cost", [-0.02, -0.1, -0.3])
@pytest.mark.parametrize("more", [{}, RESTLESS], ids=["steady", "restless"])
def test_what_saves_is_never_stopped(cost: float, more: dict[str, float]) -> None:
    load = Load(cost, 0.1, **more)
    assert all(stopped_s(load, seed) == math.inf for seed in range(40))


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_the_stated_rate_holds_at_the_margin(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steering costs exactly what is tolerated, a share of n / ENOUGH is stopped in n pairs
    at most. So that this can be seen at all, the threshold is a hundredth: 50 pairs, a quarter."""
    monkeypatch.setattr(guard_module, "ENOUGH", ENOUGH / 100)
    load, within_s = Load(math.expm1(MARGIN), noise), 50 * EAGER_S
    stopped = sum(stopped_s(load, seed, within_s) < math.inf for seed in range(400))
    assert 0 < stopped <= 400 * 50 / (ENOUGH / 100)


@pytest.mark.parametrize(
    ("cost", "noise", "within_minutes"),
    [(0.1, 0.02, 30), (0.2, 0.05, 30), (0.5, 0.1, 30), (1.0, 0.2, 30), (0.2, 0.1, 90)],
)
def test_what_costs_is_stopped_in_time(cost: float, noise: float, within_minutes: int) -> None:
    for seed in range(40):
        assert stopped_s(Load(cost, noise), seed) <= within_minutes * 60


def test_a_load_that_turns_bad_is_stopped_as_well() -> None:
    """Days in which steering saved do not count against that: 16 pairs, of which the first come at
    the pace of calm."""
    for seed in range(20):
        stopped = stopped_s(Load(0.5, 0.1), seed, 3 * DAY_S, 2 * DAY_S)
        assert 2 * DAY_S < stopped <= 2 * DAY_S + 3600


def test_it_is_eager_at_first_and_under_suspicion() -> None:
    guard = Guard.armed(100.0)
    assert guard.due_s == 100.0 + EAGER_S
    waits = list[float]()
    for ratio in [0.9] * 20 + [1.5] * 5:
        guard = compared(guard, ratio, 0.0, 0.0)
        waits.append(guard.due_s)
    assert waits[:15] == [EAGER_S] * 15
    assert waits[15:20] == [CALM_S] * 5
    assert waits[-1] == EAGER_S


def test_setting_aside_may_cost_so_much_at_most() -> None:
    for ratio, price in ((1.0, 0.5), (None, 5.0)):
        guard = compared(Guard.armed(0.0), ratio, price, 10.0)
        assert guard.due_s == 10.0 + price / PRICE_SHARE


def test_pairs_that_say_nothing_are_tried_again_ever_later() -> None:
    guard = compared(Guard.armed(0.0), 1.4, 0.0, 0.0)
    known, waits = guard.sums, list[float]()
    for _ in range(8):
        guard = compared(guard, None, 0.0, 0.0)
        waits.append(guard.due_s)
    assert waits == [120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
    assert (guard.sums, guard.pairs, guard.lost_in_row) == (known, 1, 8)
    assert compared(guard, 1.0, 0.0, 0.0).lost_in_row == 0


def test_the_change_is_that_of_the_last_pairs() -> None:
    guard = Guard.armed(0.0)
    assert guard.change is None
    for ratio in [5.0] * 3 + [1.1] * 16:
        guard = compared(guard, ratio, 0.0, 0.0)
    assert guard.change == pytest.approx(0.1)
    assert len(guard.sums) == len(STAKES)
