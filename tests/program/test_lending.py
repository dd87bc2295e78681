# SPDX-License-Identifier: GPL-2.0-or-later
"""What is borrowed for moves, NAPI threads and the absence of a timeout: in the journal while it
is, and only ours is given back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import Action, Outcome
from atfnd.model.reason import Code
from atfnd.model.reception import BUSY_THREAD, OWN_THREAD, SOFTIRQ
from atfnd.move.loan import BORROWED, GIVEN_BACK
from atfnd.program import actuator, lending, setting
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal

# One switch of a NAPI with two names: `nic.Nic` reads what is lent as if it were off by the other.
LENT, LASTING = "threaded:0", "napi-thread:0"
TIMEOUT = "gro-flush-timeout:1"


class Bed:
    """A NIC with these settings, what was written in order, and the journal."""

    name = "eth0"

    def __init__(self, path: Path) -> None:
        self.path, self.journal = path, UndoJournal(path)
        self.values = {"threaded": "0", "queue-cpu:0": "0"}
        self.written: list[tuple[str, str]] = []
        self.refusal, self.killed = 0, False
        self.polling, self.is_lent = "0", False

    def setting(self, name: str) -> str | None:
        if name == LASTING and self.is_lent and self.polling == "1":
            return "0"
        return self.polling if name in (LENT, LASTING) else self.values.get(name)

    def write_setting(self, name: str, value: str) -> None:
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.written.append((name, value))
        if name in (LENT, LASTING):
            self.polling, self.is_lent = value, name == LENT and value == "1"
        self.values[name] = value
        if self.killed:
            raise KeyboardInterrupt

    def lend(self, name: str, value: str) -> Outcome:
        """Borrow, or give back."""
        action = Action.of_setting("eth0", name, value, Code.KERNEL("a move waits"))
        return lending.apply(self, self.journal, replace(action, loan=True))

    def keep(self, value: str) -> Outcome:
        """A policy asks for it by its lasting name."""
        return lending.keep(self, self.journal, Action.of_setting("eth0", LASTING, value))

    def policy_sets(self, name: str, value: str) -> None:
        setting.apply(self, self.journal, Action.of_setting("eth0", name, value))

    def next_run(self) -> None:
        """The one before was killed."""
        self.journal.close()
        self.journal, self.killed = UndoJournal(self.path), False

    def end(self) -> list[int]:
        return [each.errno for each in lending.end(self, self.journal)]

    def undo(self) -> set[int]:
        return {each.errno for each in setting.undo(self, self.journal)}

    def held(self) -> dict[str, OwnedSetting]:
        return self.journal.held("eth0")

    def nothing_is_ours(self) -> bool:
        return (self.held(), self.journal.manual("eth0")) == ({}, frozenset())


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path / "originals.journal")
    yield made
    made.journal.close()


@pytest.mark.parametrize(
    ("name", "before", "lent"),
    [("threaded", "0", "1"), (LENT, "0", "1"), (TIMEOUT, "20000", "0")],
)
def test_it_is_in_the_journal_as_long_as_it_is_borrowed(
    bed: Bed, name: str, before: str, lent: str
) -> None:
    bed.values[name] = before
    for _ in range(2):  # what is borrowed already is borrowed
        assert bed.lend(name, lent).errno == 0
        assert (bed.setting(name), bed.held()[name].original) == (lent, before)
    assert bed.lend(name, before).errno == 0
    assert bed.written == [(name, lent), (name, before)]
    assert bed.nothing_is_ours()


@pytest.mark.parametrize(
    ("name", "before", "lent"), [("threaded", "0", "1"), (TIMEOUT, "20000", "0")]
)
@pytest.mark.parametrize("when", ["borrowed", "being given back", "given back"])
def test_the_next_run_gives_back_what_the_last_one_had_borrowed(
    bed: Bed, name: str, before: str, lent: str, when: str
) -> None:
    bed.values[name] = before
    bed.policy_sets("queue-cpu:0", "3")
    bed.lend(name, lent)
    if when != "borrowed":
        bed.journal.wrote("eth0", name, before)
    if when == "given back":
        bed.values[name] = before
    bed.next_run()
    assert bed.end() == [0]
    assert (bed.values[name], bed.values["queue-cpu:0"]) == (before, "3")
    assert bed.held().keys() == {"queue-cpu:0"}
    assert bed.journal.manual("eth0") == frozenset()


def test_a_timeout_of_a_policy_stays_in_the_journal(bed: Bed) -> None:
    """Else it would stay, given back, when the policy asks for it no more."""
    bed.values[TIMEOUT] = "0"
    bed.policy_sets(TIMEOUT, "50000")
    bed.lend(TIMEOUT, "0")
    assert bed.held()[TIMEOUT].original == "0"
    assert bed.end() == []  # after a crash the policy sets it again
    bed.lend(TIMEOUT, "50000")
    assert (bed.held()[TIMEOUT].original, bed.values[TIMEOUT]) == ("0", "50000")


@pytest.mark.parametrize("value", [OWN_THREAD, BUSY_THREAD])
def test_what_a_policy_asks_for_meanwhile_outlives_the_loan(bed: Bed, value: str) -> None:
    nic: Any = bed
    no_filters: Any = None
    bed.lend(LENT, BORROWED)
    asked = Action.of_setting("eth0", LASTING, value)
    done = actuator.apply(nic, no_filters, bed.journal, asked)
    assert (done.errno, done.before, done.original) == (0, "0", "0")
    assert bed.lend(LENT, GIVEN_BACK).errno == 0
    assert bed.end() == []
    assert bed.polling == value
    assert bed.lend(LENT, BORROWED).left == "threaded:0 is a policy's"
    assert bed.undo() == {0}
    assert (bed.polling, bed.journal.manual("eth0")) == ("0", frozenset())


@pytest.mark.parametrize("value", [SOFTIRQ, BUSY_THREAD])
@pytest.mark.parametrize("next_one", [BORROWED, GIVEN_BACK])
def test_a_thread_that_another_program_switched_is_not_ours_any_more(
    bed: Bed, value: str, next_one: str
) -> None:
    bed.lend(LENT, BORROWED)
    bed.polling, bed.is_lent = value, bed.is_lent and value == "1"
    assert bed.lend(LENT, next_one).errno == errno.ESTALE
    assert (bed.polling, bed.held()) == (value, {})
    assert bed.journal.manual("eth0") == {LENT}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("ours", [True, False], ids=["of this run", "of an earlier one"])
def test_a_policy_takes_over_what_was_borrowed(bed: Bed, ours: bool, killed: bool) -> None:
    """An earlier run's loan looks like an administrator's thread. A kill just after the write does
    not end it."""
    bed.lend(LENT, BORROWED)
    bed.is_lent, bed.killed = ours, killed
    if killed:
        with pytest.raises(KeyboardInterrupt):
            bed.keep(BUSY_THREAD)
        bed.next_run()
        assert bed.end() == []
        assert bed.polling == BUSY_THREAD
    else:
        assert bed.keep(BUSY_THREAD).errno == 0
        assert bed.held().keys() == {LASTING}
    assert bed.undo() == {0}
    assert bed.polling == "0"
    assert bed.nothing_is_ours()


@pytest.mark.parametrize("ours", [True, False], ids=["of this run", "of an earlier one"])
def test_a_refusal_leaves_the_loan_as_it_is(bed: Bed, ours: bool) -> None:
    def refused(of: Callable[[], Outcome]) -> None:
        bed.refusal = errno.EBUSY
        assert of().errno == errno.EBUSY
        bed.refusal = 0

    refused(lambda: bed.lend(LENT, BORROWED))
    assert bed.nothing_is_ours()
    bed.lend(LENT, BORROWED)
    bed.is_lent, before = ours, bed.held()
    refused(lambda: bed.keep(BUSY_THREAD))
    refused(lambda: bed.lend(LENT, GIVEN_BACK))
    assert bed.held() == before
    assert bed.lend(LENT, GIVEN_BACK).errno == 0
    assert bed.polling == "0"


def test_what_is_an_operators_is_neither_borrowed_nor_given_back(bed: Bed) -> None:
    bed.values |= {"threaded": "1", TIMEOUT: "0"}
    assert bed.lend("threaded", BORROWED).errno == errno.ESTALE
    assert bed.lend("threaded", GIVEN_BACK).errno == 0
    assert bed.lend(TIMEOUT, "0").errno == errno.ESTALE
    assert bed.end() == []
    assert bed.written == []


def test_a_restore_first_gives_back_threads(bed: Bed) -> None:
    """`queue-cpu` is an interrupt's again before it is put back."""
    bed.lend("threaded", BORROWED)
    bed.policy_sets("queue-cpu:0", "3")
    bed.written.clear()
    bed.undo()
    assert bed.written == [("threaded", "0"), ("queue-cpu:0", "0")]
