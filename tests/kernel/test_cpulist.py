# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPU-list codec against the kernel's format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.kernel.system.cpulist import format_cpulist, format_cpumask, parse_cpulist, parse_cpumask


@given(st.frozensets(st.integers(0, 8191)))
def test_what_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus)) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("\n", set()),
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("8,0-1", {0, 1, 8}),
        ("0-2,1-3", {0, 1, 2, 3}),
        ("0-9:2/5", {0, 1, 5, 6}),
    ],
)
def test_reads_what_the_kernel_writes(text: str, cpus: set[int]) -> None:
    assert parse_cpulist(text) == cpus


@pytest.mark.parametrize(
    "text", ["a", "1-", "-1", "3-1", "1,,2", "0 1", "0x3", "1-2-3", "0-9:2", "0-9:3/2", "0-9:0/2"]
)
def test_refuses_anything_else(text: str) -> None:
    with pytest.raises(ValueError, match="not a CPU"):
        parse_cpulist(text)


def test_writes_ranges() -> None:
    assert format_cpulist({8, 3, 1, 2, 0}) == "0-3,8"
    assert format_cpulist([]) == ""


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0\n", ()),
        ("f", (0, 1, 2, 3)),
        ("00000001,0000000f", (0, 1, 2, 3, 32)),
        ("80000000,00000000,00000000", (95,)),
    ],
)
def test_masks(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpumask(text) == set(cpus)


@given(st.frozensets(st.integers(0, 300)))
def test_masks_round_trip(cpus: frozenset[int]) -> None:
    text = format_cpumask(cpus)
    assert parse_cpumask(text) == cpus
    assert all(len(word) <= 8 for word in text.split(","))
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpumask("0-3")
