# SPDX-License-Identifier: GPL-2.0-or-later
"""The whole daemon holds in runs by chance, and faults are found: one of each kind that a run can
report.

A seed that fails here: `python -m tests.simulation SEED` shrinks it and tells its story.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest

from atfnd.model.reason import Code
from atfnd.move import evidence, holding
from atfnd.nic import Nic
from atfnd.program import setting, undo
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from tests.simulation.run import Failure, run
from tests.simulation.schedule import Step, plan
from tests.simulation.shrink import LINES, shrunk, story_of

SOAK = os.environ.get("ATFND_FAULTS_SEED")  # in `make soak`: other seeds, and more
FIRST, SEEDS = (int(SOAK), 2000) if SOAK else (0, 80)


def _nothing(*_: object, **__: object) -> None:
    return None


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
    """A change of the product, and what the run of a seed says of it."""

    put: Callable[[], AbstractContextManager[object]]
    what: str
    seed: int


REAL_FILTERS, _object = undo.Undo.filters, mock.patch.object
ONE_IS_LEFT = Fault(partial(_object, undo.Undo, "filters", _one_of_them), "restore", 1)
FAULTS = {
    "a filter is inserted before it is journaled": Fault(
        partial(_object, FilterJournal, "claim", _nothing), "journal", 0
    ),
    "another queue is not journaled": Fault(
        partial(_object, FilterJournal, "turn", _nothing), "journal", 1
    ),
    "what was released stays named": Fault(
        partial(_object, FilterJournal, "release", _nothing), "agree", 0
    ),
    "another program's setting is written over": Fault(
        partial(_object, setting, "_moved", lambda held, now: False), "foreign setting", 9
    ),
    "a setting is forgotten before it is put back": Fault(
        partial(_object, setting, "undo", _forgotten), "restore", 0
    ),
    "the value before is not what is journaled": Fault(
        partial(_object, UndoJournal, "note", _zero_is_noted), "restore", 0
    ),
    "any end of a poll proves that a ring is empty": Fault(
        partial(_object, evidence, "began", lambda drain, poll: True), "order", 21
    ),
    "the new queue is released before the old one drained": Fault(
        partial(
            _object, holding, "settle",
            lambda move, times, now_ns: holding._to_verify(move, times, now_ns),
        ),
        "order", 0,
    ),
}  # fmt: skip


def found(fault: Fault) -> Failure:
    """Without it, this seed holds (`test_everything_holds`)."""
    with fault.put(), pytest.raises(Failure) as failure:
        run(plan(fault.seed))
    assert failure.value.what == fault.what
    return failure.value


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 10))
def test_everything_holds(first: int) -> None:
    for seed in range(first, first + 10):
        run(plan(seed))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    found(FAULTS[name])


def test_a_failure_is_shrunk_and_reported() -> None:
    failure = found(ONE_IS_LEFT)
    with ONE_IS_LEFT.put():
        short = shrunk(failure)
    assert short.what == failure.what
    assert len(short.plan.steps) <= 4 < len(failure.plan.steps)
    lines = story_of(short).splitlines()
    assert len(lines) <= LINES
    assert f"seed {failure.plan.seed}" in lines[1]


@pytest.mark.parametrize("verb", ["pause", "restore"])
def test_an_order_for_a_nic_that_has_just_gone(verb: str) -> None:
    drawn = plan(2)
    began, gone_ns = drawn.steps[0], drawn.steps[len(drawn.steps) // 2].at_ns
    what = (*drawn.steps[1:9], Step(gone_ns, "unplug", (1,)), Step(gone_ns, verb, (1,)))
    run(drawn._replace(steps=(began, *what)))


@pytest.mark.parametrize("then", [("stop",), ("disk full", "end", "disk has room")])
def test_late_news_of_a_name_comes_before_an_end(then: tuple[str, ...]) -> None:
    drawn = plan(2001094)
    at, renamed = next((n, each) for n, each in enumerate(drawn.steps) if each.verb == "rename")
    soon = (Step(renamed.at_ns + 1_000_000, verb, (0,)) for verb in then)
    begins = Step(renamed.at_ns + 200_000_000, "begin", ())
    run(drawn._replace(steps=(*drawn.steps[: at + 1], *soon, begins)))


def test_a_count_that_was_refused_is_tried_again_as_soon_as_one_that_rests() -> None:
    drawn = plan(8001915)
    refused = Step(drawn.steps[-1].at_ns - 20_000_000_000, "refuse count", (0, 0))
    kept = "begin", "shift", "admin places", "reload", "batch begins", "batch ends"
    steps = sorted((*(each for each in drawn.steps if each.verb in kept), refused))
    run(drawn._replace(steps=tuple(steps)))
