# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of tiers names files that are there; what fails once is run once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.__main__ import Ran, once_more


def test_the_table_names_files_that_are_there() -> None:
    named = {*tiers.FULL, *tiers.DEMAND, *tiers.ALONE, *tiers.LONG, *tiers.SOAK}
    assert all(tiers.file_of(each) for each in named)


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
