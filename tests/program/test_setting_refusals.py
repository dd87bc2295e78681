# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of a NIC that refuses, or that another program turns: what it and the journal have
then."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.program import queue_cpu, setting
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from tests.nic.fake_nic import FakeNic

__all__: list[str] = []

REFUSALS = [errno.EPERM, errno.EIO, errno.EINVAL, errno.ENODEV, errno.EBUSY, errno.EOPNOTSUPP]
XPS = "xps-cpus:1"


class Bed:
    """NICs, and the journal that they share, which a restart reads again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.undo_journal = UndoJournal(path)
        self.nic = FakeNic()
        self.nic.values |= {XPS: "0-3", "rps-sock-flow-entries": "0", "rps-flow-cnt:0": "0"}

    def write(self, name: str, value: str, nic: FakeNic | None = None) -> Outcome:
        nic = nic or self.nic
        action = Action.of_setting(nic.name, name, value)
        return setting.apply(nic, self.undo_journal, action)

    def confine(self, queue: int, cpu: int) -> Outcome:
        action = Action(
            ActionKind.QUEUE_CPU, "nic", None, None, None, cpu, Code.UNSAID(), "", queue
        )
        return queue_cpu.apply(self.nic, self.undo_journal, action)

    def held(self) -> dict[str, OwnedSetting]:
        """What a restart would know."""
        again = UndoJournal(self.path)
        again.close()
        assert again.held("nic") == self.undo_journal.held("nic")
        return again.held("nic")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path / "originals.journal")
    yield made
    made.undo_journal.close()


def test_what_has_its_value_from_before_us_again_is_no_longer_ours(bed: Bed) -> None:
    bed.write(XPS, "2")
    assert bed.write(XPS, "0-3").errno == 0
    assert bed.undo_journal.held("nic") == {}
    bed.nic.values[XPS] = "1"
    assert bed.write(XPS, "2").errno == 0
    assert bed.held()[XPS].original == "1"


def test_a_loan_that_is_its_value_from_before_us_stays_ours(bed: Bed) -> None:
    """It is given back as what a policy asks for."""
    bed.write(XPS, "2")
    loan = replace(Action.of_setting("nic", XPS, "0-3"), loan=True)
    assert setting.apply(bed.nic, bed.undo_journal, loan).errno == 0
    assert bed.held()[XPS].original == "0-3"


def test_what_is_so_already_is_neither_written_nor_ours(bed: Bed) -> None:
    assert bed.write(XPS, "0-3").errno == 0
    assert bed.nic.calls == []
    assert bed.held() == {}


def test_an_outcome_has_what_the_setting_was(bed: Bed) -> None:
    assert bed.write(XPS, "1").before == "0-3"
    assert bed.write(XPS, "2").before == "1"
    bed.nic.values[XPS] = "3"  # another program's
    assert bed.write(XPS, "1").before == "3"
    assert bed.write("xps-cpus:9", "1").before is None


def test_the_first_value_is_kept_whatever_is_written_after(bed: Bed) -> None:
    for value in ("1", "2"):
        outcome = bed.write(XPS, value)
        assert (outcome.errno, outcome.left) == (0, "as planned")
    assert bed.nic.values[XPS] == "2"
    assert bed.held() == {XPS: OwnedSetting("0-3", "2")}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_first_write_leaves_nothing_in_the_journal(bed: Bed, code: int) -> None:
    bed.nic.refuse("write_setting", code)
    outcome = bed.write(XPS, "1")
    assert outcome.errno == code
    assert os.strerror(code) in outcome.left
    assert bed.nic.values[XPS] == "0-3"
    assert bed.held() == {}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_second_write_leaves_the_first_ours(bed: Bed, code: int) -> None:
    bed.write(XPS, "1")
    bed.nic.refuse("write_setting", code)
    assert bed.write(XPS, "2").errno == code
    assert bed.held() == {XPS: OwnedSetting("0-3", "1")}
    assert setting.undo(bed.nic, bed.undo_journal) == [setting.Undone(XPS, 0, "is 0-3 again")]


def test_a_write_that_is_refused_although_it_was_done_is_ours_and_undone(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = bed.nic.write_setting

    def refused_when_done(name: str, value: str) -> None:
        write(name, value)
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(bed.nic, "write_setting", refused_when_done)
    assert bed.write(XPS, "1").errno == 0
    assert bed.undo_journal.held("nic") == {XPS: OwnedSetting("0-3", "1")}
    assert setting.undo(bed.nic, bed.undo_journal) == [setting.Undone(XPS, 0, "is 0-3 again")]
    assert bed.held() == {}


def test_a_refusal_of_what_was_done_and_reads_in_other_words_is_none(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an indirection table does that is written out and is the driver's own."""
    words = {"0-2": "0,1,2", "0-3": "0,1,2,3"}

    def refused_when_done(name: str, value: str) -> None:
        bed.nic.values[name] = words[value]
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(bed.nic, "write_setting", refused_when_done)
    assert bed.write(XPS, "0-2").errno == 0
    assert bed.undo_journal.held("nic") == {XPS: OwnedSetting("0-3", "0,1,2")}
    assert setting.drifted("nic", bed.nic.values, bed.undo_journal) == {}
    (undone,) = setting.undo(bed.nic, bed.undo_journal)
    assert undone == setting.Undone(XPS, 0, "is 0,1,2,3, which stands for 0-3")
    assert bed.held() == {}


def test_after_a_refusal_that_nobody_can_look_into_the_journal_names_both_values(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.write(XPS, "1")
    read = bed.nic.setting

    def refused_then_unreadable(name: str, value: str) -> None:
        bed.nic.refuse("setting", errno.ENETDOWN)
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(bed.nic, "write_setting", refused_then_unreadable)
    assert bed.write(XPS, "2").errno == errno.ETIMEDOUT
    monkeypatch.setattr(bed.nic, "setting", read)
    assert bed.held() == {XPS: OwnedSetting("0-3", "2", "1")}


def test_a_setting_that_is_not_there(bed: Bed) -> None:
    assert bed.write("no-such-setting", "1").errno == errno.ENOENT
    assert bed.held() == {}


def test_a_kernel_that_takes_it_and_does_nothing_is_found_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bed.nic, "write_setting", lambda name, value: None)
    outcome = bed.write(XPS, "1")
    assert outcome.errno == errno.EIO
    assert "is still 0-3" in outcome.left


def test_a_value_in_the_kernels_own_words_is_ours(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = bed.nic.write_setting
    monkeypatch.setattr(bed.nic, "write_setting", lambda name, value: write(name, f"0{value}"))
    outcome = bed.write(XPS, "1")
    assert (outcome.errno, outcome.left) == (0, f"{XPS} reads 01")
    assert bed.held() == {XPS: OwnedSetting("0-3", "01")}
    assert setting.drifted("nic", bed.nic.values, bed.undo_journal) == {}


def test_what_somebody_else_wrote_is_neither_overwritten_nor_put_back(bed: Bed) -> None:
    bed.write(XPS, "1")
    bed.nic.values[XPS] = "3"
    assert setting.drifted("nic", bed.nic.values, bed.undo_journal) == {XPS: "3"}
    outcome = bed.write(XPS, "2")
    assert outcome.errno == errno.ESTALE
    assert "another program" in outcome.left
    assert bed.nic.values[XPS] == "3"
    (undone,) = setting.undo(bed.nic, bed.undo_journal)
    assert undone.errno == errno.ESTALE
    assert bed.nic.values[XPS] == "3"
    assert bed.held() == {}


def test_settings_are_put_back_last_written_first(bed: Bed) -> None:
    bed.write(XPS, "1")
    bed.write("rps-flow-cnt:0", "64")
    bed.nic.calls.clear()
    setting.undo(bed.nic, bed.undo_journal)
    assert bed.nic.calls == [
        ("write_setting", "rps-flow-cnt:0", "0"),
        ("write_setting", XPS, "0-3"),
    ]
    assert bed.held() == {}


@pytest.mark.parametrize("code", [errno.EPERM, errno.EIO, errno.EBUSY], ids=errno.errorcode.get)
def test_what_the_kernel_refuses_to_put_back_stays_in_the_journal(bed: Bed, code: int) -> None:
    bed.write(XPS, "1")
    bed.nic.refuse("write_setting", code)
    (undone,) = setting.undo(bed.nic, bed.undo_journal)
    assert undone.errno == code
    assert bed.held() == {XPS: OwnedSetting("0-3", "1")}


@pytest.mark.parametrize("gone", [True, False])
def test_a_setting_that_went_with_its_queue_is_forgotten(bed: Bed, gone: bool) -> None:
    bed.write(XPS, "1")
    if gone:
        del bed.nic.values[XPS]
    else:
        bed.nic.values[XPS] = "0-3"
    (undone,) = setting.undo(bed.nic, bed.undo_journal)
    assert undone.errno == (errno.ENOENT if gone else 0)
    assert bed.held() == {}


def test_the_machine_wide_setting_stays_for_another_nic_that_needs_it(bed: Bed) -> None:
    other = FakeNic("other")
    other.values = bed.nic.values | {}
    bed.write("rps-flow-cnt:0", "64")
    bed.write("rps-sock-flow-entries", "32768")
    bed.write("rps-flow-cnt:0", "64", other)
    setting.undo(bed.nic, bed.undo_journal)
    assert bed.nic.values["rps-sock-flow-entries"] == "32768"
    assert bed.undo_journal.held("other")["rps-sock-flow-entries"] == OwnedSetting(
        "0", "32768", "0"
    )
    other.values["rps-sock-flow-entries"] = "32768"
    setting.undo(other, bed.undo_journal)
    assert other.values["rps-sock-flow-entries"] == "0"


def test_the_machine_wide_setting_goes_with_the_last_nic_that_needs_it(bed: Bed) -> None:
    bed.write("rps-sock-flow-entries", "32768")
    bed.write("rps-flow-cnt:0", "64")  # undone first
    setting.undo(bed.nic, bed.undo_journal, only=["rps-sock-flow-entries"])
    assert bed.nic.values["rps-sock-flow-entries"] == "0"


def test_a_queue_goes_to_its_cpu(bed: Bed) -> None:
    outcome = bed.confine(2, 3)
    assert (outcome.errno, outcome.left) == (0, "as planned")
    assert bed.nic.cpus == [0, 1, 3, 3]
    assert bed.held() == {"queue-cpu:2": OwnedSetting("2", "3")}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_queue_that_may_not_be_moved(bed: Bed, code: int) -> None:
    bed.nic.refuse("write_setting", code)
    outcome = bed.confine(2, 3)
    assert outcome.errno == code
    assert "queue 2's CPU stays as it is" in outcome.left
    assert bed.nic.cpus == [0, 1, 2, 3]
    assert bed.held() == {}


def test_a_queue_that_somebody_else_moved_is_left(bed: Bed) -> None:
    bed.confine(2, 3)
    bed.nic.values["queue-cpu:2"] = "1"
    outcome = bed.confine(2, 0)
    assert outcome.errno == errno.ESTALE
    assert "another program set it to 1" in outcome.left
    assert bed.nic.values["queue-cpu:2"] == "1"


def test_a_write_that_a_crash_cut_short_is_ours_either_way(bed: Bed) -> None:
    """Killed between the record and the write, or between the write and what came of it."""
    bed.write(XPS, "1")
    bed.undo_journal.wrote("nic", XPS, "2")
    for now in ("1", "2"):
        assert setting.drifted("nic", {XPS: now}, bed.undo_journal) == {}
    assert setting.drifted("nic", {XPS: "3"}, bed.undo_journal) == {XPS: "3"}
    assert bed.held()[XPS].original == "0-3"


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_an_undo_that_a_crash_cut_short_is_ours_either_way(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, done: bool, cut: bool
) -> None:
    """Also where the write before it was cut short and not done."""
    bed.write(XPS, "1")
    if cut:
        bed.undo_journal.wrote("nic", XPS, "2")
    write = bed.nic.write_setting

    def killed(name: str, value: str) -> None:
        if done:
            write(name, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(bed.nic, "write_setting", killed)
    with pytest.raises(KeyboardInterrupt):
        setting.undo(bed.nic, bed.undo_journal)
    monkeypatch.undo()
    again = UndoJournal(bed.path)
    assert setting.drifted("nic", bed.nic.values, again) == {}
    assert [each.errno for each in setting.undo(bed.nic, again)] == [0]
    again.close()
    assert bed.nic.values[XPS] == "0-3"


def test_a_full_journal_stops_no_undo(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bed.write(XPS, "1")
    monkeypatch.setattr(os, "write", full)
    assert setting.undo(bed.nic, bed.undo_journal) == [setting.Undone(XPS, 0, "is 0-3 again")]
    assert bed.nic.values[XPS] == "0-3"


def test_what_cannot_be_journaled_is_not_written(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        outcomes = bed.write(XPS, "1"), bed.confine(2, 3)
    assert [outcome.errno for outcome in outcomes] == [errno.ENOSPC] * 2
    assert all("journal cannot be written" in outcome.left for outcome in outcomes)
    assert bed.nic.calls == []


def test_what_is_left_alone_is_remembered_until_it_is_taken_back(bed: Bed) -> None:
    bed.write(XPS, "1")
    bed.undo_journal.leave_alone("nic", XPS)
    again = UndoJournal(bed.path)
    assert again.manual("nic") == {XPS}
    assert again.held("nic") == {}
    again.take_back("nic")
    again.close()
    assert UndoJournal(bed.path).manual("nic") == frozenset()
