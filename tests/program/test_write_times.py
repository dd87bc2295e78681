# SPDX-License-Identifier: GPL-2.0-or-later
"""What a rule write is expected to take, by those of late."""

from __future__ import annotations

import pytest

from atfnd.program.write_times import WriteTimes


@pytest.mark.parametrize(
    ("took_ns", "expected_ns"),
    [
        ([], None),
        ([5], None),  # two writes are needed
        ([5, 9_000], 5),  # one that was long by accident does not count
        ([5, 6, 9_000, 7], 7),
        ([9_000, 9_000, 5], 9_000),  # long twice counts, until it is long ago
        ([9_000, 9_000, *[5] * 15], 5),
    ],
)
def test_the_second_longest_of_late_is_expected(
    took_ns: list[int], expected_ns: int | None
) -> None:
    times = WriteTimes()
    for each in took_ns:
        times.note(each)
    assert times.expected_ns() == expected_ns
