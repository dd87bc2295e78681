# SPDX-License-Identifier: GPL-2.0-or-later
"""In which order tenants' events are decided, and what their moves and filters cost them."""

from __future__ import annotations

from itertools import chain

import pytest

from atfnd.engine.ownership.shares import MoveRates, may_take, tenants_of
from atfnd.engine.turns import Turns
from atfnd.model import Thread
from tests.values import key, seen

__all__: list[str] = []

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
