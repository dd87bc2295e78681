# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of our rules: survives a kill at any byte, never claims what was not ours."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import Match
from atfnd.program.journal import Journal
from tests.values import key

MATCHES = [Match.of(key(number)) for number in range(6)]
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(MATCHES)), max_size=20)


def replayed(steps: list[tuple[bool, Match]]) -> set[Match]:
    owned: set[Match] = set()
    for claim, match in steps:
        if claim:
            owned.add(match)
        else:
            owned.discard(match)
    return owned


@given(STEPS, STEPS)
def test_a_restart_finds_what_was_claimed_and_not_released(
    before: list[tuple[bool, Match]], after: list[tuple[bool, Match]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rules.journal"
        for steps in (before, after):
            journal = Journal(path)
            for claim, match in steps:
                (journal.claim if claim else journal.release)("nic", match)
            journal.close()
        assert Journal(path).left.get("nic", set()) == replayed([*before, *after])


def test_a_journal_cut_at_any_byte_knows_every_rule_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "rules.journal"
    journal = Journal(path)
    sizes = [0]
    for match in MATCHES:
        journal.claim("nic", match)
        sizes.append(path.stat().st_size)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(size <= cut + 1 for size in sizes[1:])  # the newline alone may be missing
        assert Journal(path).left.get("nic", set()) == set(MATCHES[:complete])


def test_a_torn_line_does_not_swallow_the_next_claim(tmp_path: Path) -> None:
    path = tmp_path / "rules.journal"
    journal = Journal(path)
    journal.claim("nic", MATCHES[0])
    path.write_bytes(path.read_bytes() + b'["+","nic",[4,6')
    second = Journal(path)
    second.claim("nic", MATCHES[1])
    assert Journal(path).left["nic"] == set(MATCHES[:2])


def test_a_journal_does_not_grow_with_time(tmp_path: Path) -> None:
    path = tmp_path / "rules.journal"
    journal = Journal(path)
    journal.claim("nic", MATCHES[0])
    for _ in range(10_000):
        journal.claim("nic", MATCHES[1])
        journal.release("nic", MATCHES[1])
    assert path.stat().st_size <= 2 << 20
    assert Journal(path).left["nic"] == {MATCHES[0]}


def test_what_is_released_is_left_no_more(tmp_path: Path) -> None:
    path = tmp_path / "rules.journal"
    Journal(path).claim("nic", MATCHES[0])
    journal = Journal(path)
    assert journal.left["nic"] == {MATCHES[0]}
    journal.release("nic", MATCHES[0])
    assert journal.left["nic"] == set()
