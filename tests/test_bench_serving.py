# SPDX-License-Identifier: GPL-2.0-or-later
"""The bench of the API counts events and flows that were really there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import serving


def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    monkeypatch.setattr("bench.plot.FOLDER", tmp_path)
    report = serving.run(1, flows=1500, window_s=0.3)
    late = {row.contender: row for row in report.rows if row.what == "events late, p99"}
    assert late.keys() == serving.CLIENTS.keys()
    assert all(row.estimate.value > 0 for row in late.values())
    dumped = {row.contender: row.estimate.value for row in report.rows if "dumped" in row.what}
    assert dumped.pop("nobody asks") == 0
    assert all(dumped.values())
    assert [target.what for target in report.targets] == [
        f"events late, p99, {name}" for name in ("one, stream", "one, pages", "eight, stream")
    ]
