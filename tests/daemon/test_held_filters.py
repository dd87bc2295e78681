# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC lists, compared with the table and the journal, without a daemon: what an earlier run
left, and NICs that cannot be asked. The simulation has the rest."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.engine.event import FiltersLeft, FiltersListed
from atfnd.model import FlowState, Match, SocketUse
from tests.daemon.parts import Parts, parts_of
from tests.values import key

__all__: list[str] = []

OURS, THEIRS = Match.of(key(1)), Match.of(key(2))


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with parts_of(tmp_path) as built:
        built.serve()
        yield built


def left(parts: Parts, number: int = 1, *, lives: bool = True) -> int:
    """An earlier run has left the filter of this flow. Returns its location."""
    match = Match.of(key(number))
    parts.journal.claim("nic", match, 1)
    parts.nics["nic"].put(40 + number, match, 1)
    if lives:
        parts.observer.sockets.append(SocketUse(1000 + number, key(number), 1, 101, 1, 0))
    return 40 + number


def check(parts: Parts) -> None:
    parts.events.clear()
    parts.filters.check(parts.sessions["nic"])


def adopt(parts: Parts) -> None:
    parts.filters.adopt(parts.sessions["nic"])


def foreign(parts: Parts) -> set[int]:
    """Where the NIC has filters of other programs."""
    return {each.location for each in parts.sessions["nic"].view.theirs}


class TestAdopting:
    def test_the_filter_of_an_earlier_run_goes_on_with_its_socket(self, parts: Parts) -> None:
        at = left(parts)
        adopt(parts)
        [entry] = parts.engine.memory.table
        assert (entry.key, entry.location, entry.state) == (key(1), at, FlowState.STEERED)
        assert parts.nics["nic"].calls == []

    def test_without_its_socket_it_is_deleted(self, parts: Parts) -> None:
        at = left(parts, lives=False)
        adopt(parts)
        assert parts.nics["nic"].calls == [("delete", at)]
        assert not parts.journal.names("nic")

    def test_what_another_program_wrote_is_counted_and_left(self, parts: Parts) -> None:
        at = left(parts)
        parts.nics["nic"].put(7, THEIRS, 2)
        parts.observer.sockets.append(SocketUse(1002, key(2), 1, 101, 1, 0))
        adopt(parts)
        assert [entry.key for entry in parts.engine.memory.table] == [key(1)]
        assert foreign(parts) == {7}
        assert set(parts.nics["nic"].table) == {7, at}

    def test_a_nic_that_takes_no_filters_is_not_asked(self, parts: Parts) -> None:
        session = parts.sessions["nic"]
        parts.nics["nic"].refuse("filters", errno.EOPNOTSUPP)
        facts = session.watch.facts
        session.watch.facts = replace(facts, caps=replace(facts.caps, filters=False))
        adopt(parts)
        assert parts.of(FiltersLeft) == []


class TestChecking:
    def test_a_nic_without_flows_and_claims_is_not_asked(self, parts: Parts) -> None:
        parts.nics["nic"].refuse("filters", errno.EIO)
        check(parts)
        assert parts.events == []

    def test_a_link_that_is_down_is_asked_when_it_is_up(self, parts: Parts) -> None:
        left(parts)
        adopt(parts)
        nic, session = parts.nics["nic"], parts.sessions["nic"]
        nic.is_up = False
        session.watch.refresh()
        nic.table.clear()
        check(parts)
        assert parts.of(FiltersListed) == []
        nic.is_up = True
        session.watch.refresh()
        check(parts)
        [listed] = parts.of(FiltersListed)
        assert (listed.filters, listed.disturbed) == ([], True)

    def test_a_nic_that_does_not_list_its_filters_loses_no_record(self, parts: Parts) -> None:
        left(parts)
        parts.nics["nic"].refuse("filters", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            check(parts)
        assert parts.journal.names("nic")
