# SPDX-License-Identifier: GPL-2.0-or-later
"""In which order tenants' events are decided, what their moves cost them, and what all of them may
cost the daemon in CPU time."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.cpu_budget import LOOKED_AT, CpuBudget
from atfnd.engine.ownership.shares import MoveRates, may_take, tenants_of
from atfnd.engine.turns import Turns
from atfnd.model import FlowKey, Thread
from tests.values import key, seen

SECOND_NS = 10**9
THEIRS, MINE = (Thread(uid, uid, "app", None, uid) for uid in (1000, 1001))
USER, OTHER = tenants_of(THEIRS), tenants_of(MINE)


def waiting(*by_user: int) -> Turns:
    """So many events of each user, and all of the first one's before the next one's."""
    turns = Turns()
    for uid, events in enumerate(by_user):
        for number in range(events):
            turns.add(seen(10_000 * uid + number, 1, thread=Thread(uid, uid, "app", None, uid)))
    return turns


def test_no_wake_up_decides_more_than_512() -> None:
    turns = waiting(600)
    assert [len(list(turns.take({}, 0))) for _ in range(3)] == [512, 88, 0]


def test_who_was_next_when_a_wake_up_ended_is_the_first_of_the_next() -> None:
    turns = waiting(300, 300, 300)
    taken = list(chain.from_iterable(turns.take({}, 0)))
    assert [each.thread.uid for each in taken[-2:] if each.thread] == [0, 1]
    [following] = next(turns.take({}, 0))
    assert following.thread is not None
    assert following.thread.uid == 2


def test_the_next_wake_up_is_for_the_first_whose_turn_comes() -> None:
    """Not for one that has had all its decisions for now."""
    turns, every_ns = waiting(65), {"user": SECOND_NS}
    assert len(list(turns.take(every_ns, 5))) == 64
    late_ns = turns.due_ns(every_ns)
    assert late_ns is not None
    assert late_ns > 5
    turns.add(seen(9_000, 1, thread=Thread(9, 9, "app", None, 9)))
    early_ns = turns.due_ns(every_ns)
    assert early_ns is not None
    assert early_ns <= 5


def test_threads_that_are_not_known_are_one_user() -> None:
    """They would have no share else, and so no limit."""
    rates = MoveRates()
    taken = [rates.take(tenants_of(None), {"user": SECOND_NS}, 0) for _ in range(18)]
    assert taken == [0] * 16 + [SECOND_NS, 2 * SECOND_NS]


def test_a_move_that_must_wait_too_long_is_not_taken() -> None:
    """Else each question would put it off further."""
    rates = MoveRates()
    taken = [rates.take(USER, {"user": SECOND_NS}, 0) for _ in range(40)]
    assert max(taken) == taken[-1] == 11 * SECOND_NS


def test_only_a_bucket_that_is_full_again_is_forgotten() -> None:
    rates = MoveRates()
    for _ in range(16):
        rates.take(USER, {"user": SECOND_NS}, 0)
    rates.forget(0)
    assert rates.take(USER, {"user": SECOND_NS}, 0) == SECOND_NS


@pytest.mark.parametrize(("has", "takes"), [(0, False), (1, False), (2, True)])
def test_who_has_nothing_takes_from_who_has_two(has: int, takes: bool) -> None:
    """From one that has a turn, it would be taken back at once."""
    assert may_take(USER, OTHER, dict.fromkeys(OTHER, has)) is takes


def test_decisions_are_taken_in_turns() -> None:
    turns, every_ns = Turns(), {"user": SECOND_NS // 1000}
    for number in range(4000):
        turns.add(seen(number, 1, thread=Thread(number, number, "app", None, 1000)))
    turns.add(seen(4000, 1, thread=MINE))
    first = list(chain.from_iterable(turns.take(every_ns, 10 * SECOND_NS)))
    assert 1001 in [each.thread.uid for each in first[:2] if each.thread]
    assert len(first) == 64 + 1
    assert list(chain.from_iterable(turns.take(every_ns, 10 * SECOND_NS))) == []
    taken, now_ns = 0, 10 * SECOND_NS
    while (due_ns := turns.due_ns(every_ns)) is not None and due_ns < 10 * SECOND_NS + SECOND_NS:
        now_ns = max(now_ns, due_ns)
        taken += len(list(chain.from_iterable(turns.take(every_ns, now_ns))))
    assert 999 <= taken <= 1000


def test_of_a_socket_the_last_event_waits_and_none_of_a_closed_one() -> None:
    turns = Turns()
    for cpu in (1, 2):
        turns.add(seen(1, cpu, thread=MINE))
    turns.add(seen(2, 1, thread=MINE))
    turns.add(seen(2, 3, thread=THEIRS))
    turns.add(seen(3, 1, thread=None))
    turns.gone(1003)
    turns.gone(9)
    assert len(turns) == 2
    assert sorted((each.cookie, each.app_cpu) for [each] in turns.take({}, 0)) == [
        (1001, 2), (1002, 3),
    ]  # fmt: skip
    assert turns.due_ns({}) is None


def test_what_waits_is_bounded() -> None:
    turns, every_ns = Turns(), {"user": SECOND_NS}
    for number in range(5000):
        turns.add(seen(number, 1, thread=THEIRS))
    assert (len(turns), turns.dropped) == (4096, 904)
    assert next(turns.take(every_ns, 0))[0].key == key(904)


# The daemon's own CPU time: what it may spend, and which moves wait for that.

MS, S = 1_000_000, 1_000_000_000


def looked(budget: CpuBudget, reports: int) -> int:
    """What looks at so many reports take, of 0.25 ms each."""
    took_ns = 0
    for _ in range(reports):
        took_ns += MS // 4 if took_ns < budget.looks_ns else 0
    return took_ns


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
