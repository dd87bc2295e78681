# SPDX-License-Identifier: GPL-2.0-or-later
"""What is reported of the papers' rows that were counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import plot
from bench.counted import pairs
from bench.counted.costs import report
from bench.counted.kept import cells, keep
from tests.bench.test_counted_costs import window

__all__: list[str] = []

ABOUT = {"server": "redis-set", "pinned": True, "cpus": 8}


def cell(contender: str, connections: int, instructions: float) -> dict[str, Any]:
    windows = [window(instructions, 2)]
    return {
        "load": "saturated", "contender": contender, "connections": connections, "windows": windows
    }  # fmt: skip


def test_the_servers_cpu_is_across(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plot, "heat", lambda name, *rest: drawn.setdefault(name, rest))
    found = [cell(f"{n} to {app}", 16, 10 * n + app) for app in (1, 5) for n in (1, 5)]
    pairs.matrix_report({**ABOUT, "cells": found})
    _, axes, cpus, values = drawn["counted-pairs-instructions"]
    assert (axes[0], cpus) == ("the server's CPU", ["1", "5"])
    assert values == [[33, 45], [153, 165]]  # of three modes
    assert len(drawn) == 4


def test_cells_have_connections_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "papers.json"
    found = [cell("rss, 40", 40, 7000), cell("rss, 200", 200, 8000)]
    keep(report({**ABOUT, "cells": found}), "aaa", path)
    kept = {each["connections"]: each["instructions_per_request"] for each in cells(path)}
    assert kept == {40: 21_000, 200: 24_000}


def test_of_what_has_no_answers_no_time_is_said() -> None:
    silent = {**window(7000, 2), "took_us": []}
    del silent["read_locality"]
    each = {**cell("II", 32, 0), "windows": [silent]}
    [found] = report({**ABOUT, "cells": [each]}).samples["cells"]
    assert (found["p50_us"], found["p99_us"], found["read_locality"]) == (None, None, None)
