# SPDX-License-Identifier: GPL-2.0-or-later
"""The benches' statistics: exact where a value is known, lawful everywhere else."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import median, quantile, ratios

finite = st.floats(-1e9, 1e9, allow_nan=False, allow_infinity=False)
samples = st.lists(finite, min_size=1, max_size=200)


@given(samples, st.floats(0, 1))
def test_the_value_lies_in_its_interval_and_the_interval_in_the_samples(
    values: list[float], q: float
) -> None:
    found = quantile(values, q)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert 0 <= found.coverage <= 1
    assert found.n == len(values)
    assert median(values).value == pytest.approx(statistics.median(values))


def test_the_interval_encloses_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    found = [median([draw.expovariate(1.0) for _ in range(15)]) for _ in range(2000)]
    hits = sum(each.low <= 0.6931471805599453 <= each.high for each in found)
    assert hits / len(found) == pytest.approx(found[0].coverage, abs=0.02)


def test_a_tail_with_too_few_samples_says_so() -> None:
    assert quantile(range(10), 0.99).coverage < 0.95
    assert quantile(range(2000), 0.99).coverage >= 0.95


def test_ratios_are_of_rounds_of_both() -> None:
    assert ratios([2.0, 6.0, 20.0], [1.0, 2.0, 5.0])[:3] == (3.0, 2.0, 4.0)
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])
