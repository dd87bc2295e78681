# SPDX-License-Identifier: GPL-2.0-or-later
"""What is reported of the counted machine's cells, and kept in the tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.counted.cells import CONTENDERS, SERVED
from bench.counted.costs import report
from bench.counted.counts import KINDS, LATENCIES_NS, MODES
from bench.counted.kept import KEY, cells, keep

__all__: list[str] = []


def window(instructions: float, lines: float) -> dict[str, Any]:
    """Of each mode so many instructions, of each kind so many accesses."""
    return {
        "requests": 700,
        "instructions": dict.fromkeys(MODES, instructions),
        "busiest_instructions": 2 * instructions,
        "lines": dict.fromkeys(KINDS, lines),
        "ns": dict.fromkeys(LATENCIES_NS, 20_000.0),
        "busiest_ns": dict.fromkeys(LATENCIES_NS, 15_000.0),
        "ipis": 0.5,
        "interrupts": 1.0,
        "requests_per_s": 45_000.0,
        "p50_us": 300.0,
    }


def measured(**windows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"server": "redis", "cpus": 8, "connections": 16, "windows": windows}


def test_a_cell_is_the_mean_of_its_windows() -> None:
    found = report(measured(rss=[window(7000, 2), window(9000, 4)]))
    [cell] = found.samples["cells"]
    assert cell["instructions_per_request"] == 24_000
    assert cell["spread"] == 0.25
    assert cell["lines_per_request"] == 21  # what L1, L2 and LLC had did not move
    assert cell["lines_by_kind"]["l1"] == 3
    assert cell["estimate_ns"] == {"EPYC": 20_000, "Xeon": 20_000}
    assert (cell["contender"], cell["windows"], cell["requests"]) == ("rss", 2, 1400)


def test_the_table_has_its_contenders_side_by_side() -> None:
    found = report(measured(atfnd=[window(7000, 2)], rss=[window(9000, 4)]))
    first = [(row.what, row.contender, row.estimate.value) for row in found.rows[:2]]
    assert first == [("instructions", "atfnd", 21_000), ("instructions", "rss", 27_000)]


def test_other_cells_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    keep(report(measured(rss=[window(7000, 2)], rfs=[window(8000, 2)])), "aaa", path)
    keep(report(measured(rss=[window(9000, 2)])), "bbb", path)
    cells = {each["contender"]: each for each in json.loads(path.read_text())["cells"]}
    assert [(name, each["commit"]) for name, each in cells.items()] == [
        ("rss", "bbb"),
        ("rfs", "aaa"),
    ]
    assert cells["rss"]["instructions_per_request"] == 27_000


def test_the_tree_has_cells() -> None:
    kept = cells()
    for server in SERVED:
        found = {each["contender"] for each in kept if each["server"] == server}
        assert set(CONTENDERS) <= found, server
    assert len({tuple(each[word] for word in KEY) for each in kept}) == len(kept)
