# SPDX-License-Identifier: GPL-2.0-or-later
"""An undo reads the NIC afterwards and says what is not as it was before atfnd."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Match, Restored
from atfnd.model.reason import Code
from atfnd.program import restore, setting
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.undo import Undo
from tests.nic.fake_nic import FakeNic
from tests.values import key

OURS, THEIRS = Match.of(key(1)), Match.of(key(9))


class Bed:
    """A NIC with a filter of ours at 7, one of another program's at 3, and a queue that we moved
    from CPU 1 to 3."""

    def __init__(self, folder: Path) -> None:
        self.nic = FakeNic()
        self.journal = FilterJournal(folder / "filters.journal")
        self.undo_journal = UndoJournal(folder / "originals.journal")
        self.journal.claim("nic", OURS, 2)
        self.journal.locate("nic", OURS, 7)
        self.nic.put(7, OURS, 2)
        self.nic.put(3, THEIRS, 0)
        self.undo_journal.note("nic", "queue-cpu:1", "1")
        self.undo_journal.wrote("nic", "queue-cpu:1", "3")
        self.nic.write_setting("queue-cpu:1", "3")

    def undone(self) -> list[Restored]:
        """What differs after an undo of all."""
        undo = Undo(self.nic, self.journal, self.undo_journal)
        undo.filters(Code.KERNEL("why"))
        return undo.differences(setting.undo(self.nic, self.undo_journal))

    def close(self) -> None:
        self.journal.close()
        self.undo_journal.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.close()


def test_after_an_undo_nothing_differs(bed: Bed) -> None:
    assert bed.undone() == []
    assert (list(bed.nic.table), bed.nic.values["queue-cpu:1"]) == ([3], "1")
    assert not bed.journal.names("nic")


def test_a_filter_that_is_still_there_is_named_for_the_next_undo(bed: Bed) -> None:
    """The kernel says that it deleted it, and it did not."""
    bed.nic.delete = lambda location: None  # type: ignore[method-assign]
    [left] = bed.undone()
    assert (left.what, left.errno) == ("filter 7", errno.EIO)
    assert bed.journal.location("nic", OURS) == 7
    del bed.nic.delete
    assert bed.undone() == []
    assert list(bed.nic.table) == [3]


def test_a_filter_of_another_program_that_went_with_ours_is_said(bed: Bed) -> None:
    """A driver that deletes more than it was asked to."""
    bed.nic.delete = lambda location: bed.nic.table.clear()  # type: ignore[method-assign]
    [gone] = bed.undone()
    assert (gone.what, gone.errno) == ("filter 3", errno.EIO)
    assert "of another program" in gone.left


def test_a_setting_that_did_not_stay_as_it_was_is_said(bed: Bed) -> None:
    """A driver that changes another one along with it: both were put back, and one is wrong."""
    bed.undo_journal.note("nic", "queue-cpu:2", "2")
    bed.undo_journal.wrote("nic", "queue-cpu:2", "0")
    bed.nic.write_setting("queue-cpu:2", "0")
    write = bed.nic.write_setting

    def both(name: str, value: str) -> None:
        write(name, value)
        if name == "queue-cpu:1":
            write("queue-cpu:2", "3")

    bed.nic.write_setting = both  # type: ignore[method-assign]
    [moved] = bed.undone()
    assert (moved.what, moved.errno) == ("queue-cpu:2", errno.EIO)
    assert moved.left == "is 3 and not 2, as it was"


def test_filters_that_the_kernel_does_not_list_are_said_to_be_left(bed: Bed) -> None:
    bed.nic.refuse("filters", errno.EIO)
    [left] = [each for each in bed.undone() if each.what == "filters"]
    assert left.errno == errno.EIO
    assert 7 in bed.nic.table


def test_a_nic_that_goes_meanwhile_keeps_no_other_from_being_restored(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = FakeNic("gone")
    gone.refuse("filters", errno.ENODEV)
    bed.journal.claim("gone", OURS, 2)
    monkeypatch.setattr(restore, "open_nic", {"gone": gone, "nic": bed.nic}.__getitem__)
    done = restore.restored(bed.journal, bed.undo_journal)
    assert {each.nic: each.errno for each in done} == {"gone": errno.ENODEV, "nic": 0}
    assert list(bed.nic.table) == [3]


def test_a_filter_that_another_program_moved_since_is_left_to_it(bed: Bed) -> None:
    """It was ours, and an undo could not delete it."""
    delete = bed.nic.delete
    bed.nic.delete = lambda location: None  # type: ignore[method-assign]
    bed.undone()
    bed.nic.delete = delete  # type: ignore[method-assign]
    bed.nic.put(7, OURS, 0)
    assert bed.undone() == []
    assert list(bed.nic.table) == [7, 3]
