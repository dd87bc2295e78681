# SPDX-License-Identifier: GPL-2.0-or-later
"""Fail open: the process that moves a flow may be killed in any state of the move. Traffic flows on
within a second, nothing stays quiesced or attached, and a restart finds what was left."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.program.journals.filter_journal import FilterJournal
from tests.daemon.failing import A, B, Traffic, in_kernel, moves, restarts
from tests.daemons import standing
from tests.wait import until

ADOPTED, ORPHANED = (
    "1 filters taken over, 0 orphans deleted",
    "0 filters taken over, 1 orphans deleted",
)
KILLS = [
    # scene, state and call, queue of the rule that is left, what the restart does
    ("bounded", "arm-gap before evidence", A, ADOPTED),
    ("strict", "hold before hold", A, ADOPTED),
    ("strict", "hold after hold", A, ADOPTED),
    ("strict", "commit before write", A, ADOPTED),
    ("strict", "commit before insert", A, ADOPTED),
    ("strict", "commit after insert", B, ADOPTED),
    ("strict", "commit after write", B, ADOPTED),
    ("strict", "settle before drain_evidence", B, ADOPTED),
    ("strict", "settle before evidence", B, ADOPTED),
    ("strict", "settle after evidence", B, ADOPTED),
    ("strict", "verify before release", B, ADOPTED),
    ("strict", "verify after release", B, ADOPTED),
    ("strict", "verify before evidence", B, ADOPTED),
    ("reset", "release before release", B, ADOPTED),
    ("reset", "release after release", B, ADOPTED),
    ("birth", "commit before claim", None, None),
    ("birth", "commit after claim", None, None),
    ("birth", "commit after insert", B, ADOPTED),
    ("birth", "verify before evidence", B, ADOPTED),
    ("retire", "retire before evidence", A, ORPHANED),
    ("retire", "commit before delete", A, ORPHANED),
    ("retire", "commit after delete", None, None),
]


@pytest.mark.parametrize(("scene", "state", "queue", "adopted"), KILLS)
def test_killed(
    traffic: Traffic, tmp_path: Path, scene: str, state: str, queue: int | None, adopted: str | None
) -> None:
    before, seats = standing(traffic.lab), traffic.seats()
    with moves(traffic, tmp_path, scene, f"kill {state}") as moving:
        moving.killed()
        traffic.flows()
        assert traffic.seats() == seats
        until(lambda: not moving.loaded & in_kernel(), "nothing is attached")
    assert [rule.queue for rule in traffic.filters()] == ([] if queue is None else [queue])
    journal, name = FilterJournal(tmp_path / "run/filters.journal"), traffic.lab.nic.name
    assert journal.ours(name, traffic.filters()) == traffic.filters()
    journal.close()
    assert restarts(traffic, tmp_path) == ([] if adopted is None else [adopted])
    assert standing(traffic.lab) == before
    assert traffic.seats() == seats
