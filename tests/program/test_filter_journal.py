# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of our filters: it never claims what was not ours, and does not grow with time.
The simulation kills it at each write; test_record_file.py cuts a file at any byte."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from atfnd.model import Filter, Match
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.record_file import Record
from atfnd.program.journals.undo_journal import UndoJournal
from tests.values import key

MATCHES = [Match.of(key(number)) for number in range(6)]


def test_a_journal_does_not_grow_with_time(tmp_path: Path) -> None:
    path = tmp_path / "filters.journal"
    journal = FilterJournal(path)
    journal.claim("nic", MATCHES[0])
    for _ in range(10_000):
        journal.claim("nic", MATCHES[1])
        journal.release("nic", MATCHES[1])
    assert path.stat().st_size <= 2 << 20
    assert set(FilterJournal(path).left["nic"]) == {MATCHES[0]}


def test_a_rule_of_the_same_match_at_another_location_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "filters.journal"
    journal = FilterJournal(path)
    journal.claim("nic", MATCHES[0])
    journal.locate("nic", MATCHES[0], 7)
    journal.claim("nic", MATCHES[1], 1)  # and killed before it knew the location
    second = FilterJournal(path)
    ours, same, unlocated = (
        Filter(7, MATCHES[0], 1),
        Filter(8, MATCHES[0], 1),
        Filter(9, MATCHES[1], 1),
    )
    assert second.ours("nic", [same, ours, unlocated]) == [ours, unlocated]
    assert second.ours("nic", [unlocated, Filter(3, MATCHES[1], 1)]) == [unlocated]
    assert second.ours("other", [ours]) == []


def test_every_filter_of_a_probe_that_was_killed_is_ours(tmp_path: Path) -> None:
    """A driver that takes one match twice has two of them, on two queues."""
    path = tmp_path / "filters.journal"
    first = FilterJournal(path).claims("nic")
    first.claim(MATCHES[0])
    second = FilterJournal(path)
    two = [Filter(3, MATCHES[0], 0), Filter(9, MATCHES[0], 1)]
    assert second.ours("nic", two) == two
    assert second.ours("nic", [Filter(3, MATCHES[0], 2)]) == []  # another program turned it
    again = second.claims("nic")  # the next probe, while they may still be there
    again.claim(MATCHES[0])
    again.release(MATCHES[0])
    assert second.ours("nic", two) == two
    second.release("nic", MATCHES[0])
    assert second.ours("nic", two) == []


def line(record: Record) -> bytes:
    """As an atfnd wrote it before journals named their format."""
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


FIELDS = [2, 6, "0a080001", 32, "0a090001", 32, 40000, 5201]
STRANGE: list[Record] = [
    ["+"],
    ["+", "eth0", FIELDS],
    ["+", "eth0", FIELDS, 1, 2, 3],
    ["+", "eth0", FIELDS, "one"],
    ["+", "eth0", FIELDS[:-1], 1],
    ["+", "eth0", [*FIELDS, 7], 1],
    ["+", "eth0", [2, 6, "no address", *FIELDS[3:]], 1],
    ["=", "eth0", FIELDS, 7, None],
    ["=", "eth0", FIELDS, 7, [None]],
    ["?", "eth0", FIELDS],
    [7, "eth0", FIELDS],
    ["=", "eth0", "rss", 1],
    ["*", "eth0", "rss"],
    ["*", "eth0", "rss", "a", "b", "c", "d"],
    ["disarm", "eth0", "why"],
    ["dance", "eth0"],
    ["disarm", ["eth0"]],
    [None],
    [{"a": 1}],
]


@pytest.mark.parametrize("strange", STRANGE, ids=json.dumps)
@pytest.mark.parametrize("kind", [FilterJournal, UndoJournal, OperatorJournal])
def test_a_record_of_another_shape_is_said_and_costs_no_other(
    tmp_path: Path,
    kind: Callable[[Path], FilterJournal | UndoJournal | OperatorJournal],
    strange: Record,
) -> None:
    path = tmp_path / "some.journal"
    text = line(strange)
    path.write_bytes(text)
    journal = kind(path)
    assert journal.trouble is not None
    assert "some.damaged" in journal.trouble
    assert path.with_suffix(".damaged").read_bytes() == text
    journal.close()
    second = kind(path)
    assert second.trouble is None
    second.close()


def test_what_is_claimed_while_the_file_is_written_anew_is_in_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "filters.journal"
    journal, claimed = FilterJournal(path), list[Match]()
    before = path.stat().st_ino
    while path.stat().st_ino == before:
        match = Match.of(key(0)._replace(remote_port=1 + len(claimed)))
        for _ in range(2):
            journal.claim("nic", match)
        claimed.append(match)
    journal.close()
    assert set(FilterJournal(path).left["nic"]) == set(claimed)


def test_filters_go_along_to_a_new_name(tmp_path: Path) -> None:
    path = tmp_path / "filters.journal"
    journal = FilterJournal(path)
    journal.claim("eth0", MATCHES[0], 1)
    journal.locate("eth0", MATCHES[0], 7)
    journal.rename("eth0", "lan0")
    for known in (journal, FilterJournal(path)):  # in this run and in the next
        assert known.ours("lan0", [Filter(7, MATCHES[0], 1)]) == [Filter(7, MATCHES[0], 1)]
        assert not known.names("eth0")
