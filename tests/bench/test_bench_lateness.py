# SPDX-License-Identifier: GPL-2.0-or-later
"""Which move a late datagram belongs to, and which datagrams waited for one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bench.lateness import AFTER_NS, AROUND_NS, Moved, seen
from bench.traffic.datagrams import Datagram

MS = 1_000_000


def moved(
    flow: int | None,
    began_ms: int,
    *,
    held_ms: int = 0,
    reported: int | None = 0,
    verdict: str = "x",
) -> Moved:
    return Moved(flow, began_ms * MS, (began_ms + held_ms) * MS, held_ms > 0, reported, verdict)


def datagram(flow: int, sent_ms: float, delay_ms: float = 0.0, *, late: bool = False) -> Datagram:
    sent_ns, delay_ns = round(sent_ms * MS), round(delay_ms * MS)
    return Datagram(sent_ns + delay_ns, delay_ns, flow, late)


def test_a_late_datagram_belongs_to_the_last_move_of_its_flow_before_it() -> None:
    moves = [moved(1, 10, reported=2), moved(1, 30, reported=1, verdict="y"), moved(2, 15)]
    late = [datagram(1, at, late=True) for at in (11, 29, 31)]
    found = seen(moves, [*late, datagram(2, 40)])
    assert (found.late, found.stray, found.moves, found.disagreed) == (3, 0, 3, 0)
    assert found.reordered == Counter(x=1, y=1)


def test_a_late_datagram_before_any_move_is_of_none() -> None:
    found = seen([moved(1, 10)], [datagram(1, 5, late=True), datagram(2, 20, late=True)])
    assert (found.late, found.stray, found.reordered) == (2, 2, Counter())


def test_other_numbers_than_were_reported_are_a_disagreement_unless_nobody_looked() -> None:
    late = [datagram(1, 11, late=True)]
    assert seen([moved(1, 10, reported=1)], late).disagreed == 0
    assert seen([moved(1, 10, reported=0)], late).disagreed == 1
    assert seen([moved(1, 10, reported=1)], []).disagreed == 1
    assert seen([moved(1, 10, reported=None)], late).disagreed == 0


def test_a_move_of_all_flows_counts_those_with_traffic_around_it() -> None:
    around_ms = AROUND_NS / MS
    arrived = [
        datagram(1, 50 - around_ms),
        datagram(2, 50 + around_ms, late=True),
        datagram(3, 51 + around_ms),
        datagram(1, 50),
    ]
    found = seen([moved(None, 50, reported=None)], arrived)
    assert found.moves == 2
    assert found.reordered == Counter(x=1)


def test_delays_are_of_the_flow_just_moved_of_neighbours_of_a_hold_or_of_any() -> None:
    moves = [moved(1, 10, held_ms=2)]
    after_ms = AFTER_NS / MS
    arrived = [
        datagram(1, 9, 1),  # before it
        datagram(1, 10, 2),
        datagram(1, 10 + after_ms, 3),  # long after it
        datagram(2, 9, 4),
        datagram(2, 12, 5),
        datagram(2, 12.5, 6),
    ]
    found = seen(moves, arrived)
    assert found.delays_ns == [number * MS for number in range(1, 7)]
    assert found.moved_ns == [2 * MS]
    assert found.neighbours_ns == [5 * MS]


whens = st.integers(0, 1000)


@given(
    st.lists(st.builds(moved, st.integers(0, 3), whens)),
    st.lists(st.builds(datagram, st.integers(0, 3), whens, st.just(0.0), late=st.booleans())),
)
def test_each_late_datagram_is_of_one_move_or_stray(
    moves: list[Moved], arrived: list[Datagram]
) -> None:
    found = seen(moves, arrived)
    assert found.late == sum(each.late for each in arrived)
    assert found.moves == len(moves)
    assert found.reordered.total() <= min(len(moves), found.late - found.stray)
    assert len(found.delays_ns) == len(arrived)
