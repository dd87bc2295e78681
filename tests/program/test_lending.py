# SPDX-License-Identifier: GPL-2.0-or-later
"""NAPI threads that are borrowed: in the journal while they are, and only ours are given back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import Action
from atfnd.model.reason import Code
from atfnd.model.reception import BUSY_THREAD, OWN_THREAD, SOFTIRQ
from atfnd.move.loan import BORROWED, GIVEN_BACK
from atfnd.program import actuator, lending, setting
from atfnd.program.journals.undo_journal import UndoJournal

__all__: list[str] = []


class Switches:
    """A NIC with a switch, and what was written, in order."""

    name = "eth0"

    def __init__(self) -> None:
        self.values = {"threaded": "0", "queue-cpu:0": "0"}
        self.written: list[tuple[str, str]] = []
        self.refusal = 0

    def setting(self, name: str) -> str | None:
        return self.values.get(name)

    def write_setting(self, name: str, value: str) -> None:
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.written.append((name, value))
        self.values[name] = value


@pytest.fixture
def nic() -> Switches:
    return Switches()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[UndoJournal]:
    made = UndoJournal(tmp_path / "originals.journal")
    yield made
    made.close()


def switch(value: str) -> Action:
    return replace(
        Action.of_setting("eth0", "threaded", value, Code.KERNEL("a move waits")), loan=True
    )


def test_it_is_in_the_journal_as_long_as_it_is_borrowed(
    nic: Switches, journal: UndoJournal
) -> None:
    assert lending.apply(nic, journal, switch(BORROWED)).errno == 0
    assert nic.values["threaded"] == "1"
    assert journal.held("eth0")["threaded"].original == "0"
    assert lending.apply(nic, journal, switch(GIVEN_BACK)).errno == 0
    assert nic.values["threaded"] == "0"
    assert journal.held("eth0") == {}


def test_an_operators_threads_are_neither_borrowed_nor_switched_off(
    nic: Switches, journal: UndoJournal
) -> None:
    nic.values["threaded"] = "1"
    assert lending.apply(nic, journal, switch(BORROWED)).errno == errno.ESTALE
    assert lending.apply(nic, journal, switch(GIVEN_BACK)).errno == 0
    assert lending.end(nic, journal) == []
    assert nic.written == []


def test_what_another_program_switched_off_is_left_alone(
    nic: Switches, journal: UndoJournal
) -> None:
    lending.apply(nic, journal, switch(BORROWED))
    nic.values["threaded"] = "0"
    done = lending.apply(nic, journal, switch(GIVEN_BACK))
    assert (done.errno, done.left) == (errno.ESTALE, "another program switched threaded off")
    assert journal.held("eth0") == {}
    assert journal.manual("eth0") == {"threaded"}


def test_a_refusal_leaves_no_trace(nic: Switches, journal: UndoJournal) -> None:
    nic.refusal = errno.EBUSY
    assert lending.apply(nic, journal, switch(BORROWED)).errno == errno.EBUSY
    assert journal.held("eth0") == {}


def test_what_the_kernel_keeps_stays_in_the_journal(nic: Switches, journal: UndoJournal) -> None:
    lending.apply(nic, journal, switch(BORROWED))
    nic.refusal = errno.EBUSY
    assert lending.apply(nic, journal, switch(GIVEN_BACK)).errno == errno.EBUSY
    assert journal.held("eth0")["threaded"].wrote == "1"


def test_the_next_run_gives_back_what_the_last_one_had_borrowed(
    nic: Switches, tmp_path: Path
) -> None:
    first = UndoJournal(tmp_path / "originals.journal")
    setting.written(nic, first, "queue-cpu:0", "3", lambda: nic.write_setting("queue-cpu:0", "3"))
    lending.apply(nic, first, switch(BORROWED))
    first.close()
    second = UndoJournal(tmp_path / "originals.journal")
    assert [each.errno for each in lending.end(nic, second)] == [0]
    assert nic.values == {"threaded": "0", "queue-cpu:0": "3"}
    assert second.held("eth0").keys() == {"queue-cpu:0"}
    second.close()


def test_a_restore_first_gives_back_threads(nic: Switches, journal: UndoJournal) -> None:
    """`queue-cpu` is an interrupt's again before it is put back."""
    lending.apply(nic, journal, switch(BORROWED))
    setting.written(nic, journal, "queue-cpu:0", "3", lambda: nic.write_setting("queue-cpu:0", "3"))
    nic.written.clear()
    setting.undo(nic, journal)
    assert nic.written == [("threaded", "0"), ("queue-cpu:0", "0")]


TIMEOUT = "gro-flush-timeout:1"


def late(value: str) -> Action:
    return replace(
        Action.of_setting("eth0", TIMEOUT, value, Code.KERNEL("a move waits")), loan=True
    )


def test_a_timeout_of_an_administrator_is_back_and_forgotten(
    nic: Switches, journal: UndoJournal
) -> None:
    nic.values[TIMEOUT] = "20000"
    assert lending.apply(nic, journal, late("0")).errno == 0
    assert journal.held("eth0")[TIMEOUT].original == "20000"
    assert lending.apply(nic, journal, late("20000")).errno == 0
    assert nic.written == [(TIMEOUT, "0"), (TIMEOUT, "20000")]
    assert journal.held("eth0") == {}


def test_a_timeout_of_a_policy_stays_in_the_journal(nic: Switches, journal: UndoJournal) -> None:
    nic.values[TIMEOUT] = "0"
    setting.apply(nic, journal, Action.of_setting("eth0", TIMEOUT, "50000"))
    lending.apply(nic, journal, late("0"))
    assert lending.end(nic, journal) == []  # after a crash the policy sets it again
    lending.apply(nic, journal, late("50000"))
    assert (journal.held("eth0")[TIMEOUT].original, nic.values[TIMEOUT]) == ("0", "50000")


def test_a_timeout_of_a_policy_that_is_lent_is_still_ours(
    nic: Switches, journal: UndoJournal
) -> None:
    """Else it would stay, given back, when the policy asks for it no more."""
    nic.values[TIMEOUT] = "0"
    setting.apply(nic, journal, Action.of_setting("eth0", TIMEOUT, "50000"))
    lending.apply(nic, journal, late("0"))
    assert journal.held("eth0")[TIMEOUT].original == "0"


def test_a_crash_gives_back_the_timeout_of_an_administrator(
    nic: Switches, journal: UndoJournal
) -> None:
    nic.values[TIMEOUT] = "20000"
    lending.apply(nic, journal, late("0"))
    assert [each.errno for each in lending.end(nic, journal)] == [0]
    assert nic.values[TIMEOUT] == "20000"


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("name", ["threaded", TIMEOUT])
def test_what_a_run_was_giving_back_when_it_was_killed_is_given_back(
    nic: Switches, journal: UndoJournal, name: str, done: bool
) -> None:
    before, lent = ("20000", "0") if name == TIMEOUT else (GIVEN_BACK, BORROWED)
    nic.values[name] = before
    loan = replace(Action.of_setting("eth0", name, lent, Code.KERNEL("a move waits")), loan=True)
    lending.apply(nic, journal, loan)
    journal.wrote("eth0", name, before)
    if done:
        nic.values[name] = before
    assert [each.errno for each in lending.end(nic, journal)] == [0]
    assert nic.values[name] == before
    assert (journal.held("eth0"), journal.manual("eth0")) == ({}, frozenset())


def test_a_timeout_that_is_gone_already_is_not_borrowed(
    nic: Switches, journal: UndoJournal
) -> None:
    nic.values[TIMEOUT] = "0"
    assert lending.apply(nic, journal, late("0")).errno == errno.ESTALE
    assert nic.written == []


class Napi(Switches):
    """A NIC whose kernel gives each NAPI a thread, and what `nic.Nic` makes of that: one switch
    with two names."""

    LENT, LASTING = "threaded:0", "napi-thread:0"

    def __init__(self) -> None:
        super().__init__()
        self.polling, self.is_lent = "0", False
        self.killed = False

    def setting(self, name: str) -> str | None:
        if name == self.LASTING and self.is_lent and self.polling == "1":
            return "0"
        return self.polling if name in (self.LENT, self.LASTING) else super().setting(name)

    def write_setting(self, name: str, value: str) -> None:
        super().write_setting(name, value)
        self.polling, self.is_lent = value, name == self.LENT and value == "1"
        if self.killed:
            raise KeyboardInterrupt

    def another_switches(self, value: str) -> None:
        self.polling, self.is_lent = value, self.is_lent and value == "1"


@pytest.fixture
def napi() -> Napi:
    return Napi()


def borrow(value: str = BORROWED) -> Action:
    return replace(switch(value), setting=Napi.LENT)


def asked(value: str) -> Action:
    return Action.of_setting("eth0", Napi.LASTING, value, Code.KERNEL("a policy asks for it"))


@pytest.mark.parametrize("value", [OWN_THREAD, BUSY_THREAD])
def test_what_a_policy_asks_for_meanwhile_outlives_the_loan(
    napi: Napi, journal: UndoJournal, value: str
) -> None:
    nic: Any = napi
    no_filters: Any = None
    lending.apply(napi, journal, borrow())
    done = actuator.apply(nic, no_filters, journal, asked(value))
    assert (done.errno, done.before, done.original) == (0, "0", "0")
    assert lending.apply(napi, journal, borrow(GIVEN_BACK)).errno == 0
    assert lending.end(napi, journal) == []
    assert napi.polling == value
    assert lending.apply(napi, journal, borrow()).left == "threaded:0 is a policy's"
    assert [each.errno for each in setting.undo(napi, journal)] == [0]
    assert (napi.polling, journal.manual("eth0")) == ("0", frozenset())


@pytest.mark.parametrize("killed", [False, True])
def test_a_policy_takes_over_what_an_earlier_run_borrowed(
    napi: Napi, tmp_path: Path, *, killed: bool
) -> None:
    """A start could not give it back, and this run reads the loan as if it were an administrator's
    thread."""
    journal = UndoJournal(tmp_path / "originals.journal")
    lending.apply(napi, journal, borrow())
    napi.is_lent, napi.killed = False, killed
    if killed:
        with pytest.raises(KeyboardInterrupt):
            lending.keep(napi, journal, asked(BUSY_THREAD))
        journal.close()
        journal, napi.killed = UndoJournal(tmp_path / "originals.journal"), False
    else:
        assert lending.keep(napi, journal, asked(BUSY_THREAD)).errno == 0
        assert journal.held("eth0").keys() == {Napi.LASTING}
    assert {each.errno for each in setting.undo(napi, journal)} == {0}
    assert (napi.polling, journal.held("eth0"), journal.manual("eth0")) == ("0", {}, frozenset())
    journal.close()


def test_a_refusal_leaves_the_loan_as_it_is(napi: Napi, journal: UndoJournal) -> None:
    lending.apply(napi, journal, borrow())
    napi.is_lent, before = False, journal.held("eth0")
    napi.refusal = errno.EPERM
    assert lending.keep(napi, journal, asked(BUSY_THREAD)).errno == errno.EPERM
    napi.refusal = 0
    assert journal.held("eth0") == before
    assert lending.apply(napi, journal, borrow(GIVEN_BACK)).errno == 0
    assert napi.polling == "0"


def test_a_policy_that_asks_no_more_ends_the_loan(napi: Napi, journal: UndoJournal) -> None:
    lending.apply(napi, journal, borrow())
    lending.keep(napi, journal, asked(BUSY_THREAD))
    lending.keep(napi, journal, asked(SOFTIRQ))
    assert lending.apply(napi, journal, borrow(GIVEN_BACK)).errno == 0
    assert (journal.held("eth0"), journal.manual("eth0")) == ({}, frozenset())


def test_a_kill_just_after_a_policys_write_does_not_end_it(napi: Napi, tmp_path: Path) -> None:
    first = UndoJournal(tmp_path / "originals.journal")
    lending.apply(napi, first, borrow())
    napi.killed = True
    with pytest.raises(KeyboardInterrupt):
        lending.keep(napi, first, asked(BUSY_THREAD))
    first.close()
    second, napi.killed = UndoJournal(tmp_path / "originals.journal"), False
    assert second.held("eth0").keys() == {Napi.LENT, Napi.LASTING}
    assert lending.end(napi, second) == []
    assert napi.polling == BUSY_THREAD
    assert [each.errno for each in setting.undo(napi, second)] == [0]
    assert napi.polling == "0"
    second.close()


@pytest.mark.parametrize("value", [SOFTIRQ, BUSY_THREAD])
@pytest.mark.parametrize("next_one", [BORROWED, GIVEN_BACK])
def test_a_thread_that_another_program_switched_is_not_ours_any_more(
    napi: Napi, journal: UndoJournal, value: str, next_one: str
) -> None:
    lending.apply(napi, journal, borrow())
    napi.another_switches(value)
    assert lending.apply(napi, journal, borrow(next_one)).errno == errno.ESTALE
    assert (napi.polling, journal.held("eth0")) == (value, {})
    assert journal.manual("eth0") == {Napi.LENT}


def test_what_is_borrowed_already_is_borrowed(napi: Napi, journal: UndoJournal) -> None:
    for _ in range(2):
        assert lending.apply(napi, journal, borrow()).errno == 0
    assert lending.apply(napi, journal, borrow(GIVEN_BACK)).errno == 0
    assert napi.polling == "0"
