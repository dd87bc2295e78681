# SPDX-License-Identifier: GPL-2.0-or-later
"""What pays: more bytes a CPU-second or lower latency, not at the cost of as much of the other."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from atfnd.compare.window import Comparison, Window, WindowFigures, paid
from atfnd.engine.trials.subjects import LLC, PLACING
from atfnd.model import Placement
from tests.compare.trying import Load

__all__: list[str] = []

MARGIN = PLACING.margin
factors = st.floats(0.05, 20)
CORE = WindowFigures(1e9, 2e9, 1.5)


def against(rate: float, efficiency: float, time: float) -> Comparison:
    """`llc`, that many times what the core had."""
    return Comparison(CORE, WindowFigures(1e9 * rate, 2e9 * efficiency, 1.5 * time))


def pays(rate: float, efficiency: float, time: float) -> bool:
    return against(rate, efficiency, time).pays(MARGIN)


loads = st.builds(Load, st.floats(1e7, 1e10), st.floats(0.5, 2.0), st.floats(0.0, 2.0))


def on(load: Load) -> Window:
    return load.window(10**12, Placement.CORE)


def off(load: Load) -> Window:
    return load.window(10**12, LLC)


@given(factors, factors, factors)
def test_what_neither_saves_cpu_time_nor_is_quicker_never_pays(
    rate: float, efficiency: float, time: float
) -> None:
    assert not pays(min(rate, 1.24), min(efficiency, 1.24), max(time, 1 / 1.24))


@given(factors, factors, factors)
def test_either_gain_pays_where_nothing_is_lost(
    rate: float, efficiency: float, time: float
) -> None:
    rate, efficiency, time = max(1, rate), max(1, efficiency), min(1, time)
    gain = max(rate, efficiency, 1 / time)
    assume(abs(gain - 1 - MARGIN) > 1e-6)
    assert pays(rate, efficiency, time) is (gain > 1 + MARGIN)


@given(factors, factors, factors)
def test_a_gain_that_costs_as_much_of_the_other_does_not(
    rate: float, efficiency: float, time: float
) -> None:
    quickness = max(rate, 1 / time)
    assert not pays(rate, min(efficiency, 0.99 / quickness), time)


@given(factors, factors)
def test_what_carries_clearly_less_never_pays(efficiency: float, time: float) -> None:
    assert not pays(0.79, efficiency, time)


def test_the_papers_figures() -> None:
    """20 Gb/s on the application's core, 39 on another one of its socket, 28 on another socket."""
    full = on(Load(20e9 / 8, 1.0))
    assert paid(MARGIN, off(Load(39e9 / 8, 2.0)), full).pays(MARGIN)
    assert not paid(MARGIN, off(Load(28e9 / 8, 2.0)), full).pays(MARGIN)


@given(loads, st.lists(loads, min_size=1, max_size=3))
def test_it_has_to_pay_against_every_window_on_the_core(llc: Load, core: list[Load]) -> None:
    windows = [on(each) for each in core]
    each_alone = [paid(MARGIN, off(llc), one).pays(MARGIN) for one in windows]
    # by the CPUs of all: the same ones here
    assert paid(MARGIN, off(llc), *windows).pays(MARGIN) is all(each_alone)


@given(loads, loads, st.floats(0.5, 50))
def test_how_long_a_window_is_says_nothing(llc: Load, core: Load, times: float) -> None:
    first = off(llc)
    longer = first._replace(
        began_ns=first.ended_ns - int(first.length_ns * times),
        bytes=int(first.bytes * times),
        spent_ns={cpu: int(ns * times) for cpu, ns in first.spent_ns.items()},
        waited_ns={cpu: int(ns * times) for cpu, ns in first.waited_ns.items()},
    )
    one, other = (paid(MARGIN, each, on(core)) for each in (first, longer))
    for what in ("rate", "efficiency", "time"):
        assert abs(getattr(one, what) / getattr(other, what) - 1) < 1e-4


@given(loads, loads)
def test_nothing_carried_is_no_error_and_does_not_pay(llc: Load, core: Load) -> None:
    nothing = off(llc)._replace(bytes=0, spent_ns={}, waited_ns={})
    assert not paid(MARGIN, nothing, on(core)).pays(MARGIN)
