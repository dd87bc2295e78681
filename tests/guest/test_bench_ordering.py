# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench ordering-simnic`, tiny: every way is made in the guest, and ends as it says. How often
moves reorder, and what they take, is not asked for here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench import ordering, ordering_report, plot
from bench.ordering_pace import SIMNIC
from bench.ordering_report import Run
from bench.sim_bed import threaded_bed
from tests.wait import EMULATED

pytestmark = pytest.mark.usefixtures("own_affinity")

MOVES = 10
FLOW_ENTRIES = Path("/proc/sys/net/core/rps_sock_flow_entries")
FEW = SIMNIC._replace(
    counts=(16,),
    ways=tuple(
        way._replace(moves=min(way.moves, MOVES), limit_s=30 * EMULATED) for way in SIMNIC.ways
    ),
)


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """By way."""
    before = FLOW_ENTRIES.read_text()
    measured = json.loads(json.dumps(ordering.measure(1, threaded_bed, FEW)))
    assert FLOW_ENTRIES.read_text() == before
    assert not os.path.exists("/sys/class/net/sim0")
    assert not os.path.exists("/run/netns/peer")
    return {run.way: run for run in (Run(*each) for each in measured["runs"])}


def test_every_way_moves_what_it_was_asked_to(runs: dict[str, Run]) -> None:
    assert all(run.received > 0 for run in runs.values())
    assert runs["none"].moves == runs["none"].late == 0
    for way in ("immediate", "bounded", "gap", "strict"):
        assert runs[way].moves == MOVES, runs[way]
        assert runs[way].writes >= MOVES
    for way in ("follow", "rfs", "arfs"):
        assert runs[way].queue_moves == MOVES, runs[way]


def test_no_move_called_proven_reorders(runs: dict[str, Run]) -> None:
    for way in ("strict", "bounded", "follow"):
        assert runs[way].reordered.get("proven", 0) == 0, runs[way]
    assert runs["strict"].verdicts["proven"] > 0


def test_the_kernel_steers_by_filters_of_its_own(runs: dict[str, Run]) -> None:
    assert runs["arfs"].kernel_filters > 0
    assert runs["arfs"].writes == 0
    assert runs["rfs"].kernel_filters == 0


def test_it_is_reported(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "bars", lambda *_, **__: None)  # drawn on the host
    report = ordering_report.report(runs.values(), emulated=True)
    assert all(target.met for target in report.targets)
    assert any(row.contender == "arfs" for row in report.rows)
