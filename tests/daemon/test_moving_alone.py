# SPDX-License-Identifier: GPL-2.0-or-later
"""The moves of a NIC without a NIC: what the machine hears, and whose a borrowed thread is.
tests/simulation has the rest."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon import moving
from atfnd.model import Action, ActionKind
from atfnd.model.reason import Code
from atfnd.move.event import Event, FlowClosed, PortChanged, Reset, Wanted
from atfnd.move.verdict import Mode
from atfnd.program.actuator import Trial, trial
from atfnd.program.blind_actuator import BlindActuator
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from tests.move.test_move_mover import LIKELY
from tests.nic.fake_nic import FakeNic
from tests.values import NIC, key

INSERT = Action(ActionKind.INSERT, "nic", key(1), None, None, 2, Code.KERNEL("why"), "rest")
DELETE = Action(
    ActionKind.DELETE, "nic", key(1), 7, 2, None, Code.KERNEL("why"), "rest", live=False
)


def nothing(_: object) -> None:
    """What is said is not heard."""


class Measured(BlindActuator):
    """One whose writes are measured, and that cannot see packets."""

    def __init__(
        self, nic: FakeNic, journal: FilterJournal, undo_journal: UndoJournal, *_: object
    ) -> None:
        super().__init__(nic, journal, undo_journal, "")

    def trial(self, nic: str) -> Trial:
        return trial(nic)


class Bed:
    """The real moves of a NIC in memory; `heard` is what the machine was given."""

    def __init__(self, journal: FilterJournal, undo_journal: UndoJournal) -> None:
        self.nic, self.now_s = FakeNic(), 1000.0
        self.heard: list[Event] = []
        self.watch: Any = SimpleNamespace(facts=NIC, nic=self.nic, lives=0)
        self.policy: Any = SimpleNamespace(hold_down_ns=5, moves_per_s=1000, interfaces=())
        self.journals = journal, undo_journal

    def run(self, does: Callable[[moving.Moving], object]) -> None:
        """On a loop."""

        async def running() -> None:
            made = moving.Moving(
                self.watch, *self.journals, lambda action: None, nothing, self.policy, nothing
            )
            steps = made._mover.steps

            def heard(*events: Event) -> Any:
                self.heard += events
                return steps(*events)

            made._mover.steps = heard  # type: ignore[method-assign]
            with closing(made):
                does(made)

        asyncio.run(running())


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(moving, "NicActuator", Measured)
    monkeypatch.setattr(moving, "read_port", lambda *_, **__: LIKELY)
    monkeypatch.setattr(FakeNic, "interface", None)
    with (
        closing(FilterJournal(tmp_path / "rules")) as journal,
        closing(UndoJournal(tmp_path / "originals")) as undo_journal,
    ):
        made = Bed(journal, undo_journal)
        monkeypatch.setattr(
            moving,
            "time",
            SimpleNamespace(monotonic=lambda: made.now_s, thread_time=lambda: made.now_s),
        )
        yield made


def wanted(*actions: Action, mode: Mode = Mode.STRICT) -> Sequence[Wanted]:
    return [Wanted(each, mode, frozenset({0}), frozenset({0}), each.live) for each in actions]


def kinds(bed: Bed) -> list[type]:
    return [type(each) for each in bed.heard]


def test_a_move_of_a_flow_that_closed_ends_before_its_filter_is_deleted(bed: Bed) -> None:
    bed.run(lambda moves: moves.want(wanted(DELETE, mode=Mode.IMMEDIATE)))
    assert bed.heard[0] == FlowClosed(key(1))
    bed.heard.clear()
    bed.run(lambda moves: moves.want(wanted(replace(DELETE, live=True), mode=Mode.IMMEDIATE)))
    assert FlowClosed not in kinds(bed)


def test_a_reset_is_reported_once(bed: Bed) -> None:
    def resets(moves: moving.Moving) -> None:
        moves.know(measure=False)
        assert Reset not in kinds(bed)
        bed.watch.lives += 1
        moves.know(measure=False)
        moves.know(measure=False)

    bed.run(resets)
    assert kinds(bed).count(Reset) == 1


def test_writes_are_measured_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def measures(moves: moving.Moving) -> None:
        moves.know(measure=True)
        assert bed.nic.calls
        bed.nic.calls.clear()
        bed.now_s += 10_000
        monkeypatch.setattr(Measured, "write_ns", lambda self: 9000)
        moves.know(measure=True)

    bed.run(measures)
    assert bed.nic.calls == []


def test_a_nic_that_refuses_to_be_measured_is_asked_ever_more_seldom(bed: Bed) -> None:
    asked_s: list[int] = []

    def measures(moves: moving.Moving) -> None:
        for second in range(60):
            bed.now_s = 1000.0 + second
            bed.nic.refuse("insert", errno.EOPNOTSUPP)
            bed.nic.calls.clear()
            moves.know(measure=True)
            if bed.nic.calls:
                asked_s.append(second)
            else:
                bed.nic._refused("insert")

    bed.run(measures)
    assert asked_s == [0, 5, 15, 35]


def test_what_an_ordered_move_depends_on_is_read_again_if_it_is_old(bed: Bed) -> None:
    def begins(mode: Mode, later_s: float) -> list[type]:
        bed.heard.clear()

        def later(moves: moving.Moving) -> None:
            bed.now_s += later_s
            moves.want(wanted(INSERT, mode=mode))

        bed.run(later)
        return kinds(bed)

    assert PortChanged in begins(Mode.STRICT, 2)
    assert PortChanged not in begins(Mode.STRICT, 0.5)
    assert PortChanged not in begins(Mode.IMMEDIATE, 2)


@pytest.mark.parametrize(("now", "manual"), [("1 102", []), ("1 101", ["threaded:0"])])
def test_what_a_nic_lost_by_itself_no_other_program_took_back(
    bed: Bed, now: str, manual: list[str]
) -> None:
    """It has come up anew, without the thread that was borrowed."""
    loan = replace(
        Action.of_setting("nic", "threaded:0", "1", Code.KERNEL("a hold needs them")), loan=True
    )
    _, undo_journal = bed.journals
    read: list[object] = []  # anew

    def writes(moves: moving.Moving) -> None:
        undo_journal.lives("nic", "1 101")
        assert moves._write(loan).errno == 0
        bed.nic.values["threaded:0"] = "0"
        moves._read_s = inf
        done = moves._write(replace(loan, value="0"))
        read.append(moves._read_s)
        assert bool(done.errno) is bool(manual)

    bed.watch.threads_changed, bed.watch.life = lambda: None, lambda: now
    bed.watch.read_settings = lambda: read.append("settings")
    bed.nic.values["threaded:0"] = "0"
    bed.run(writes)
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

    done: list[int] = []
    bed.watch.threads_changed, bed.nic.values["threaded"] = unreadable, "0"
    with pytest.raises(OSError, match="device") if code == errno.ENODEV else nullcontext():
        bed.run(lambda moves: done.append(moves._write(borrow).errno))
    assert done == [0] * (code != errno.ENODEV)
