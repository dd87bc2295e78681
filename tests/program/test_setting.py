# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of a real (lab) NIC: journaled before they are written, undone, or refused. What may
happen to them besides is in test_setting_refusals.py."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Action, ActionKind
from atfnd.model.reason import Code
from atfnd.program import queue_cpu, setting
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from tests.labs import Lab

__all__: list[str] = []

CPUS = sorted(os.sched_getaffinity(0))
WHY = Code.KERNEL("why")


@pytest.fixture
def undo_journal(tmp_path: Path) -> Iterator[UndoJournal]:
    journal = UndoJournal(tmp_path / "originals.journal")
    yield journal
    journal.close()


def action(lab: Lab, name: str, value: str) -> Action:
    return Action.of_setting(lab.nic.name, name, value, WHY)


def to_cpu(lab: Lab, cpu: int) -> Action:
    return Action(ActionKind.QUEUE_CPU, lab.nic.name, None, None, None, cpu, WHY, "", 2)


def test_settings_are_written_and_undone(lab: Lab, undo_journal: UndoJournal) -> None:
    everywhere = ",".join(map(str, CPUS)) if CPUS != [0, 1] else "0-1"
    lab.nic.write_setting("queue-cpu:2", everywhere)
    before, value = lab.nic.settings(), " ".join(map(str, reversed(lab.nic.rss().table)))
    done = setting.apply(lab.nic, undo_journal, action(lab, "rss", value))
    assert (done.errno, done.left) == (0, "as planned")
    assert queue_cpu.apply(lab.nic, undo_journal, to_cpu(lab, CPUS[1])).errno == 0
    assert (lab.nic.setting("rss"), lab.nic.queues()[2].cpu) == (value, CPUS[1])
    assert undo_journal.held(lab.nic.name) == {
        "rss": OwnedSetting(before["rss"], value),
        "queue-cpu:2": OwnedSetting(everywhere, str(CPUS[1])),
    }
    undone = setting.undo(lab.nic, undo_journal)
    assert {each.setting: each.errno for each in undone} == {"rss": 0, "queue-cpu:2": 0}
    assert lab.nic.settings() == before
    assert undo_journal.nics() == []


def test_a_refused_setting_is_not_ours(lab: Lab, undo_journal: UndoJournal) -> None:
    before = lab.nic.settings()
    done = setting.apply(lab.nic, undo_journal, action(lab, "rss", "0 1 2"))
    assert (done.errno, done.left) == (errno.EINVAL, "rss stays as it is (Invalid argument)")
    assert queue_cpu.apply(lab.nic, undo_journal, to_cpu(lab, 4000)).errno == errno.EINVAL
    unknown = setting.apply(lab.nic, undo_journal, action(lab, "xps-cpus:0", "1"))
    assert unknown.errno == errno.ENOENT
    assert undo_journal.nics() == []
    assert lab.nic.settings() == before
