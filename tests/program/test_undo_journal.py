# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of original values: survives a kill at any byte, and knows the first value."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import closing
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.program.journals import record_file
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal

VERBS = "note", "wrote", "confirmed", "forget", "leave_alone", "take_back", "lives", "rename"
SETTINGS, VALUES = ("rss", "queue-cpu:0", "xps-cpus:1"), ("", "0", "0-3", "0 1 2 3")
Step = tuple[str, str, str]
STEPS = st.lists(st.tuples(*map(st.sampled_from, (VERBS, SETTINGS, VALUES))), max_size=20)


class Model:
    """What a journal knows of the one NIC that there is, by whatever name."""

    def __init__(self) -> None:
        self.name, self.life = "eth0", cast("str | None", None)
        self.held, self.manual = dict[str, OwnedSetting](), set[str]()

    def do(self, journal: UndoJournal, verb: str, setting: str, value: str) -> None:
        """One step, here and in the file."""
        held = self.held.get(setting)
        if verb == "rename":
            new = "lan0" if self.name == "eth0" else "eth0"
            journal.rename(self.name, new)
            self.name = new
        elif verb == "lives":
            self.life = f"3 {value}"
            journal.lives(self.name, self.life)
        elif verb == "take_back":
            journal.take_back(self.name)
            self.manual.clear()
        elif verb in ("forget", "leave_alone"):
            (journal.forget if verb == "forget" else journal.leave_alone)(self.name, setting)
            self.held.pop(setting, None)
            (self.manual.add if verb == "leave_alone" else self.manual.discard)(setting)
        elif verb == "note":
            journal.note(self.name, setting, value)
            if held is None:
                self.held[setting] = OwnedSetting(value, None)
                self.manual.discard(setting)
        elif held is not None:
            (journal.wrote if verb == "wrote" else journal.confirmed)(self.name, setting, value)
            earlier = held.original if held.wrote is None else held.wrote
            last = earlier if verb == "wrote" else None
            self.held[setting] = OwnedSetting(held.original, value, last)

    def check(self, journal: UndoJournal) -> None:
        assert journal.held(self.name) == self.held
        assert {*journal.manual(self.name)} == self.manual
        assert journal.life(self.name) == self.life
        assert journal.nics() == ([self.name] if self.held else [])


@given(st.lists(STEPS, max_size=3))
def test_a_restart_knows_what_the_last_run_did(runs: list[list[Step]]) -> None:
    """A life is known as long as something is ours, or left alone."""
    with tempfile.TemporaryDirectory() as directory:
        path, model = Path(directory) / "originals.journal", Model()
        for steps in (*runs, []):
            with closing(UndoJournal(path)) as journal:
                model.check(journal)
                for step in steps:
                    model.do(journal, *step)
                    model.check(journal)
            if not model.held and not model.manual:
                model.life = None


def test_whose_a_value_is() -> None:
    """Before our first write it is still the one from before; then ours is the last, or while that
    is not known to be done the one before it."""
    about_to = OwnedSetting("0", None)
    assert [about_to.ours(value) for value in ("0", "1")] == [True, False]
    wrote = OwnedSetting("0", "1", "0")
    assert [wrote.ours(value) for value in ("0", "1", "2")] == [True, True, False]
    done = OwnedSetting("0", "1")
    assert [done.ours(value) for value in ("0", "1")] == [False, True]


def test_the_original_is_on_the_disk_before_the_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written later does not wait for the disk: a killed daemon's writes are not lost."""
    journal, synced = UndoJournal(tmp_path / "originals.journal"), list[str]()
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}"))
    )
    journal.note("nic", "queue-cpu:0", "0-3")
    journal.wrote("nic", "queue-cpu:0", "1")
    assert synced == [str(tmp_path / "originals.journal")] * 2
    journal.confirmed("nic", "queue-cpu:0", "1")
    journal.wrote("nic", "queue-cpu:0", "2")
    assert len(synced) == 2
    journal.close()
    again = UndoJournal(tmp_path / "originals.journal")
    assert again.held("nic") == {"queue-cpu:0": OwnedSetting("0-3", "2", "1")}
    again.close()


def test_what_a_full_disk_refused_to_note_comes_before_the_next_record(tmp_path: Path) -> None:
    """Else the next run would take a value that another program replaced for the original."""
    journal = UndoJournal(tmp_path / "originals.journal")
    journal.note("nic", "rss", "0")
    journal.wrote("nic", "rss", "1")
    with mock.patch.object(record_file, "_write_whole", side_effect=OSError(errno.ENOSPC, "")):
        journal.leave_alone("nic", "rss")
        with pytest.raises(Unrecorded):
            journal.note("nic", "rss", "theirs")
    journal.take_back("nic")
    journal.note("nic", "rss", "theirs")
    journal.close()
    again = UndoJournal(tmp_path / "originals.journal")
    assert again.held("nic") == {"rss": OwnedSetting("theirs", None)}
    again.close()
