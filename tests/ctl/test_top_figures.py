# SPDX-License-Identifier: GPL-2.0-or-later
"""Rates and loads by looks at a daemon's counters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.ctl.top.cells import bar, rate
from atfnd.ctl.top.figures import WINDOW_NS, Rates, Reading, Series, is_move
from tests.ctl.figures import STATUS, a_look, an_event


@given(st.lists(st.tuples(st.integers(1, WINDOW_NS), st.integers(0, 1 << 40)), max_size=30))
def test_a_rate_is_of_its_window(steps: list[tuple[int, int]]) -> None:
    """Of the last readings: of half a second at least, where there is so much, and of no more than
    one reading beyond."""
    rates, all_readings = Rates(), [Reading(0, 0)]
    for step_ns, more in steps:
        before = all_readings[-1]
        all_readings.append(Reading(before.at_ns + step_ns, before.total + more))
    for reading in all_readings:
        rates.see([("it", reading)])
    last = all_readings[-1]
    old = [each for each in all_readings if last.at_ns - each.at_ns >= WINDOW_NS]
    base = old[-1] if old else all_readings[0]
    if base is last:
        assert rates.per_s("it") is None
    else:
        expected = (last.total - base.total) * 1e9 / (last.at_ns - base.at_ns)
        assert rates.per_s("it") == pytest.approx(expected)


def test_what_goes_back_or_away_begins_anew() -> None:
    rates = Rates()
    for at_s, total in ((0, 500), (1, 600), (2, 10)):
        rates.see([("it", Reading(at_s * 10**9, total))])
    assert rates.per_s("it") is None
    rates.see([("it", Reading(3 * 10**9, 30))])
    assert rates.per_s("it") == 20
    rates.see([])
    rates.see([("it", Reading(4 * 10**9, 40))])
    assert rates.per_s("it") is None


def test_flows_queues_and_cpus() -> None:
    series = Series()
    first = series.see(a_look(1, 0))
    assert not first.known()
    assert first.flows[0].bits_per_s is None
    assert (first.cpus[0].network, first.cpus[0].application) == (None, None)
    figures = series.see(a_look(3, 1_000_000, busy_s=1.0))
    assert figures.known()
    assert figures.flows[0].bits_per_s == 4_000_000
    assert (figures.queues[0].packets_per_s, figures.queues[0].bits_per_s) == (500, None)
    assert figures.cpus[0].network == pytest.approx(0.375)  # half of a half, and a quarter of it
    assert figures.cpus[0].application == pytest.approx(0.125)


def test_nothing_read_in_between_changes_no_rate() -> None:
    """An idle flow is one whose bytes were read again and are the same."""
    series = Series()
    series.see(a_look(1, 0))
    series.see(a_look(3, 1_000_000))
    assert series.see(a_look(3, 1_000_000)).flows[0].bits_per_s == 4_000_000
    assert series.see(a_look(5, 1_000_000)).flows[0].bits_per_s == 0


@given(st.floats(0, 100), st.floats(0, 4))
def test_a_cpu_is_never_busier_than_it_can_be(seconds: float, busy_s: float) -> None:
    """Clock ticks are coarse, and softirqs may be charged to the thread they interrupt."""
    series = Series()
    series.see(a_look(1, 0))
    cpu = series.see(a_look(1 + seconds, 0, busy_s=busy_s)).cpus[0]
    if cpu.network is not None and cpu.application is not None:
        assert 0 <= cpu.network <= 1
        assert -1e-9 <= cpu.application <= 1
        assert cpu.network + cpu.application <= 1 + 1e-9


def test_another_daemon_counts_anew() -> None:
    series = Series()
    series.see(a_look(1, 0))
    another = replace(a_look(2, 5_000_000), status={**STATUS, "since_wall_s": 2.0})
    assert series.see(another).flows[0].bits_per_s is None


@pytest.mark.parametrize(
    ("event", "move"),
    [
        (an_event("queue-cpu", flow=None), True),
        (an_event("setting", flow=None, what="rss = 0 1 0 1"), True),
        (an_event("setting", flow=None, what="rps:0 = 0"), False),
        (an_event("violated"), True),
        (an_event("deferred"), False),
        (an_event("delete"), False),
    ],
)
def test_what_is_a_move(event: dict[str, object], move: bool) -> None:
    assert is_move(event) is move


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (None, "-"), (0, "0"), (0.4, "0"), (999.4, "999"), (999.6, "1.0k"), (9_400, "9.4k"),
        (99_960, "100k"), (941e6, "941M"), (1e12, "1.0T"), (1e19, ">999P"),
    ],
)  # fmt: skip
def test_rates_in_few_characters(per_s: float | None, text: str) -> None:
    assert rate(per_s) == text


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 50))
def test_a_bar_is_not_longer_than_it_is(first: float, second: float, width: int) -> None:
    one, more = bar(first, second * (1 - first), width)
    assert 0 <= one <= one + more <= width
    assert bar(None, None, width) == (0, 0)
    assert bar(1.0, 0.0, width) == (width, 0)
