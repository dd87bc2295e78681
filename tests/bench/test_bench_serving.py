# SPDX-License-Identifier: GPL-2.0-or-later
"""The bench of the API counts events and flows that were really there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import serving

EVENTS = 20  # of which a quantile says something


def test_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    heard: list[int] = []
    dumped = serving.dumped

    def counted(*given: Any) -> tuple[list[int], int]:
        late, got = dumped(*given)
        heard.append(len(late))
        return late, got

    monkeypatch.setattr(serving, "dumped", counted)
    report = serving.run(1, flows=1500, window_s=2.0)
    assert len(heard) == len(serving.CLIENTS)
    assert min(heard) >= EVENTS
    late = {row.contender: row for row in report.rows if row.what == "events late, p99"}
    assert late.keys() == serving.CLIENTS.keys()
    assert all(row.estimate.value > 0 for row in late.values())
    rates = {row.contender: row.estimate.value for row in report.rows if "dumped" in row.what}
    assert rates.pop("nobody asks") == 0
    assert all(rates.values())
    assert [target.what for target in report.targets] == [
        f"events late, p99, {name}" for name in ("one, stream", "one, pages", "eight, stream")
    ]
