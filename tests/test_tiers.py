# SPDX-License-Identifier: GPL-2.0-or-later
"""Every test has one tier, and the table names files that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.__main__ import Ran, once_more
from tests.tiers import markers

__all__: list[str] = []

HERE = Path(__file__).parent


def test_the_table_names_files_that_are_there() -> None:
    named = {*tiers.FULL, *tiers.DEMAND, *tiers.ALONE, *tiers.LONG, *tiers.SOAK}
    assert all(tiers.file_of(each) for each in named)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("test_new.py", {"quick"}),
        ("test_bench_ordering.py", {"demand", "alone"}),
        ("test_bench_demo.py", {"full", "alone"}),
        ("test_guest.py", {"full", "alone"}),
        ("test_observed_again.py", {"demand"}),
    ],
)
def test_a_file_is_of_one_tier(file: str, expected: set[str]) -> None:
    assert markers(HERE / file) == expected


ONCE = """
from pathlib import Path

def test_it():
    count = Path(__file__).with_suffix(".count")
    before = count.read_text() if count.exists() else ""
    count.write_text(before + "x")
    assert len(before) >= {}
"""


@pytest.mark.parametrize(("times", "code"), [(0, 0), (1, 1)])
def test_what_failed_once_and_not_again_is_no_failure(
    tmp_path: Path, times: int, code: int
) -> None:
    file = tmp_path / "test_once.py"
    file.write_text(ONCE.format(times))
    first = Ran("first", 1, 0.0, [f"FAILED {file}::test_it - assert 0 >= 1", "1 failed, 3 passed"])
    [again] = once_more([first])
    assert (first.code, again.code) == (code, code)
