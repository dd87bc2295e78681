# SPDX-License-Identifier: GPL-2.0-or-later
"""What is counted as a decision is one, and what is counted as a move is held and proven."""

from __future__ import annotations

from atfnd.move.verdict import Mechanism, Verdict
from bench.counted.deciding import FLOWS, TIMES, Decider

__all__: list[str] = []


def test_each_is_one() -> None:
    decider = Decider(min(FLOWS))
    assert [decider.decide() for _ in range(TIMES)] == [1] * TIMES
    ends = [end for _ in range(TIMES) for end in decider.move()]
    assert [each.verdict for each in ends] == [Verdict.PROVEN] * TIMES
    assert {each.mechanism for each in ends} == {Mechanism.HOLD}
    assert len({each.subject for each in ends}) == TIMES
