# SPDX-License-Identifier: GPL-2.0-or-later
"""What observing executes: computed of windows, and compared with what was kept; and where the
kernel has the programs."""

from __future__ import annotations

import os

import pytest

from bench.counted.observed import differing, figures
from bench.counted.programs import programs
from bench.meter import Meter

NAMES = ["on_recv", "on_send", "on_recv"]


def test_programs_of_one_name_are_one() -> None:
    windows = [
        {"requests": 20, "runs": [20, 40, 0], "within": [4000, 400, 0]},
        {"requests": 30, "runs": [10, 60, 20], "within": [2000, 600, 5000]},
    ]
    assert figures(NAMES, windows) == {"on_recv, a run": 220, "on_send, a run": 10}


def test_a_program_that_runs_seldom_is_no_figure() -> None:
    window = {"requests": 50, "runs": [100, 3, 0], "within": [20_000, 900, 0]}
    assert figures(NAMES, [window]) == {"on_recv, a run": 200}


@pytest.mark.parametrize(
    ("counted", "differ"),
    [
        ({"a": 100.0}, []),
        ({"a": 101.9}, []),
        ({"a": 98.1}, []),
        ({"a": 102.1}, ["a: 100.0 was kept, 102.1 counted"]),
        ({"a": 97.9}, ["a: 100.0 was kept, 97.9 counted"]),
        ({"a": 100.0, "b": 1.0}, ["b: None was kept, 1.0 counted"]),
        ({}, ["a: 100.0 was kept, None counted"]),
    ],
)
def test_what_is_not_within_two_percent_differs(
    counted: dict[str, float], differ: list[str]
) -> None:
    assert differing({"a": 100.0}, counted) == differ


def test_the_kernel_says_where_programs_are() -> None:
    with Meter(1, os.stat("/proc/self/ns/net").st_ino):
        found = [each for each in programs() if each.name in ("on_recv", "on_send")]
    assert {each.name for each in found} == {"on_recv", "on_send"}
    assert all(each.end > each.begin > 1 << 63 for each in found)
