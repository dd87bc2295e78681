# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's part that keeps settings of the whole machine, with a real journal, the real
executor, and files in the place of /proc/sys/net/core."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon.host_settings import KeptHost
from atfnd.engine import host_settings
from atfnd.engine.engine import Engine
from atfnd.engine.table.memory import RulesInForce
from atfnd.kernel.interrupts import softirq_budget as system
from atfnd.model import Outcome, Restored, SoftirqBudget
from atfnd.program.host_settings import HOST
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.restore import restored
from atfnd.serve.log.event_log import EventLog
from tests.daemon.writers import writer
from tests.engine.standing import like
from tests.replay.test_replay import POLICY
from tests.values import NIC

__all__: list[str] = []

FOUND, OURS = ("300", "8000"), ("2", "20000")


class World:
    """A daemon that serves one NIC, on a machine with these files."""

    def __init__(self, folder: Path) -> None:
        self.core, self.path, self.log = folder / "core", folder / "journal", EventLog()
        self.outcomes: list[Outcome] = []
        self.core.mkdir()
        self.write(*FOUND)
        self.fresh()

    def fresh(self) -> None:
        """A run of the daemon begins."""
        self.journal = UndoJournal(self.path)
        self.sessions: Any = {NIC.name: SimpleNamespace(view=NIC)}
        executor = writer(self.sessions, self.journal, self.log, self.outcomes.append)
        self.engine: Engine = executor._engine
        self.host = KeptHost(executor, self.journal)
        self.policy(SoftirqBudget(2, 20_000))
        self.stands(armed=True)

    def policy(self, budget: SoftirqBudget) -> None:
        policy = replace(POLICY, softirq_budget=budget)
        self.engine.memory.in_force = RulesInForce.of(policy)

    def stands(self, *, armed: bool) -> None:
        view = replace(NIC, armed=armed)
        self.sessions[NIC.name].view = view
        for event in like(view):
            self.engine.handle(event, 0)

    @property
    def files(self) -> tuple[Path, Path]:
        return self.core / "netdev_budget", self.core / "netdev_budget_usecs"

    def write(self, *values: str) -> None:
        for file, value in zip(self.files, values, strict=True):
            file.write_text(f"{value}\n")

    @property
    def now(self) -> tuple[str, ...]:
        return tuple(file.read_text().strip() for file in self.files)

    @property
    def states(self) -> list[str]:
        return [each.state for each in host_settings.shown(self.engine.memory)]

    def restore(self) -> list[Restored]:
        """`atfnd restore`, without a daemon."""
        self.journal.close()
        self.journal = UndoJournal(self.path)
        filters: Any = SimpleNamespace(left={})
        return restored(filters, self.journal)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.log.after(0, 100)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(system, "CORE", tmp_path / "core")
    made = World(tmp_path)
    yield made
    made.journal.close()


def test_it_is_written_once_and_put_back_when_no_nic_is_armed(world: World) -> None:
    for _ in range(2):
        world.host.look()
    assert world.now == OURS
    assert world.states == ["set", "set"]
    assert len(world.outcomes) == 2
    assert world.host.pause() == []  # an armed NIC needs it
    world.stands(armed=False)
    done = world.host.pause()
    assert [each.done for each in done] == [True, True]
    assert {str(each) for each in done} == {
        "netdev-budget is 300 again",
        "netdev-budget-usecs is 8000 again",
    }
    assert world.now == FOUND
    assert world.states == ["wanted", "wanted"]
    assert world.kinds() == ["undo", "undo"]


def test_what_was_before_is_in_the_journal_before_the_first_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[bool] = []

    def write(name: str, value: str) -> None:
        written = world.path.read_text()
        first = f'"=","{HOST}","{name}","{FOUND[len(known)]}"' in written
        known.append(first and f'">","{HOST}","{name}","{value}"' in written)
        system.write_budget(name, value)

    monkeypatch.setattr("atfnd.program.host_settings.write_budget", write)
    world.host.look()
    assert known == [True, True]
    assert world.now == OURS


def test_another_programs_value_stays_until_a_resume_and_after_an_undo(world: World) -> None:
    world.host.look()
    world.files[0].write_text("600")
    for _ in range(2):
        world.host.look()
    assert world.states == ["manual", "set"]
    assert world.kinds() == ["manual"]
    world.host.take_back()
    assert world.now == OURS
    world.files[0].write_text("700")
    assert sorted(each.errno for each in world.restore()) == [0, errno.ESTALE]
    assert world.now == ("700", FOUND[1])


def refuse(name: str, value: str) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def test_a_refusal_is_said_once_and_tried_again_when_it_is_armed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as refusing:
        refusing.setattr("atfnd.program.host_settings.write_budget", refuse)
        for _ in range(3):
            world.host.look()
    assert [each.errno for each in world.outcomes] == [errno.EINVAL] * 2
    assert world.states == ["refused", "refused"]
    assert world.journal.held(HOST) == {}
    world.host.look()
    assert world.now == FOUND
    world.host.arm()
    assert world.now == OURS
    assert world.states == ["set", "set"]


def test_what_the_kernel_does_not_put_back_is_reported_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.host.look()
    world.stands(armed=False)
    with monkeypatch.context() as refusing:
        refusing.setattr("atfnd.program.host_settings.write_budget", refuse)
        assert [each.done for each in world.host.pause()] == [False, False]
    assert world.states == ["refused", "refused"]
    assert [each.done for each in world.host.pause()] == [True, True]
    assert world.now == FOUND


def test_where_the_kernel_does_not_show_it_nothing_is_written(world: World) -> None:
    for file in world.files:
        file.unlink()
    world.host.look()
    assert world.states == ["unknown", "unknown"]
    assert not any(file.exists() for file in world.files)
    with pytest.raises(KeyError):
        system.write_budget("netdev-budget", "2")
    assert world.outcomes == []
