# SPDX-License-Identifier: GPL-2.0-or-later
"""One filter action on a NIC that refuses: what is in the NIC, in the journal, in words agrees."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import Action, ActionKind, Match, Outcome
from atfnd.model.reason import Code
from atfnd.program.filter import apply
from atfnd.program.journals.filter_journal import FilterJournal
from tests.nic.fake_nic import FakeNic
from tests.values import key

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
        old = 1 if kind is not ActionKind.INSERT else None
        action = Action(kind, "nic", OURS, location, old, new, Code.UNSAID(), "")
        outcome = apply(self.nic, self.journal, action)
        assert outcome.action is action
        assert outcome.at_ns > 0
        return outcome

    def inserted(self) -> int:
        location = self.apply(ActionKind.INSERT, new=1).location
        assert location is not None
        self.nic.calls.clear()
        return location

    def _restarted(self) -> FilterJournal:
        copy = self.path.with_suffix(".copy")  # a restart writes it anew
        shutil.copyfile(self.path, copy)
        journal = FilterJournal(copy)
        journal.close()
        return journal

    def left(self) -> dict[Match, int | None]:
        """What a restart would take for ours."""
        return self._restarted().left.get("nic", {})

    def adopted(self) -> list[int]:
        return [rule.location for rule in self._restarted().ours("nic", self.nic.table.values())]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path / "filters.journal")
    yield made
    made.journal.close()


def test_a_restart_knows_the_rule_whenever_it_is_in_the_nic(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after any write of the NIC, what is there is ours."""
    adopted: list[list[int]] = []

    def looked_at(call: Callable[..., Any]) -> Callable[..., Any]:
        def look(*given: object) -> object:
            assert MATCH in bed.left()
            adopted.append(bed.adopted())
            answer = call(*given)
            assert MATCH in bed.left()
            adopted.append(bed.adopted())
            return answer

        return look

    for name in ("insert", "delete"):
        monkeypatch.setattr(bed.nic, name, looked_at(getattr(bed.nic, name)))
    outcomes = [bed.apply(ActionKind.INSERT, new=1)]
    assert bed.left() == {MATCH: 63}
    outcomes.append(bed.apply(ActionKind.REWRITE, 63, 3))
    assert bed.nic.table[63].queue == 3
    outcomes.append(bed.apply(ActionKind.DELETE, 63))
    assert {(each.errno, each.left) for each in outcomes} == {(0, "as planned")}
    assert [each.location for each in outcomes] == [63, 63, None]
    assert bed.nic.calls == [
        ("insert", MATCH, 1, None), ("insert", MATCH, 3, 63), ("delete", 63),
    ]  # fmt: skip
    assert adopted == [[], [63], [63], [63], [63], []]
    assert (bed.nic.table, bed.left()) == ({}, {})


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_insert_leaves_nothing_in_the_journal(bed: Bed, code: int) -> None:
    bed.nic.refuse("insert", code)
    outcome = bed.apply(ActionKind.INSERT, new=1)
    assert (outcome.errno, outcome.location) == (code, None)
    assert "delivered by RSS" in outcome.left
    assert ("full" in outcome.left) is (code == errno.ENOSPC)
    assert (os.strerror(code) in outcome.left) is (code != errno.ENOSPC)
    assert (bed.nic.table, bed.left()) == ({}, {})


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
@pytest.mark.parametrize(
    ("nic", "refused", "there", "said"),
    [
        ("leaves the rule", True, True, "still points to queue 1"),
        ("loses it", True, False, "lost it: delivered by RSS"),
        ("does it anyway", False, True, "changed it nevertheless"),
        ("does not say", True, True, "does not say"),  # it may be there: the journal keeps it
    ],
)
def test_a_refused_rewrite(
    bed: Bed, code: int, nic: str, refused: bool, there: bool, said: str
) -> None:
    location = bed.inserted()
    bed.nic.refuse("insert", code)
    bed.nic.loses, bed.nic.does_it_anyway = nic == "loses it", nic == "does it anyway"
    if nic == "does not say":
        bed.nic.refuse("filter", 0, 0, errno.EIO)
    outcome = bed.apply(ActionKind.REWRITE, location, 3)
    assert outcome.errno == (code if refused else 0)
    assert outcome.location == (location if there else None)
    assert said in outcome.left
    assert bed.adopted() == ([location] if there else [])
    assert bool(bed.left()) is there


@pytest.mark.parametrize(
    ("refused", "theirs"),
    [(False, 0), (True, 3)],
    ids=["a third one", "one that we were refused"],
)
def test_a_rule_that_somebody_turns_to_another_queue_is_his(
    bed: Bed, refused: bool, theirs: int
) -> None:
    location = bed.inserted()
    bed.nic.refuse("insert", errno.EIO * refused)
    bed.apply(ActionKind.REWRITE, location, 3)
    bed.nic.put(location, MATCH, theirs)
    assert bed.adopted() == []


@pytest.mark.parametrize("kind", [ActionKind.DELETE, ActionKind.REWRITE])
@pytest.mark.parametrize("there", [None, HIS, MATCH], ids=["none", "his", "ours, on queue 2"])
def test_a_rule_that_is_not_ours_any_more_is_left_and_forgotten(
    bed: Bed, kind: ActionKind, there: Match | None
) -> None:
    location = bed.inserted()
    del bed.nic.table[location]
    if there is not None:
        bed.nic.put(location, there, 2)
    before = dict(bed.nic.table)
    outcome = bed.apply(kind, location, 3 if kind is ActionKind.REWRITE else None)
    assert (bed.nic.calls, bed.nic.table) == ([], before)  # the NIC is not even asked
    assert (outcome.location, bed.left()) == (None, {})
    assert outcome.errno == (errno.ENOENT if kind is ActionKind.REWRITE else 0)
    assert ("another program" in outcome.left) is (kind is ActionKind.REWRITE)


def test_a_rewrite_after_a_refused_one_is_ours_if_it_is_killed(bed: Bed) -> None:
    """It is on the queue that it had before both, which the journal must not have forgotten."""
    location = bed.inserted()
    for new in (2, 3):
        bed.nic.refuse("insert", errno.EIO)
        outcome = bed.apply(ActionKind.REWRITE, location, new)
        assert (outcome.errno, outcome.location) == (errno.EIO, location)
        assert bed.adopted() == [location]


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


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_delete_leaves_it_ours(bed: Bed, code: int) -> None:
    location = bed.inserted()
    bed.nic.refuse("delete", code)
    outcome = bed.apply(ActionKind.DELETE, location)
    assert (outcome.errno, outcome.location) == (code, location)
    assert f"location {location}" in outcome.left
    assert os.strerror(code) in outcome.left
    assert bed.adopted() == [location]
    bed.nic.refuse("delete", errno.ENOENT)  # it went between the look and the delete
    assert bed.apply(ActionKind.DELETE, location).errno == 0
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
