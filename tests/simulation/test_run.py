# SPDX-License-Identifier: GPL-2.0-or-later
"""The real moves, writes, journals and undo hold in runs by chance, and faults are found: one of
each kind that a run can report.

A seed that fails here: `python -m tests.simulation SEED` shrinks it and tells its story.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest

from atfnd.model.reason import Code
from atfnd.move import evidence, holding
from atfnd.nic import Nic
from atfnd.program import filter, setting, undo
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from tests.simulation.run import Failure, run
from tests.simulation.schedule import plan
from tests.simulation.shrink import LINES, shrunk, story_of

SOAK = os.environ.get("ATFND_FAULTS_SEED")  # in `make soak`: other seeds, and more
FIRST, SEEDS = (int(SOAK), 12_000) if SOAK else (0, 168)


def _nothing(*_: object, **__: object) -> None:
    return None


def _there(nic: Nic, journal: FilterJournal, location: int, match: object) -> object:
    del journal, match
    return nic.filter(location)


def _one_of_them(self: undo.Undo, why: str, known: Any = ()) -> Any:
    del known
    self._ours = self._ours[:1]
    return REAL_FILTERS(self, Code.KERNEL(why))


def _forgotten(nic: Nic, journal: UndoJournal, only: object = None) -> list[object]:
    for name in [*journal.held(nic.name)]:
        journal.forget(nic.name, name)
    return []


def _zero_is_noted(journal: UndoJournal, nic: str, name: str, value: str) -> None:
    if name not in journal.held(nic):
        journal._ahead("=", nic, name, "0")


class Fault(NamedTuple):
    """A change of the product, and what a run says of it."""

    put: Callable[[], AbstractContextManager[object]]
    what: str


REAL_FILTERS, _object = undo.Undo.filters, mock.patch.object
ONE_IS_LEFT = Fault(partial(_object, undo.Undo, "filters", _one_of_them), "journal")
FAULTS = {
    "a filter is inserted before it is journaled": Fault(
        partial(_object, FilterJournal, "claim", _nothing), "journal"
    ),
    "another queue is not journaled": Fault(
        partial(_object, FilterJournal, "turn", _nothing), "journal"
    ),
    "what was released stays named": Fault(
        partial(_object, FilterJournal, "release", _nothing), "leak"
    ),
    "whatever is at a location is deleted": Fault(
        partial(_object, filter, "_there_still", _there), "foreign filter"
    ),
    "another program's setting is written over": Fault(
        partial(_object, setting, "_moved", lambda held, now: False), "restore"
    ),
    "a setting is forgotten before it is put back": Fault(
        partial(_object, setting, "undo", _forgotten), "restore"
    ),
    "the value before is not what is journaled": Fault(
        partial(_object, UndoJournal, "note", _zero_is_noted), "restore"
    ),
    "any end of a poll proves that a ring is empty": Fault(
        partial(_object, evidence, "began", lambda drain, poll: True), "order"
    ),
    "the new queue is released before the old one drained": Fault(
        partial(
            _object, holding, "settle",
            lambda move, times, now_ns: holding._to_verify(move, times, now_ns),
        ),
        "order",
    ),
}  # fmt: skip


def found_by(fault: Fault, seeds: Iterable[int]) -> Failure | None:
    """The first failure of these seeds with this fault in the product. A seed that fails without
    it, too, finds nothing."""
    for seed in seeds:
        with fault.put():
            failure = _failure(seed)
        if failure is not None and _failure(seed) is None:
            return failure
    return None


def _failure(seed: int) -> Failure | None:
    try:
        run(plan(seed))
    except Failure as failure:
        return failure
    return None


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 12))
def test_everything_holds(first: int) -> None:
    for seed in range(first, first + 12):
        run(plan(seed))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    failure = found_by(FAULTS[name], range(160))
    assert failure is not None
    assert failure.what == FAULTS[name].what


def test_a_failure_is_shrunk_and_reported() -> None:
    failure = found_by(ONE_IS_LEFT, range(50))
    assert failure is not None
    with ONE_IS_LEFT.put():
        short = shrunk(failure)
    assert short.what == failure.what
    assert len(short.plan.steps) <= 4 < len(failure.plan.steps)
    lines = story_of(short).splitlines()
    assert len(lines) <= LINES
    assert f"seed {failure.plan.seed}" in lines[1]
