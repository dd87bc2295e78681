# SPDX-License-Identifier: GPL-2.0-or-later
"""The moves of a NIC write nothing that the executor's last look holds back: no move, and no write
that only measures."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon import moving
from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.event import Wanted
from atfnd.move.verdict import Mode
from atfnd.program.actuator import Trial, trial
from atfnd.program.blind_actuator import BlindActuator
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from tests.move.test_move_mover import LIKELY
from tests.nic.fake_nic import FakeNic
from tests.values import NIC, key

__all__: list[str] = []

INSERT = Action(ActionKind.INSERT, "nic", key(1), None, None, 2, Code.KERNEL("why"), "rest")


class Measured(BlindActuator):
    """One whose writes are measured, and that cannot see packets."""

    def __init__(
        self, nic: FakeNic, journal: FilterJournal, undo_journal: UndoJournal, *_: object
    ) -> None:
        super().__init__(nic, journal, undo_journal, "")

    def trial(self, nic: str) -> Trial:
        return trial(nic)


class Bed:
    """The real moves of a NIC in memory."""

    def __init__(self, journal: FilterJournal, undo_journal: UndoJournal) -> None:
        self.nic, self.looked = FakeNic(), list[Action]()
        self.held_back = False
        self._journals = journal, undo_journal

    def made(self) -> moving.Moving:
        """On a running loop."""
        watch: Any = SimpleNamespace(facts=NIC, nic=self.nic, lives=0)
        policy: Any = SimpleNamespace(hold_down_ns=0, moves_per_s=1000, interfaces=())
        nobody: Any = lambda given: None  # noqa: E731
        return moving.Moving(watch, *self._journals, self._last_look, nobody, policy, nobody)

    def _last_look(self, action: Action) -> Outcome | None:
        self.looked.append(action)
        return Outcome(action, 1, errno.EPERM, None, "held back") if self.held_back else None


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(moving, "NicActuator", Measured)
    monkeypatch.setattr(moving, "read_port", lambda *_, **__: LIKELY)
    monkeypatch.setattr(FakeNic, "interface", None)
    with (
        closing(FilterJournal(tmp_path / "rules")) as journal,
        closing(UndoJournal(tmp_path / "originals")) as undo_journal,
    ):
        yield Bed(journal, undo_journal)


@pytest.mark.parametrize("held_back", [False, True])
def test_a_move(bed: Bed, *, held_back: bool) -> None:
    bed.held_back = held_back

    async def move() -> list[Outcome | Ended]:
        with closing(bed.made()) as moves:
            return list(moves.want([Wanted(INSERT, Mode.IMMEDIATE)]))

    [outcome] = [each for each in asyncio.run(move()) if isinstance(each, Outcome)]
    assert bed.looked == [INSERT]
    assert outcome.errno == (errno.EPERM if held_back else 0)
    assert len(bed.nic.table) == (not held_back)


@pytest.mark.parametrize("held_back", [False, True])
def test_a_write_that_measures(bed: Bed, *, held_back: bool) -> None:
    bed.held_back = held_back

    async def know() -> None:
        with closing(bed.made()) as moves:
            moves.know(measure=True)

    asyncio.run(know())
    kinds = [action.kind for action in bed.looked]
    assert kinds == (
        [ActionKind.INSERT] if held_back else [ActionKind.INSERT, ActionKind.DELETE] * 4
    )
    assert bool(bed.nic.calls) is not held_back
    assert bed.nic.table == {}


@pytest.mark.parametrize(("now", "manual"), [("1 102", []), ("1 101", ["threaded:0"])])
def test_what_a_nic_lost_by_itself_no_other_program_took_back(
    bed: Bed, now: str, manual: list[str]
) -> None:
    """It has come up anew, without the thread that was borrowed."""
    loan = replace(
        Action.of_setting("nic", "threaded:0", "1", Code.KERNEL("a hold needs them")), loan=True
    )
    _, undo_journal = bed._journals
    read: list[object] = []  # anew

    async def write() -> Outcome:
        with closing(bed.made()) as moves:
            watch: Any = moves._watch
            watch.threads_changed, watch.life = lambda: None, lambda: now
            watch.read_settings = lambda: read.append("settings")
            undo_journal.lives("nic", "1 101")
            assert moves._write(loan).errno == 0
            bed.nic.values["threaded:0"] = "0"
            moves._read_s = inf
            done = moves._write(replace(loan, value="0"))
            read.append(moves._read_s)
            return done

    bed.nic.values["threaded:0"] = "0"
    assert bool(asyncio.run(write()).errno) is bool(manual)
    assert sorted(undo_journal.manual("nic")) == manual
    assert read == (["settings", -inf] if manual else [inf])
    assert undo_journal.held("nic") == {}


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EBUSY, errno.ENODEV])
def test_threads_are_borrowed_where_the_nic_cannot_be_read_afterwards(bed: Bed, code: int) -> None:
    """Nothing ends by that. Only a NIC that has gone is raised, as anywhere else."""
    borrow = replace(
        Action.of_setting("nic", "threaded", "1", Code.KERNEL("a hold needs them")), loan=True
    )

    def unreadable() -> None:
        raise OSError(code, os.strerror(code))

    async def write() -> Outcome:
        with closing(bed.made()) as moves:
            moves._watch.threads_changed = unreadable  # type: ignore[method-assign]
            return moves._write(borrow)

    bed.nic.values["threaded"] = "0"
    if code == errno.ENODEV:
        with pytest.raises(OSError, match="device"):
            asyncio.run(write())
    else:
        assert asyncio.run(write()).errno == 0
