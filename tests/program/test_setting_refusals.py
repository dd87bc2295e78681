# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of a NIC that refuses, or that another program turns: what it and the journal have
then."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.program import queue_cpu, setting
from atfnd.program.blind_actuator import BlindActuator
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from tests.nic.fake_nic import FakeNic

REFUSALS = [errno.EPERM, errno.EIO, errno.EINVAL, errno.ENODEV, errno.EBUSY, errno.EOPNOTSUPP]
XPS, RFS = "xps-cpus:1", "rps-sock-flow-entries"


class Bed:
    """NICs, and the journal that they share, which a restart reads again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.undo_journal = UndoJournal(path)
        self.nic = FakeNic()
        self.nic.values |= {XPS: "0-3", RFS: "0", "rps-flow-cnt:0": "0"}

    def write(self, name: str, value: str, nic: FakeNic | None = None) -> Outcome:
        nic = nic or self.nic
        action = Action.of_setting(nic.name, name, value)
        return setting.apply(nic, self.undo_journal, action)

    def confine(self, queue: int, cpu: int) -> Outcome:
        action = Action(
            ActionKind.QUEUE_CPU, "nic", None, None, None, cpu, Code.UNSAID(), "", queue
        )
        return queue_cpu.apply(self.nic, self.undo_journal, action)

    def undo(self, nic: FakeNic | None = None) -> list[setting.Undone]:
        return setting.undo(nic or self.nic, self.undo_journal)

    def held(self) -> dict[str, OwnedSetting]:
        """What a restart would know."""
        copy = self.path.with_suffix(".copy")  # a restart writes it anew
        shutil.copyfile(self.path, copy)
        again = UndoJournal(copy)
        again.close()
        assert again.held("nic") == self.undo_journal.held("nic")
        return again.held("nic")

    def drifted(self) -> dict[str, str]:
        return setting.drifted("nic", self.nic.values, self.undo_journal)


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


def test_what_is_so_already_is_neither_written_nor_ours(bed: Bed) -> None:
    assert bed.write(XPS, "0-3").errno == 0
    assert (bed.nic.calls, bed.held()) == ([], {})


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_write_is_said_and_only_what_was_written_is_ours(bed: Bed, code: int) -> None:
    bed.nic.refuse("write_setting", code, code, 0, code)
    first, queue = bed.write(XPS, "1"), bed.confine(2, 3)
    assert first.errno == queue.errno == code
    assert os.strerror(code) in first.left
    assert "queue 2's CPU stays as it is" in queue.left
    assert (bed.nic.values[XPS], bed.nic.cpus, bed.held()) == ("0-3", [0, 1, 2, 3], {})
    bed.write(XPS, "1")
    assert bed.write(XPS, "2").errno == code
    assert bed.held() == {XPS: OwnedSetting("0-3", "1")}
    assert bed.undo() == [setting.Undone(XPS, 0, "is 0-3 again")]


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize(
    ("reads", "back"),
    [("{}", "is 0-3 again"), ("0{}", "is 00-3, which stands for 0-3")],
    ids=["as written", "in other words"],
)
def test_a_refusal_of_what_was_done_is_none(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, reads: str, back: str, refused: bool
) -> None:
    """In other words as an indirection table is that is written out and is the driver's own."""

    def done(name: str, value: str) -> None:
        bed.nic.values[name] = reads.format(value)
        if refused:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(bed.nic, "write_setting", done)
    outcome = bed.write(XPS, "1")
    assert outcome.errno == 0
    assert outcome.left == ("as planned" if reads == "{}" else f"{XPS} reads 01")
    assert bed.undo_journal.held("nic") == {XPS: OwnedSetting("0-3", reads.format("1"))}
    assert bed.drifted() == {}
    assert bed.undo() == [setting.Undone(XPS, 0, back)]
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


def test_a_kernel_that_takes_it_and_does_nothing_is_found_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bed.nic, "write_setting", lambda name, value: None)
    outcome = bed.write(XPS, "1")
    assert outcome.errno == errno.EIO
    assert "is still 0-3" in outcome.left


def test_settings_are_put_back_last_written_first(bed: Bed) -> None:
    bed.write(XPS, "1")
    assert bed.confine(2, 3).left == "as planned"
    assert (bed.nic.cpus, bed.held()["queue-cpu:2"]) == ([0, 1, 3, 3], OwnedSetting("2", "3"))
    bed.nic.calls.clear()
    bed.undo()
    assert bed.nic.calls == [("write_setting", "queue-cpu:2", "2"), ("write_setting", XPS, "0-3")]
    assert bed.held() == {}


def test_what_the_kernel_refuses_to_put_back_stays_in_the_journal(bed: Bed) -> None:
    bed.write(XPS, "1")
    bed.nic.refuse("write_setting", errno.EBUSY)
    assert [each.errno for each in bed.undo()] == [errno.EBUSY]
    assert bed.held() == {XPS: OwnedSetting("0-3", "1")}


@pytest.mark.parametrize("gone", [True, False])
def test_a_setting_that_went_with_its_queue_is_forgotten(bed: Bed, gone: bool) -> None:
    bed.write(XPS, "1")
    if gone:
        del bed.nic.values[XPS]
    else:
        bed.nic.values[XPS] = "0-3"
    assert [each.errno for each in bed.undo()] == [errno.ENOENT if gone else 0]
    assert bed.held() == {}


def test_the_machine_wide_setting_stays_for_another_nic_that_needs_it(bed: Bed) -> None:
    other = FakeNic("other")
    other.values = bed.nic.values | {}
    bed.write("rps-flow-cnt:0", "64")
    bed.write(RFS, "32768")
    bed.write("rps-flow-cnt:0", "64", other)
    bed.undo()
    assert bed.nic.values[RFS] == "32768"
    assert bed.undo_journal.held("other")[RFS] == OwnedSetting("0", "32768", "0")
    other.values[RFS] = "32768"
    bed.undo(other)
    assert other.values[RFS] == "0"


def test_the_machine_wide_setting_goes_with_the_last_nic_that_needs_it(bed: Bed) -> None:
    bed.write(RFS, "32768")
    bed.write("rps-flow-cnt:0", "64")  # undone first
    setting.undo(bed.nic, bed.undo_journal, only=[RFS])
    assert bed.nic.values[RFS] == "0"


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("what", ["the first write", "a second write", "an undo", "both"])
def test_what_a_kill_cut_short_is_ours_either_way(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, what: str, done: bool
) -> None:
    """`both`: an undo after a write that was cut short and not done."""
    if what != "the first write":
        bed.write(XPS, "1")
    if what == "both":
        bed.undo_journal.wrote("nic", XPS, "2")
    write = bed.nic.write_setting

    def killed(name: str, value: str) -> None:
        if done:
            write(name, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(bed.nic, "write_setting", killed)
    call = bed.undo if what in ("an undo", "both") else partial(bed.write, XPS, "2")
    with pytest.raises(KeyboardInterrupt):
        call()
    monkeypatch.undo()
    again = UndoJournal(bed.path)
    assert setting.drifted("nic", bed.nic.values, again) == {}
    assert setting.drifted("nic", {XPS: "3"}, again) == {XPS: "3"}
    assert [each.errno for each in setting.undo(bed.nic, again)] == [0]
    again.close()
    assert bed.nic.values[XPS] == "0-3"


def test_a_full_journal_stops_no_undo_and_nothing_is_written_without_it(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bed.write(XPS, "1")
    monkeypatch.setattr(os, "write", full)
    assert bed.undo() == [setting.Undone(XPS, 0, "is 0-3 again")]
    assert bed.nic.values[XPS] == "0-3"
    bed.nic.calls.clear()
    outcomes = bed.write("rps-flow-cnt:0", "1"), bed.confine(2, 3)
    assert [outcome.errno for outcome in outcomes] == [errno.ENOSPC] * 2
    assert all("journal cannot be written" in outcome.left for outcome in outcomes)
    assert bed.nic.calls == []


def test_rfs_is_not_switched_where_no_queue_can_be_quiesced(bed: Bed) -> None:
    """The kernel refuses to attach what sees packets, as under an exclusive cgroup program."""
    no_filters: Any = None
    blind = BlindActuator(bed.nic, no_filters, bed.undo_journal, "Operation not permitted")
    refused = blind.write(Action.of_setting("nic", "rps-flow-cnt:0", "256"))
    assert refused.errno == errno.EOPNOTSUPP
    assert "Operation not permitted" in refused.left
    assert not blind.write(Action.of_setting("nic", RFS, "1")).errno


def test_what_somebody_else_wrote_is_neither_overwritten_nor_put_back(bed: Bed) -> None:
    bed.write(XPS, "1")
    bed.confine(2, 3)
    bed.nic.values |= {XPS: "3", "queue-cpu:2": "1"}
    assert bed.drifted() == {XPS: "3", "queue-cpu:2": "1"}
    for outcome in (bed.write(XPS, "2"), bed.confine(2, 0)):
        assert outcome.errno == errno.ESTALE
        assert "another program set it to " in outcome.left
    assert [each.errno for each in bed.undo()] == [errno.ESTALE] * 2
    assert (bed.nic.values[XPS], bed.nic.values["queue-cpu:2"]) == ("3", "1")
    assert bed.held() == {}
