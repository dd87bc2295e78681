# SPDX-License-Identifier: GPL-2.0-or-later
"""All our changes go out of a NIC of a running daemon; the answer says what is left."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.daemon.undoing import Undoing
from atfnd.engine.command import actions_of
from atfnd.engine.engine import Engine
from atfnd.engine.event import NicAttached, TakenOut, UndoDue
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, FlowState, Match, Outcome, Plan, Policy, Restored
from atfnd.model.reason import Code
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog
from tests.nic.fake_nic import FakeNic
from tests.values import NIC, RULE, flow, key

__all__: list[str] = []

DISARMED = replace(NIC, armed=False)


class Bed:
    """Two flows with a filter each, and a queue that was moved."""

    def __init__(self, folder: Path) -> None:
        self.nic = FakeNic()
        self.memory = Memory.of(Policy((), (RULE,), "auto", 64, 0, ()))
        self.engine = Engine(self.memory)
        self.engine.handle(NicAttached(DISARMED, armed=False), 0)
        self.journal = FilterJournal(folder / "filters.journal")
        self.undo_journal = UndoJournal(folder / "originals.journal")
        for number in (1, 2):
            match = Match.of(key(number))
            self.journal.claim("nic", match, 2)
            self.journal.locate("nic", match, self.nic.insert(match, 2, None))
            at = self.journal.location("nic", match)
            self.memory.table.put(flow(number, location=at, target_queue=2))
        self.undo_journal.note("nic", "queue-cpu:1", "1")
        self.undo_journal.wrote("nic", "queue-cpu:1", "3")
        self.nic.write_setting("queue-cpu:1", "3")
        self.reported: list[Outcome] = []

    def take_out(self, *, armed: bool = False) -> list[Restored]:
        undoing = Undoing(self.journal, self.undo_journal, EventLog())
        view = replace(DISARMED, armed=armed)
        return undoing.take_out(self.nic, view, Code.KERNEL("why"), self._withdraw, self._report)

    def _withdraw(self) -> Plan:
        [command] = self.engine.handle(UndoDue("nic", Code.KERNEL("why")), 1)
        return actions_of(command)

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        self.reported += outcomes
        self.engine.handle(TakenOut("nic", outcomes), 2)

    def filters(self) -> list[int | None]:
        """Of the two flows, as the table has them."""
        return [each.location for each in sorted(self.memory.table, key=lambda each: each.cookie)]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.journal.close()
    made.undo_journal.close()


def test_all_is_taken_out_and_each_result_is_reported(bed: Bed) -> None:
    done = bed.take_out()
    assert (bed.nic.table, bed.nic.values["queue-cpu:1"]) == ({}, "1")
    assert bed.filters() == [None, None]
    assert [each.errno for each in bed.reported] == [0, 0]
    assert [(each.what, each.errno) for each in done] == [("2 filters", 0), ("queue-cpu:1", 0)]


def test_nothing_is_taken_out_of_an_armed_nic(bed: Bed) -> None:
    with pytest.raises(ValueError, match="nic is armed"):
        bed.take_out(armed=True)
    assert len(bed.nic.table) == 2


def test_a_filter_that_the_kernel_does_not_delete_stays_in_the_table(bed: Bed) -> None:
    bed.nic.refuse("delete", errno.EIO)
    done = bed.take_out()
    [left] = bed.nic.table
    assert sorted(each is None for each in bed.filters()) == [False, True]
    assert left in bed.filters()
    [kept] = [each for each in bed.memory.table if each.location is not None]
    assert (kept.state, bed.memory.table.by_state()[FlowState.OBSERVED]) == (FlowState.STEERED, 1)
    assert [each.errno for each in done if each.what.startswith("filter ")] == [errno.EIO]


def test_a_filter_that_another_program_deleted_leaves_the_table(bed: Bed) -> None:
    """The engine hears of it as of every other."""
    at = bed.journal.location("nic", Match.of(key(1)))
    assert at is not None
    del bed.nic.table[at]
    bed.take_out()
    assert sorted(each.errno for each in bed.reported) == [0, errno.ENOENT]
    assert bed.filters() == [None, None]


def test_no_filter_counts_on_if_the_nic_does_not_list_them(bed: Bed) -> None:
    """They are named in the journal, and found again by it."""
    bed.nic.refuse("filters", errno.EIO)
    done = bed.take_out()
    assert [each.what for each in done if each.errno] == ["filters"]
    assert bed.filters() == [None, None]
    assert len(bed.nic.table) == 2


def test_what_is_not_as_it_was_is_said(bed: Bed) -> None:
    """The kernel says that it deleted a filter, and it did not."""
    bed.nic.delete = lambda location: None  # type: ignore[method-assign]
    done = bed.take_out()
    assert [each.errno for each in done if "still there" in each.left] == [errno.EIO] * 2


def test_a_filter_without_an_entry_is_no_stray_afterwards(bed: Bed) -> None:
    delete = Action(ActionKind.DELETE, "nic", key(9), 9, 2, None, Code.KERNEL("why"), "rest")
    bed.memory.nics["nic"].strays[key(9)] = delete
    bed.take_out()
    assert not bed.memory.nics["nic"].strays
