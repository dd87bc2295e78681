# SPDX-License-Identifier: GPL-2.0-or-later
"""Windows of the counted machine: what is computed of one, and that a bad one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atfnd.errors import OperatorError
from bench.counted.counts import KINDS, LATENCIES_NS, Window, handed, marks, pingpongs, windows

CPUS, EACH, ROUNDS = 4, 1_000_000, 2000
Counted = list[dict[str, list[int]]]


def counted(instructions: int) -> Counted:
    """A mark: each CPU executed so many, nine tenths of them in the idle loop, and a tenth of the
    others in a BPF program, which ran once in EACH."""
    tenth = instructions // 10
    none = [0] * len(KINDS)
    return [
        {
            "instructions": [tenth // 2, tenth // 4, tenth // 4, instructions - tenth],
            "user": [*none],
            "kernel": [*none],
            "softirq": [*none],
            "runs": [instructions // EACH],
            "within": [tenth // 10],
        }
        for _ in range(CPUS)
    ]


def text(*of: Counted) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in of)


def window(end: Counted) -> Window:
    [found] = windows(marks(text(counted(0), end)), [CPUS * EACH])
    return found


def test_a_window_is_the_difference_of_two_marks() -> None:
    first, second = windows(
        marks(text(*(counted(n * EACH) for n in (1, 2, 5, 6)))), [CPUS * EACH, CPUS * EACH + 1]
    )
    assert first == second
    assert all(cpu.executed == EACH and cpu.busy == EACH // 10 for cpu in first)
    assert first[0].instructions == {"user": 50_000, "kernel": 25_000, "softirq": 25_000}
    assert (first[0].runs, first[0].within) == ([1], [EACH // 100])


@pytest.mark.parametrize("idle", [{3: 0}, {0: EACH * 26 // 25, 1: EACH * 24 // 25}])
def test_cpus_at_different_rates_are_refused(idle: dict[int, int]) -> None:
    end = counted(EACH)  # one halts, or turns are unequal
    for cpu, executed in idle.items():
        end[cpu]["instructions"][-1] = executed * 9 // 10
    with pytest.raises(OperatorError, match="refused: CPUs executed at rates of"):
        window(end)


@pytest.mark.parametrize("took_ns", [CPUS * EACH * 9 // 10, CPUS * EACH * 11 // 10])
def test_a_clock_that_counts_other_instructions_is_refused(took_ns: int) -> None:
    with pytest.raises(OperatorError, match="of the guest's clock"):
        windows(marks(text(counted(0), counted(EACH))), [took_ns])


def test_missing_marks_are_refused() -> None:
    with pytest.raises(OperatorError, match="3 marks for 2 windows"):
        windows(marks(text(*map(counted, (0, 1, 2)))), [1, 1])


@pytest.mark.parametrize("cpus", [8, 16])
def test_ping_pongs_are_in_a_socket_and_across(cpus: int) -> None:
    sockets = [[cpu // (cpus // 2) for cpu in pair] for pair in pingpongs(cpus)]
    assert sockets == [[0, 0], [0, 1]]


def played(**lines: int) -> Window:
    end = counted(EACH)
    for cpu in (1, 3):
        for kind, count in lines.items():
            end[cpu]["user"][KINDS.index(kind)] = count
    return window(end)


def test_a_ping_pong_is_judged() -> None:
    handed(played(dirty_near=2001, upgrade_near=1999), (1, 3), ROUNDS, near=True)
    handed(played(dirty_far=2012, upgrade_far=2006), (1, 3), ROUNDS, near=False)


@pytest.mark.parametrize(
    ("lines", "near"),
    [
        ({"dirty_near": 2000, "upgrade_near": 1900}, True),
        ({"dirty_near": 2100, "upgrade_near": 2000}, True),
        ({"dirty_near": 2000, "upgrade_near": 2000}, False),
        ({}, True),
    ],
)
def test_a_model_that_fails_its_known_counts_is_refused(lines: Any, near: bool) -> None:
    with pytest.raises(OperatorError, match="2000 rounds of a ping-pong were"):
        handed(played(**lines), (1, 3), ROUNDS, near=near)


def test_an_estimate_names_its_latencies() -> None:
    end = counted(EACH)
    end[2]["softirq"][KINDS.index("dirty_far")] = 10
    end[2]["user"][KINDS.index("l2")] = 7
    cpu = window(end)[2]
    assert cpu.found("dirty_far") == 10
    assert cpu.ns("EPYC") == pytest.approx(EACH / 10 / 3 + 10 * 197 + 7 * 4)
    assert cpu.ns("Xeon") == pytest.approx(EACH / 10 / 3 + 10 * 108 + 7 * 5)
    assert {frozenset(each) for each in LATENCIES_NS.values()} == {frozenset(KINDS)}
