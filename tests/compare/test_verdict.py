# SPDX-License-Identifier: GPL-2.0-or-later
"""What a measurement says of slots whose truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.compare.figures import Figures
from atfnd.compare.pairs import LEAST_PAIRS, pairs_of, pairs_within, schedule
from atfnd.compare.student import quantile
from atfnd.compare.verdict import JUDGED, compare
from atfnd.model import Compared, Effect, Figure, Measurement

NOTHING: dict[Figure, float | None] = dict.fromkeys(Figure)
USUAL = {Figure.CPU_PER_BYTE: 10.0, Figure.RTT: 200.0, Figure.THROUGHPUT: 1e6}


def slots(
    random: Random,
    pairs: int,
    effect: Mapping[Figure, float] = {},
    noise: float = 0.05,
    drift: float = 0.0,
) -> list[tuple[bool, Figures]]:
    """Slots of a load that drifts, with figures that are `effect` times as large while armed."""
    taken: list[tuple[bool, Figures]] = []
    for number, armed in enumerate(schedule(pairs, random)):
        said = {**NOTHING}
        for figure, usual in USUAL.items():
            times = effect.get(figure, 1.0) if armed else 1.0
            said[figure] = usual * times * (1 + drift * number) * random.gauss(1, noise)
        taken.append((armed, said))
    return taken


def found(result: Measurement, figure: Figure) -> Compared:
    return next(each for each in result.figures if each.figure is figure)


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [
        ({Figure.CPU_PER_BYTE: 0.9}, Effect.BETTER),
        ({Figure.CPU_PER_BYTE: 1.1}, Effect.WORSE),
        ({Figure.RTT: 0.9}, Effect.BETTER),
        ({Figure.RTT: 1.1}, Effect.WORSE),
        ({Figure.THROUGHPUT: 1.1}, Effect.BETTER),
        ({Figure.THROUGHPUT: 0.9}, Effect.WORSE),
        ({Figure.CPU_PER_BYTE: 0.9, Figure.RTT: 1.2}, Effect.MIXED),
    ],
)
def test_a_tenth_more_or_less_is_found_under_a_load_that_grows(
    effect: Mapping[Figure, float], verdict: Effect
) -> None:
    """The load doubles meanwhile: only slots of a pair are comparable."""
    result = compare("eth0", pairs_of(slots(Random(7), 30, effect, noise=0.02, drift=0.017)))
    assert result.verdict is verdict
    for figure, times in effect.items():
        one = found(result, figure)
        assert one.paused is not None
        assert one.low is not None
        assert one.high is not None
        assert one.low > 0 if times > 1 else one.high < 0
        assert one.difference == pytest.approx((times - 1) * one.paused, abs=0.05 * one.paused)


def test_without_an_effect_a_difference_is_said_in_5_of_100_measurements_at_most() -> None:
    random, times = Random(20261124), 1000
    said = Counter(compare("eth0", pairs_of(slots(random, 8))).verdict for _ in range(times))
    wrong = times - said[Effect.SAME]
    assert 0 < wrong / times < 0.07  # 0.05, and three times what chance adds in 1,000


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (120, 1.980)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert quantile(0.95, freedom) == pytest.approx(t, abs=0.0006)


@given(st.integers(1, 200), st.integers())
def test_each_pair_of_slots_has_one_of_each(pairs: int, seed: int) -> None:
    armed = schedule(pairs, Random(seed))
    assert len(armed) == 2 * pairs
    assert all(a != b for a, b in zip(armed[::2], armed[1::2], strict=True))


@given(st.integers(1, 200), st.integers())
def test_armed_comes_first_in_half_of_the_pairs(pairs: int, seed: int) -> None:
    """Else a load that grows would favour one of them."""
    first = sum(schedule(pairs, Random(seed))[::2])
    assert abs(2 * first - pairs) <= pairs % 2


def test_in_which_of_them_is_chance() -> None:
    orders = {tuple(schedule(6, Random(seed))) for seed in range(400)}
    assert len(orders) == 20  # 6 over 3
    assert {schedule(1, Random(seed))[0] for seed in range(20)} == {True, False}


@pytest.mark.parametrize(("total_s", "pairs"), [(600, 30), (19, 0), (20, 1), (59, 2)])
def test_as_many_pairs_as_there_is_time_for(total_s: float, pairs: int) -> None:
    assert pairs_within(total_s, 10) == pairs


def test_a_lost_slot_takes_its_pair_with_it() -> None:
    """The figures of the lost slot's partner would be compared with those of another time."""
    some = slots(Random(5), 12, {Figure.CPU_PER_BYTE: 0.8}, noise=0.02)
    whole: list[tuple[bool, Figures | None]] = [*some]
    whole[3] = (whole[3][0], None)
    whole[8] = (whole[8][0], None)
    result = compare("eth0", pairs_of(whole))
    assert (result.pairs, result.lost, found(result, Figure.CPU_PER_BYTE).pairs) == (12, 2, 10)
    assert result.verdict is Effect.BETTER


def test_a_pair_that_was_cut_short_or_has_two_of_a_kind_is_none() -> None:
    some: list[tuple[bool, Figures | None]] = [(True, NOTHING), (False, NOTHING), (True, NOTHING)]
    assert len(pairs_of(some)) == 1
    assert pairs_of([(True, NOTHING), (True, NOTHING)]) == []


def test_armed_and_paused_are_not_confused_whichever_comes_first() -> None:
    a, b = NOTHING | {Figure.RTT: 1.0}, NOTHING | {Figure.RTT: 2.0}
    assert pairs_of([(True, a), (False, b)]) == pairs_of([(False, b), (True, a)]) == [(a, b)]
    one = found(compare("eth0", [(a, b)]), Figure.RTT)
    assert (one.armed, one.paused, one.difference, one.low) == (1.0, 2.0, -1.0, None)


def test_too_few_pairs_decide_nothing() -> None:
    """They are shown nevertheless."""
    few = slots(Random(5), LEAST_PAIRS - 1, {Figure.CPU_PER_BYTE: 0.5}, noise=0.001)
    result = compare("eth0", pairs_of(few))
    assert result.verdict is Effect.UNKNOWN
    assert result.sentence == "not known: it takes 4 whole pairs of slots, and these are 3"
    assert found(result, Figure.CPU_PER_BYTE).high is not None


def test_without_packets_nothing_is_known() -> None:
    result = compare("eth0", [(NOTHING, NOTHING)] * 9)
    assert result.verdict is Effect.UNKNOWN
    assert all((each.armed, each.paused, each.low) == (None, None, None) for each in result.figures)


def test_a_figure_that_the_machine_does_not_give_is_named() -> None:
    some = [
        (armed, {**figures, Figure.CPU_PER_BYTE: None})
        for armed, figures in slots(Random(2), 20, {Figure.RTT: 0.8}, noise=0.02)
    ]
    result = compare("eth0", pairs_of(some))
    assert result.verdict is Effect.BETTER
    assert result.sentence.startswith("better with atfnd: round trip time -")
    assert result.sentence.endswith("CPU per byte is not known")


def test_the_sentence_has_the_figures_that_it_rests_on() -> None:
    result = compare("eth0", pairs_of(slots(Random(2), 20, {Figure.RTT: 0.8}, noise=0.02)))
    assert result.sentence.count("[") == 1
    result = compare("eth0", pairs_of(slots(Random(9), 20)))
    assert result.sentence.startswith("no difference was found: CPU per byte ")
    assert result.sentence.count("[") == len(JUDGED) == 3
