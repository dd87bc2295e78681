# SPDX-License-Identifier: GPL-2.0-or-later
"""The real moves, writes, journals and undo hold in runs by chance, and planted faults are found.

A seed that fails here: `python -m tests.simulation SEED` shrinks it and tells its story.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.planted import PLANTED, found_by
from tests.simulation.run import run
from tests.simulation.schedule import plan
from tests.simulation.shrink import LINES, shrunk, story_of

SOAK = os.environ.get("ATFND_FAULTS_SEED")  # in `make soak`: other seeds, and more
FIRST, SEEDS = (int(SOAK), 12_000) if SOAK else (0, 168)
# What else takes more seeds than a quick test has (`python -m tests.simulation.planted`).
SOON = {
    "a filter is inserted before it is journaled": "journal",
    "another queue is not journaled": "journal",
    "what was released stays named": "leak",
    "whatever is at a location is deleted": "foreign filter",
    "a restore deletes one filter": "journal",
    "another program's setting is written over": "restore",
    "a setting is forgotten before it is put back": "restore",
    "the value before is not what is journaled": "restore",
    "any end of a poll proves that a ring is empty": "order",
    "the new queue is released before the old one drained": "order",
}


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 12))
def test_everything_holds(first: int) -> None:
    for seed in range(first, first + 12):
        run(plan(seed))


@pytest.mark.parametrize("name", SOON)
def test_a_planted_fault_is_found(name: str) -> None:
    failure = found_by(PLANTED[name], range(160))
    assert failure is not None
    assert failure.what == SOON[name]


def test_a_failure_is_shrunk_and_reported() -> None:
    fault = PLANTED["a restore deletes one filter"]
    failure = found_by(fault, range(50))
    assert failure is not None
    with fault():
        short = shrunk(failure)
    assert short.what == failure.what
    assert len(short.plan.steps) <= 4 < len(failure.plan.steps)
    lines = story_of(short).splitlines()
    assert len(lines) <= LINES
    assert f"seed {failure.plan.seed}" in lines[1]
