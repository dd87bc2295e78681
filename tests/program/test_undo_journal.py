# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of original values: survives a kill at any byte, and knows the first value."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.program.journals import record_file
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal

SETTINGS = st.sampled_from(["rss", "queue-cpu:0", "xps-cpus:1"])
VALUES = st.sampled_from(["", "0", "0-3", "0 1 2 3"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["note", "wrote", "confirmed", "forget", "leave_alone"]), SETTINGS, VALUES
    ),
    max_size=20,
)


def done(journal: UndoJournal, model: dict[str, OwnedSetting], step: tuple[str, str, str]) -> None:
    """One step, in the file and in `model`."""
    verb, setting, value = step
    if verb == "note":
        journal.note("nic", setting, value)
        model.setdefault(setting, OwnedSetting(value, None))
    elif verb == "wrote" and setting in model:
        journal.wrote("nic", setting, value)
        original, wrote, _ = model[setting]
        model[setting] = OwnedSetting(original, value, original if wrote is None else wrote)
    elif verb == "confirmed":
        journal.confirmed("nic", setting, value)
        if setting in model:
            model[setting] = OwnedSetting(model[setting].original, value)
    elif verb in ("forget", "leave_alone"):
        (journal.forget if verb == "forget" else journal.leave_alone)("nic", setting)
        model.pop(setting, None)


@given(STEPS, STEPS)
def test_a_restart_knows_the_first_value_and_the_last_write(
    before: list[tuple[str, str, str]], after: list[tuple[str, str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, model = Path(directory) / "originals.journal", dict[str, OwnedSetting]()
        for steps in (before, after):
            journal = UndoJournal(path)
            assert journal.held("nic") == model
            for step in steps:
                done(journal, model, step)
                assert journal.held("nic") == model
            journal.close()
        last = UndoJournal(path)
        assert last.held("nic") == model
        assert last.nics() == (["nic"] if model else [])
        last.close()


def test_whose_a_value_is() -> None:
    """Before our first write it is still the one from before; then ours is the last, or while that
    is not known to be done the one before it."""
    about_to = OwnedSetting("0", None)
    assert [about_to.ours(value) for value in ("0", "1")] == [True, False]
    wrote = OwnedSetting("0", "1", "0")
    assert [wrote.ours(value) for value in ("0", "1", "2")] == [True, True, False]
    done = OwnedSetting("0", "1")
    assert [done.ours(value) for value in ("0", "1")] == [False, True]


def test_a_renamed_interface_keeps_its_undo_journal(tmp_path: Path) -> None:
    path = tmp_path / "originals.journal"
    journal = UndoJournal(path)
    journal.note("eth0", "rss", "0 1")
    journal.wrote("eth0", "rss", "1 1")
    journal.leave_alone("eth0", "xps-cpus:0")
    journal.lives("eth0", "3 8201")
    journal.rename("eth0", "lan0")
    journal.close()
    journal = UndoJournal(path)
    assert journal.nics() == ["lan0"]
    assert journal.held("lan0") == {"rss": OwnedSetting("0 1", "1 1", "0 1")}
    assert journal.manual("lan0") == {"xps-cpus:0"}
    assert journal.life("lan0") == "3 8201"
    journal.close()


@pytest.mark.parametrize("anew", ["in the same run", "in the next run"])
def test_a_life_is_known_also_if_the_file_was_written_anew_before_anything_was_ours(
    tmp_path: Path, anew: str
) -> None:
    """Else a later run takes what another program changed for what the NIC lost by itself."""
    path = tmp_path / "originals.journal"
    journal = UndoJournal(path)
    journal.lives("eth0", "3 8201")
    journal.lives("gone0", "4 8301")
    if anew == "in the same run":
        journal.rename("lan0", "lan1")
    else:
        journal.close()
        journal = UndoJournal(path)
        journal.lives("eth0", "3 8201")
    journal.note("eth0", "xps-cpus:0", "")
    journal.close()
    journal = UndoJournal(path)
    assert journal.life("eth0") == "3 8201"
    assert journal.life("gone0") is None
    journal.close()


def test_what_is_left_alone_stays_so_until_it_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "originals.journal"
    journal = UndoJournal(path)
    journal.note("eth0", "rss", "0 1")
    journal.wrote("eth0", "rss", "1 1")
    journal.leave_alone("eth0", "rss")
    for _ in range(2):  # also written anew
        journal.close()
        journal = UndoJournal(path)
        assert journal.manual("eth0") == {"rss"}
        assert journal.held("eth0") == {}
    journal.take_back("eth0")
    journal.close()
    journal = UndoJournal(path)
    assert journal.manual("eth0") == frozenset()
    journal.close()


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
