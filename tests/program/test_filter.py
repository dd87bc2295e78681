# SPDX-License-Identifier: GPL-2.0-or-later
"""One filter action on a NIC that refuses: what is in the NIC, in the journal, in words agrees."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Action, ActionKind, Match, Outcome
from atfnd.model.reason import Code
from atfnd.nic import Nic
from atfnd.program.filter import apply
from atfnd.program.journals.filter_journal import FilterJournal
from tests.nic.fake_nic import FakeNic
from tests.values import key

__all__: list[str] = []

OURS, OTHER = key(1), key(2)
MATCH, HIS = Match.of(OURS), Match.of(OTHER)
REFUSALS = [
    errno.EPERM, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EBUSY, errno.EEXIST, errno.ENODEV,
    errno.EINVAL, errno.ENOSPC, errno.EOPNOTSUPP, errno.ENETDOWN, errno.ETIMEDOUT,
]  # fmt: skip


class Bed:
    """One NIC and its journal, which a restart reads again."""

    def __init__(self, path: Path) -> None:
        self.nic = FakeNic()
        self.path = path
        self.journal = FilterJournal(path)

    def apply(
        self, kind: ActionKind, location: int | None = None, new: int | None = None
    ) -> Outcome:
        checked: Nic = self.nic
        old = 1 if kind is not ActionKind.INSERT else None
        action = Action(kind, "nic", OURS, location, old, new, Code.UNSAID(), "")
        outcome = apply(checked, self.journal, action)
        assert outcome.action is action
        assert outcome.at_ns > 0
        return outcome

    def inserted(self) -> int:
        location = self.apply(ActionKind.INSERT, new=1).location
        assert location is not None
        self.nic.calls.clear()
        return location

    def left(self) -> dict[Match, int | None]:
        """What a restart would take for ours."""
        journal = FilterJournal(self.path)
        journal.close()
        return journal.left.get("nic", {})

    def adopted(self) -> list[int]:
        journal = FilterJournal(self.path)
        journal.close()
        return [rule.location for rule in journal.ours("nic", self.nic.table.values())]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path / "filters.journal")
    yield made
    made.journal.close()


def test_an_insert_is_in_the_nic_and_in_the_journal(bed: Bed) -> None:
    outcome = bed.apply(ActionKind.INSERT, new=1)
    assert (outcome.errno, outcome.location, outcome.left) == (0, 63, "as planned")
    assert bed.nic.table[63][:3] == (63, MATCH, 1)
    assert bed.left() == {MATCH: 63}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_insert_leaves_nothing_in_the_journal(bed: Bed, code: int) -> None:
    bed.nic.refuse("insert", code)
    outcome = bed.apply(ActionKind.INSERT, new=1)
    assert (outcome.errno, outcome.location) == (code, None)
    assert "delivered by RSS" in outcome.left
    assert ("full" in outcome.left) is (code == errno.ENOSPC)
    assert (os.strerror(code) in outcome.left) is (code != errno.ENOSPC)
    assert (bed.nic.table, bed.left()) == ({}, {})


def test_a_refusal_without_an_errno_is_one_nevertheless(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("the driver does not say why")

    monkeypatch.setattr(bed.nic, "insert", refuse)
    assert bed.apply(ActionKind.INSERT, new=1).errno == errno.EIO


def test_the_claim_is_in_the_journal_before_the_nic_is_asked(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    insert = bed.nic.insert

    def look(match: Match, queue: int, location: int | None = None) -> int:
        seen.append(bed.left())
        return insert(match, queue, location)

    monkeypatch.setattr(bed.nic, "insert", look)
    bed.apply(ActionKind.INSERT, new=1)
    assert seen == [{MATCH: None}]


def test_a_rewrite_turns_the_rule_where_it_is(bed: Bed) -> None:
    location = bed.inserted()
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location, outcome.left) == (0, location, "as planned")
    assert bed.nic.calls == [("insert", MATCH, 3, location)]
    assert bed.nic.table[location].queue == 3
    assert bed.adopted() == [location]


def test_the_turn_is_in_the_journal_before_the_nic_is_asked(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed anywhere in between, what is there is still ours."""
    location = bed.inserted()
    seen: list[object] = []
    insert = bed.nic.insert

    def look(match: Match, queue: int, at: int | None = None) -> int:
        seen.append(bed.adopted())
        location = insert(match, queue, at)
        seen.append(bed.adopted())
        return location

    monkeypatch.setattr(bed.nic, "insert", look)
    bed.apply(ActionKind.REWRITE, location, 3)
    assert seen == [[location], [location]]


def test_a_rule_that_somebody_turns_to_a_third_queue_is_his(bed: Bed) -> None:
    location = bed.inserted()
    bed.apply(ActionKind.REWRITE, location, 3)
    bed.nic.put(location, MATCH, 0)
    assert bed.adopted() == []


def test_a_rule_that_somebody_turns_while_the_journal_is_written_is_his(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = bed.inserted()
    turn = bed.journal.turn

    def slow(nic: str, match: Match, old: int | None, queue: int) -> None:
        turn(nic, match, old, queue)
        bed.nic.put(location, MATCH, 0)

    monkeypatch.setattr(bed.journal, "turn", slow)
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location) == (errno.ENOENT, None)
    assert (bed.nic.table[location].queue, bed.left()) == (0, {})


def test_a_rewrite_that_comes_to_another_location_is_found_there(bed: Bed) -> None:
    location = bed.inserted()
    bed.nic.elsewhere = 5
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location) == (0, 5)
    assert bed.left() == {MATCH: 5}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_rewrite_that_left_the_rule(bed: Bed, code: int) -> None:
    location = bed.inserted()
    bed.nic.refuse("insert", code)
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location) == (code, location)
    assert "still points to queue 1" in outcome.left
    assert bed.adopted() == [location]


def test_a_rewrite_after_a_refused_one_is_ours_if_it_is_killed(bed: Bed) -> None:
    """It is on the queue that it had before both, which the journal must not have forgotten."""
    location = bed.inserted()
    for new in (2, 3):
        bed.nic.refuse("insert", errno.EIO)
        outcome = bed.apply(ActionKind.REWRITE, location, new)
        assert (outcome.errno, outcome.location) == (errno.EIO, location)
        assert bed.adopted() == [location]


def test_a_rule_on_a_queue_that_we_were_refused_is_somebody_elses(bed: Bed) -> None:
    location = bed.inserted()
    bed.nic.refuse("insert", errno.EIO)
    bed.apply(ActionKind.REWRITE, location, 3)
    bed.nic.put(location, MATCH, 3)
    assert bed.adopted() == []


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_rewrite_that_lost_the_rule(bed: Bed, code: int) -> None:
    location = bed.inserted()
    bed.nic.refuse("insert", code)
    bed.nic.loses = True
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location) == (code, None)
    assert "lost it: delivered by RSS" in outcome.left
    assert bed.left() == {}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_rewrite_that_was_done_nevertheless(bed: Bed, code: int) -> None:
    location = bed.inserted()
    bed.nic.refuse("insert", code)
    bed.nic.does_it_anyway = True
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location) == (0, location)
    assert "changed it nevertheless" in outcome.left
    assert bed.adopted() == [location]


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_rewrite_of_which_the_nic_does_not_say_what_is_left(bed: Bed, code: int) -> None:
    """It may be there: the journal keeps it."""
    location = bed.inserted()
    bed.nic.refuse("insert", code)
    bed.nic.refuse("filter", 0, 0, errno.EIO)
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location) == (code, location)
    assert "does not say" in outcome.left
    assert bed.adopted() == [location]


@pytest.mark.parametrize("there", [None, HIS])
def test_a_rewrite_of_a_rule_that_is_not_there_any_more(bed: Bed, there: Match | None) -> None:
    location = bed.inserted()
    del bed.nic.table[location]
    if there is not None:
        bed.nic.put(location, there, 2)
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert (outcome.errno, outcome.location) == (errno.ENOENT, None)
    assert "another program" in outcome.left
    assert bed.nic.calls == []  # it is not even asked
    assert bed.left() == {}


def test_an_insert_that_was_refused_and_done_is_ours(bed: Bed) -> None:
    """A NIC that answers late has the filter: the journal must not forget it."""
    bed.nic.does_it_anyway = True
    bed.nic.refuse("insert", errno.ETIMEDOUT)
    assert bed.apply(ActionKind.INSERT, new=1).location == 63
    assert bed.left() == {MATCH: 63}


def test_a_delete_of_an_earlier_location_leaves_the_filter_named(bed: Bed) -> None:
    location = bed.inserted()
    bed.apply(ActionKind.DELETE, location - 1)
    assert bed.left() == {MATCH: location}


@pytest.mark.parametrize("kind", [ActionKind.DELETE, ActionKind.REWRITE])
def test_one_that_another_program_pointed_elsewhere_is_its_own(bed: Bed, kind: ActionKind) -> None:
    location = bed.inserted()
    bed.nic.put(location, MATCH, 2)
    bed.apply(kind, location, 3 if kind is ActionKind.REWRITE else None)
    assert bed.nic.table[location].queue == 2


def test_a_delete_takes_it_out_of_both(bed: Bed) -> None:
    location = bed.inserted()
    outcome = bed.apply(ActionKind.DELETE, location)
    assert (outcome.errno, outcome.location, outcome.left) == (0, None, "as planned")
    assert (bed.nic.table, bed.left()) == ({}, {})


def test_the_journal_names_a_rule_until_it_is_deleted(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = bed.inserted()
    seen: list[object] = []
    delete = bed.nic.delete

    def look(at: int) -> None:
        delete(at)
        seen.append(bed.left())

    monkeypatch.setattr(bed.nic, "delete", look)
    bed.apply(ActionKind.DELETE, location)
    assert seen == [{MATCH: location}]


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_delete_leaves_it_ours(bed: Bed, code: int) -> None:
    location = bed.inserted()
    bed.nic.refuse("delete", code)
    outcome = bed.apply(ActionKind.DELETE, location)
    assert (outcome.errno, outcome.location) == (code, location)
    assert f"location {location}" in outcome.left
    assert os.strerror(code) in outcome.left
    assert bed.adopted() == [location]


@pytest.mark.parametrize("there", [None, HIS])
def test_a_delete_of_a_rule_that_is_not_there_any_more(bed: Bed, there: Match | None) -> None:
    location = bed.inserted()
    del bed.nic.table[location]
    if there is not None:
        bed.nic.put(location, there, 2)
    outcome = bed.apply(ActionKind.DELETE, location)
    assert (outcome.errno, outcome.location) == (0, None)
    assert bed.nic.calls == []
    assert bed.left() == {}
    assert set(bed.nic.table) == ({location} if there is not None else set())


def test_a_rule_that_goes_between_the_look_and_the_delete_is_deleted(bed: Bed) -> None:
    location = bed.inserted()
    bed.nic.refuse("delete", errno.ENOENT)
    outcome = bed.apply(ActionKind.DELETE, location)
    assert (outcome.errno, outcome.location) == (0, None)
    assert bed.left() == {}


@pytest.mark.parametrize("kind", [ActionKind.INSERT, ActionKind.REWRITE])
def test_what_the_journal_cannot_take_is_not_done(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, kind: ActionKind
) -> None:
    location = bed.inserted() if kind is ActionKind.REWRITE else None
    before = dict(bed.nic.table)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        outcome = bed.apply(kind, location, 3)
    assert (outcome.errno, outcome.location) == (errno.EIO, location)
    assert "nothing is changed" in outcome.left
    assert bed.nic.calls == []
    assert bed.nic.table == before


@pytest.mark.parametrize("kind", [ActionKind.REWRITE, ActionKind.DELETE])
def test_an_action_without_its_location_is_a_bug(bed: Bed, kind: ActionKind) -> None:
    if kind is ActionKind.DELETE:
        with pytest.raises(ValueError, match="without a flow or a location"):
            bed.apply(kind, None)
    else:
        with pytest.raises(ValueError, match="without a flow or a location"):
            bed.apply(kind, None, 3)


def test_filters_that_a_killed_probe_left_are_all_deleted(bed: Bed) -> None:
    """One match, two locations: an insert that finds one of them does not disown the other."""
    bed.journal.claim("nic", MATCH)
    for location, queue in ((0, 0), (1, 1)):
        bed.nic.put(location, MATCH, queue)
    assert bed.apply(ActionKind.INSERT, new=0).errno == errno.EEXIST
    for location in (0, 1):
        assert bed.apply(ActionKind.DELETE, location).errno == 0
        assert bed.left() == {MATCH: None}  # until the NIC is read again and lists none
    assert bed.nic.table == {}
