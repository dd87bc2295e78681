# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's own CPU time: what it may spend, and which moves wait for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.cpu_budget import LOOKED_AT, WINDOW_NS, CpuBudget
from atfnd.model import FlowKey
from tests.values import key

MS, S = 1_000_000, 1_000_000_000


def begun(budget: CpuBudget, wanted: int) -> int:
    """How many of so many moves can be paid now."""
    return sum(budget.pays() for _ in range(wanted))


def looked(budget: CpuBudget, reports: int) -> int:
    """What looks at so many reports take, of 0.25 ms each."""
    took_ns = 0
    for _ in range(reports):
        took_ns += MS // 4 if took_ns < budget.looks_ns else 0
    return took_ns


def test_a_quarter_of_what_is_left_pays_for_moves() -> None:
    budget = CpuBudget(0.01)
    budget.read(7 * S, 0)  # what the start took does not count
    assert begun(budget, 10_000) == 40  # of 0.5 ms: a quarter of 80 ms
    budget.read(7 * S + 20 * MS, S)
    assert begun(budget, 10_000) == 30  # a quarter of what is left
    assert not budget.over


def test_over_begins_and_ends_once() -> None:
    budget = CpuBudget(0.01)
    said = [budget.read(0, 0), budget.read(300 * MS, S)]
    said += [budget.read(300 * MS, at * S) for at in range(2, 20)]
    assert said.count(True) == 2
    assert not budget.over
    assert begun(budget, 10) == 10


def test_a_burst_is_paid_back_within_a_window() -> None:
    """However much was spent, moves go on as usual ten seconds later."""
    budget = CpuBudget(0.01)
    budget.read(0, 0)
    budget.read(1000 * S, S)
    budget.read(1000 * S, S + WINDOW_NS + S)
    assert begun(budget, 100) > 10


def test_all_have_their_turn_however_many_wait() -> None:
    budget = CpuBudget(0.01)
    flows = [key(number) for number in range(2 * LOOKED_AT)]
    for each in flows:
        budget.wait(each)
    budget.read(0, 0)
    for second in range(1, 3):
        budget.read(second * S, second * S)
        budget.turn(lambda each: 1.0)
    assert len(budget.waiting) == 2 * LOOKED_AT - 2
    asked: list[FlowKey] = []

    def noted(each: FlowKey) -> float:
        asked.append(each)
        return 1.0

    for second in range(3, 6):
        budget.read(second * S, second * S)
        budget.turn(noted)
    assert set(asked) >= set(budget.waiting)


STEP = st.tuples(st.integers(0, 500), st.integers(0, 500))  # moves and reports of a second


@given(st.lists(STEP, min_size=1, max_size=40))
def test_any_ten_seconds_cost_no_more_than_the_share(seconds: list[tuple[int, int]]) -> None:
    """Less a fifth, and one move and some looks at each reading, where they cost what they are
    taken for."""
    budget, spent_ns, at_reading, forced_ns = CpuBudget(0.01), 0, [0], [0]
    budget.read(0, 0)
    for second, (wanted, reports) in enumerate(seconds, 1):
        for number in range(wanted):
            if budget.pays():
                spent_ns += MS // 2
            else:
                budget.wait(key(number))
        spent_ns += looked(budget, reports)
        budget.read(spent_ns, second * S)
        at_reading.append(spent_ns)
        forced_ns.append(forced_ns[-1] + MS // 2 + 3 * MS // 4)
        chosen = budget.turn(lambda each: 1.0)
        spent_ns += len(chosen) * MS // 2
        for _ in chosen:
            assert budget.pays()
    for first, now_ns in enumerate(at_reading[10:]):
        assert now_ns - at_reading[first] <= 80 * MS + forced_ns[10]


@pytest.mark.parametrize("cost_ms", [1, 30, 300])
def test_moves_that_turn_out_dear_are_begun_less_often(cost_ms: int) -> None:
    """Ten flows always wait: a window has its share of CPU time, and one move at least."""
    budget, spent_ns, at_reading = CpuBudget(0.01), 0, [0]
    budget.read(0, 0)
    for second in range(1, 120):
        budget.read(spent_ns, second * S)
        at_reading.append(spent_ns)
        for number in range(10):
            budget.wait(key(number))
        for _ in budget.turn(lambda each: 1.0):
            assert budget.pays()
            spent_ns += cost_ms * MS
    windows = [after - before for before, after in zip(at_reading, at_reading[10:], strict=False)]
    settled = windows[40:]
    assert max(settled) <= (100 + cost_ms) * MS
    assert min(settled) >= cost_ms * MS


def test_reports_wait_while_moves_have_used_the_window_up() -> None:
    budget = CpuBudget(0.01)
    assert looked(budget, 200) == 50 * MS  # nothing is limited yet
    budget.read(0, 0)
    assert looked(budget, 200) == 20 * MS  # a quarter of 80 ms
    budget.read(100 * MS, S)
    assert looked(budget, 200) == MS // 2  # so nothing is stalled
