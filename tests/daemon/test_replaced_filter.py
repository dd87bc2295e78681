# SPDX-License-Identifier: GPL-2.0-or-later
"""Another program deletes a filter of ours and puts one of its own there, before we notice."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Action, ActionKind, Match
from atfnd.model.reason import Code
from atfnd.program.filter import apply
from atfnd.program.journals.filter_journal import FilterJournal
from tests.labs import Lab
from tests.values import key

__all__: list[str] = []

OURS, THEIRS = key(1), Match.of(key(2))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FilterJournal]:
    made = FilterJournal(tmp_path / "filters.journal")
    yield made
    made.close()


def replaced(lab: Lab, journal: FilterJournal) -> int:
    """Where the other program's filter is now."""
    insert = Action(ActionKind.INSERT, lab.nic.name, OURS, None, None, 1, Code.UNSAID(), "")
    location = apply(lab.nic, journal, insert).location
    assert location is not None
    lab.nic.delete(location)
    assert lab.nic.insert(THEIRS, 3, location) == location
    return location


@pytest.mark.parametrize("kind", [ActionKind.DELETE, ActionKind.REWRITE])
def test_his_is_neither_deleted_nor_changed(
    lab: Lab, journal: FilterJournal, kind: ActionKind
) -> None:
    location = replaced(lab, journal)
    new = 2 if kind is ActionKind.REWRITE else None
    outcome = apply(
        lab.nic, journal, Action(kind, lab.nic.name, OURS, location, 1, new, Code.UNSAID(), "")
    )
    (theirs,) = lab.nic.filters()
    assert (theirs.match, theirs.queue, theirs.location) == (THEIRS, 3, location)
    assert outcome.location is None
    if kind is ActionKind.REWRITE:
        assert outcome.errno == errno.ENOENT
        assert "another program" in outcome.left
    assert journal.ours(lab.nic.name, lab.nic.filters()) == []
