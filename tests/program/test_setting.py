# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of a real (lab) NIC: journaled before they are written, undone, and left when
drifted."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Action, ActionKind
from atfnd.model.reason import Code
from atfnd.nic.lab.nic import LabNic
from atfnd.program import queue_cpu, setting
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from tests.labs import Lab

__all__: list[str] = []

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def undo_journal(tmp_path: Path) -> Iterator[UndoJournal]:
    journal = UndoJournal(tmp_path / "originals.journal")
    yield journal
    journal.close()


def action(lab: Lab, name: str, value: str) -> Action:
    return Action.of_setting(lab.nic.name, name, value, Code.KERNEL("why"))


def reversed_table(lab: Lab) -> str:
    return " ".join(map(str, reversed(lab.nic.rss().table)))


def test_a_setting_is_written_and_undone(lab: Lab, undo_journal: UndoJournal) -> None:
    before, value = lab.nic.settings(), reversed_table(lab)
    done = setting.apply(lab.nic, undo_journal, action(lab, "rss", value))
    assert (done.errno, done.left) == (0, "as planned")
    assert lab.nic.setting("rss") == value
    assert undo_journal.held(lab.nic.name) == {"rss": OwnedSetting(before["rss"], value)}
    ((name, code, left),) = setting.undo(lab.nic, undo_journal)
    assert (name, code) == ("rss", 0)
    assert left.endswith("again")
    assert lab.nic.settings() == before
    assert undo_journal.nics() == []


def test_a_queues_cpu_is_a_setting(lab: Lab, undo_journal: UndoJournal) -> None:
    everywhere = ",".join(map(str, CPUS)) if CPUS != [0, 1] else "0-1"
    lab.nic.write_setting("queue-cpu:2", everywhere)
    move = Action(
        ActionKind.QUEUE_CPU, lab.nic.name, None, None, None, CPUS[1], Code.KERNEL("why"), "", 2
    )
    assert queue_cpu.apply(lab.nic, undo_journal, move).errno == 0
    assert lab.nic.queues()[2].cpu == CPUS[1]
    assert undo_journal.held(lab.nic.name)["queue-cpu:2"].wrote == str(CPUS[1])
    assert [done.errno for done in setting.undo(lab.nic, undo_journal)] == [0]
    assert lab.nic.setting("queue-cpu:2") == everywhere


def test_a_refused_setting_is_not_ours(lab: Lab, undo_journal: UndoJournal) -> None:
    before = lab.nic.settings()
    done = setting.apply(lab.nic, undo_journal, action(lab, "rss", "0 1 2"))
    assert done.errno == errno.EINVAL
    assert done.left == "rss stays as it is (Invalid argument)"
    move = Action(
        ActionKind.QUEUE_CPU, lab.nic.name, None, None, None, 4000, Code.KERNEL("why"), "", 2
    )
    assert queue_cpu.apply(lab.nic, undo_journal, move).errno == errno.EINVAL
    assert (
        setting.apply(lab.nic, undo_journal, action(lab, "xps-cpus:0", "1")).errno == errno.ENOENT
    )
    assert undo_journal.nics() == []
    assert lab.nic.settings() == before


def test_what_somebody_else_moved_is_neither_written_nor_undone(
    lab: Lab, undo_journal: UndoJournal
) -> None:
    first = lab.nic.settings()["rss"]
    setting.apply(lab.nic, undo_journal, action(lab, "rss", reversed_table(lab)))
    assert setting.drifted(lab.nic.name, lab.nic.settings(), undo_journal) == {}
    theirs = " ".join(["1"] * len(lab.nic.rss().table))
    lab.nic.write_setting("rss", theirs)
    assert setting.drifted(lab.nic.name, lab.nic.settings(), undo_journal) == {"rss": theirs}
    done = setting.apply(lab.nic, undo_journal, action(lab, "rss", first))
    assert done.errno == errno.ESTALE
    ((_, code, left),) = setting.undo(lab.nic, undo_journal)
    assert code == errno.ESTALE
    assert "another program set it" in left
    assert (lab.nic.setting("rss"), undo_journal.nics()) == (theirs, [])


class Dies(LabNic):
    """A fake for what cannot be had to order: the daemon is killed at a given call."""

    before_write = False

    def write_setting(self, name: str, value: str) -> None:
        if self.before_write:
            raise KeyboardInterrupt
        super().write_setting(name, value)
        raise KeyboardInterrupt


@pytest.mark.parametrize("before_write", [True, False])
@pytest.mark.parametrize("written_before", [True, False])
def test_killed_around_a_write_the_next_run_puts_it_right(
    lab: Lab, tmp_path: Path, before_write: bool, written_before: bool
) -> None:
    before, value = lab.nic.settings(), reversed_table(lab)
    dying = Dies(lab.name)
    dying.before_write = before_write
    path = tmp_path / "originals.journal"
    if written_before:
        ones = " ".join(["1"] * len(lab.nic.rss().table))
        first = UndoJournal(path)
        assert setting.apply(lab.nic, first, action(lab, "rss", ones)).errno == 0
        first.close()
    with pytest.raises(KeyboardInterrupt):
        setting.apply(dying, UndoJournal(path), action(lab, "rss", value))
    dying.close()
    assert (lab.nic.setting("rss") == value) is not before_write
    later = UndoJournal(path)
    assert setting.drifted(lab.nic.name, lab.nic.settings(), later) == {}
    assert [done.errno for done in setting.undo(lab.nic, later)] == [0]
    assert lab.nic.settings() == before
    assert later.nics() == []
    later.close()
