# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench looks`: what it measures is a table that is steered, and a look that finds no change."""

from __future__ import annotations

from atfnd.model import FlowState
from bench.looks import Looks, run

__all__: list[str] = []


def test_all_flows_have_filters_or_wait() -> None:
    looks = Looks(200, 150)
    looks.look(100)
    states = looks.engine.memory.table.by_state()
    assert states[FlowState.STEERED] == 150
    assert states[FlowState.OVERFLOW] == 50


def test_every_part_of_a_look_is_reported() -> None:
    report = run(6, flows=100)
    assert len(report.rows) == 2 * 3 * 5
    assert all(row.estimate.value >= 0 for row in report.rows)
