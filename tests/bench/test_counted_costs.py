# SPDX-License-Identifier: GPL-2.0-or-later
"""What is reported of the counted machine's cells, and kept in the tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atfnd.errors import OperatorError
from bench.counted.cells import CONNECTIONS, CONTENDERS, SERVED
from bench.counted.costs import report
from bench.counted.counts import KINDS, LATENCIES_NS, MODES
from bench.counted.kept import CPUS, KEY, Keeping, cells, keep, wanted

__all__: list[str] = []


def window(instructions: float, lines: float) -> dict[str, Any]:
    """Of each mode so many instructions, of each kind so many accesses."""
    return {
        "requests": 700,
        "instructions": dict.fromkeys(MODES, instructions),
        "busiest_instructions": 2 * instructions,
        "daemons_instructions": instructions,
        "lines": dict.fromkeys(KINDS, lines),
        "ns": dict.fromkeys(LATENCIES_NS, 20_000.0),
        "busiest_ns": dict.fromkeys(LATENCIES_NS, 15_000.0),
        "ipis": 0.5,
        "interrupts": 1.0,
        "requests_per_s": 45_000.0,
        "took_us": [*range(1, 701)],
        "read_locality": 0.25,
    }


def measured(load: str = "saturated", **windows: list[dict[str, Any]]) -> dict[str, Any]:
    about = {"server": "redis", "pinned": True, "cpus": CPUS, "connections": CONNECTIONS}
    cells = [{"load": load, "contender": name, "windows": each} for name, each in windows.items()]
    return {**about, "cells": cells}


def kept(path: Path, **commits: str) -> list[dict[str, Any]]:
    for name, commit in commits.items():
        keep(report(measured("saturated", **{name: [window(7000, 2)]})), commit, path)
    return cells(path)


def test_a_cell_is_the_mean_of_its_windows() -> None:
    found = report(measured(rss=[window(7000, 2), window(9000, 4)]))
    [cell] = found.samples["cells"]
    assert cell["instructions_per_request"] == 24_000
    assert cell["spread"] == 0.25
    assert cell["lines_per_request"] == 21  # what L1, L2 and LLC had did not move
    assert cell["lines_by_kind"]["l1"] == 3
    assert cell["estimate_ns"] == {"EPYC": 20_000, "Xeon": 20_000}
    assert (cell["contender"], cell["windows"], cell["requests"]) == ("rss", 2, 1400)
    assert (cell["load"], cell["read_locality"]) == ("saturated", 0.25)


def test_a_p99_is_of_a_thousand_requests() -> None:
    few, many = (report(measured(rss=[window(7000, 2)] * count)) for count in (1, 2))
    assert [each.samples["cells"][0]["p50_us"] for each in (few, many)] == [350.5, 350.5]
    assert [each.samples["cells"][0]["p99_us"] for each in (few, many)] == [None, 693.01]


def test_of_what_has_no_answers_no_time_is_said() -> None:
    silent = {**window(7000, 2), "took_us": [], "read_locality": None}
    [found] = report(measured(rss=[silent])).samples["cells"]
    assert (found["p50_us"], found["p99_us"], found["read_locality"]) == (None, None, None)


def test_other_cells_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    keep(report(measured(rss=[window(7000, 2)], rfs=[window(8000, 2)])), "aaa", path)
    keep(report(measured(rss=[window(9000, 2)])), "bbb", path)
    keep(report(measured("light", rss=[window(9900, 2)])), "bbb", path)
    more = measured(rss=[window(5000, 2)])
    keep(report({**more, "cells": [{**more["cells"][0], "connections": 40}]}), "bbb", path)
    found = [
        (each["load"], each["contender"], each["connections"], each["instructions_per_request"])
        for each in cells(path)
    ]
    assert found == [
        ("saturated", "rss", CONNECTIONS, 27_000),
        ("saturated", "rfs", CONNECTIONS, 24_000),
        ("light", "rss", CONNECTIONS, 29_700),
        ("saturated", "rss", 40, 15_000),
    ]
    assert [each["commit"] for each in cells(path)] == ["bbb", "aaa", "bbb", "bbb"]


def test_a_cell_is_kept_as_soon_as_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    said = Keeping("aaa", path)
    lines = [json.dumps(measured("half", **{name: [window(7000, 2)]})) for name in ("rss", "rfs")]
    text = "\n".join([*lines, json.dumps({"measured": []}), ""]).encode()
    half = len(lines[0]) + 20
    said.write(text[:half])
    assert [each["contender"] for each in cells(path)] == ["rss"]
    said.write(text[half:])
    assert [each["contender"] for each in cells(path)] == ["rss", "rfs"]
    assert said.getvalue() == text


def test_what_was_measured_at_this_commit_is_left_out(tmp_path: Path) -> None:
    there = kept(tmp_path / "machine.json", rss="aaa", rfs="bbb")
    rest = [("saturated", name) for name in CONTENDERS if name != "rss"]
    assert wanted(there, "aaa", "redis", ["saturated"], []).cells == rest
    assert wanted(there, "aaa", "redis", ["saturated"], ["rss"]).cells == [("saturated", "rss")]
    for server, cpus in (("nginx", CPUS), ("redis", 16)):  # these have cells of their own
        found = wanted(there, "aaa", server, ["saturated"], [], cpus=cpus)
        assert (len(found.cells), found.cpus, found.most) == (len(CONTENDERS), cpus, None)
    there = kept(tmp_path / "machine.json", **dict.fromkeys(CONTENDERS, "aaa"))
    with pytest.raises(OperatorError, match="nothing that was not measured at aaa"):
        wanted(there, "aaa", "redis", ["saturated"], [])


@pytest.mark.parametrize(("server", "pinned"), [("redis", False), ("nginx-4", True)])
def test_one_filter_is_for_one_thread_that_stays(server: str, pinned: bool) -> None:
    found = wanted([], "aaa", server, ["saturated"], [], pinned=pinned)
    assert found.cells == [("saturated", name) for name in ("atfnd", "rss", "rfs", "arfs")]


def test_a_load_is_a_share_of_what_rss_answers(tmp_path: Path) -> None:
    there = kept(tmp_path / "machine.json", rss="aaa")
    found = wanted(there, "bbb", "redis", ["half"], ["rfs"])
    assert found == ("redis", True, CPUS, 45_000, [("half", "rfs")])
    with pytest.raises(OperatorError, match="nothing says what RSS answers"):
        wanted(there, "bbb", "nginx", ["half"], [])


def test_the_tree_has_cells() -> None:
    there = cells()
    found: dict[tuple[str, bool, str, int], set[str]] = {}
    for each in there:
        of = (each["server"], each["pinned"], each["load"], each["cpus"])
        found.setdefault(of, set()).add(each["contender"])
    for (server, pinned, load, _), names in found.items():
        asked = wanted([], "aaa", server, ["saturated"], [], pinned=pinned).cells
        whole = {name for _, name in asked}
        assert names <= whole, server
        assert names == whole or load != "saturated", server
    assert {server for server, *_ in found} <= set(SERVED)
    assert len({tuple(each[word] for word in KEY) for each in there}) == len(there)
