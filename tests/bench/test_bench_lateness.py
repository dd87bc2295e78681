# SPDX-License-Identifier: GPL-2.0-or-later
"""Which move a late datagram belongs to."""

from __future__ import annotations

from collections import Counter

from bench.lateness import Moved, seen
from bench.traffic.datagrams import Datagram


def moved(flow: int | None, began: int, reported: int | None = 0, verdict: str = "x") -> Moved:
    return Moved(flow, began, reported, verdict)


def late(flow: int, at: int) -> Datagram:
    return Datagram(at, flow, late=True)


def test_a_late_datagram_belongs_to_the_last_move_of_its_flow_before_it() -> None:
    moves = [moved(1, 10, reported=2), moved(1, 30, reported=1, verdict="y"), moved(2, 15)]
    found = seen(moves, [*(late(1, at) for at in (11, 29, 31)), Datagram(40, 2, late=False)])
    assert (found.late, found.stray, found.disagreed) == (3, 0, 0)
    assert found.reordered == Counter(x=1, y=1)


def test_other_numbers_than_were_reported_are_a_disagreement_unless_nobody_looked() -> None:
    one = [late(1, 11)]
    assert seen([moved(1, 10, reported=1)], one).disagreed == 0
    assert seen([moved(1, 10, reported=0)], one).disagreed == 1
    assert seen([moved(1, 10, reported=1)], []).disagreed == 1
    assert seen([moved(1, 10, reported=None)], one).disagreed == 0
