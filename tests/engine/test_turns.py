# SPDX-License-Identifier: GPL-2.0-or-later
"""In which order tenants' events are decided, and what their moves and filters cost them."""

from __future__ import annotations

from itertools import chain

import pytest

from atfnd.engine.ownership.shares import MoveRates, may_take, tenants_of
from atfnd.engine.turns import Turns
from atfnd.model import Thread
from tests.values import seen

__all__: list[str] = []

SECOND_NS = 10**9
USER = tenants_of(Thread(1, 1, "app", None, 1000))
OTHER = tenants_of(Thread(2, 2, "app", None, 1001))


def waiting(*by_user: int) -> Turns:
    """So many events of each user, and all of the first one's before the next one's."""
    turns = Turns()
    for uid, events in enumerate(by_user):
        for number in range(events):
            turns.add(seen(10_000 * uid + number, 1, thread=Thread(uid, uid, "app", None, uid)))
    return turns


def test_a_newer_event_of_a_socket_that_waits_drops_no_other() -> None:
    turns = waiting(4096)
    turns.add(seen(7, 3, thread=Thread(0, 0, "app", None, 0)))
    assert (len(turns), turns.dropped) == (4096, 0)


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
