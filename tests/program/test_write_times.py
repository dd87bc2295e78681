# SPDX-License-Identifier: GPL-2.0-or-later
"""What a rule write is expected to take, by those of late."""

from __future__ import annotations

from atfnd.program.write_times import WriteTimes


def after(*took_ns: int) -> int | None:
    times = WriteTimes()
    for each in took_ns:
        times.note(each)
    return times.expected_ns()


def test_two_writes_are_needed() -> None:
    assert after() is None
    assert after(5) is None


def test_one_that_was_long_by_accident_does_not_count() -> None:
    assert after(5, 9_000) == 5
    assert after(5, 6, 9_000, 7) == 7


def test_what_is_long_twice_counts_until_it_is_long_ago() -> None:
    assert after(9_000, 9_000, 5) == 9_000
    assert after(9_000, 9_000, *[5] * 15) == 5
