# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of our filters under any sequence of writes, queues, renames, kills and full disks.

What a run knows is what was said to it. What a restart knows is what was said before the kill; a
record that a kill cut short, or that a full disk did not take, may be known or not, never another.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atfnd.model import Filter, Match
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.record_file import Unrecorded
from tests.values import key

__all__: list[str] = []

NICS = ("eth0", "eth1", "lan0")
MATCHES = [Match.of(key(number)) for number in range(3)]
QUEUES, LOCATIONS = range(4), range(3)
PROBED = 0, 1

Where = tuple[str, Match]


class Known(NamedTuple):
    """Of a rule: where it is (None: anywhere), and the queues it may be on, the last one last; no
    queue: it may be on any, and if it is anywhere on those that a probe inserts to."""

    location: int | None
    queues: tuple[int, ...]


State = dict[Where, Known]


class Step(NamedTuple):
    """What is done to a journal, and what a kill on the way may leave: the last is when it is
    done."""

    do: Callable[[FilterJournal], None]
    leaves: list[State]


def without(state: State, at: Where) -> State:
    return {each: known for each, known in state.items() if each != at}


@st.composite
def steps(draw: st.DrawFn, state: State) -> Step:
    """A step that the daemon may take, as the journal is."""
    free = [at for at in product(NICS, MATCHES) if at not in state]
    what = draw(
        st.sampled_from(
            ["claim"] * bool(free) + ["locate", "turn", "release"] * bool(state) + ["rename"]
        )
    )
    if what == "claim":
        at, queue = draw(st.sampled_from(free)), draw(st.none() | st.sampled_from(QUEUES))
        known = Known(None, () if queue is None else (queue,))
        return Step(lambda journal: journal.claim(*at, queue), [state | {at: known}])
    if what == "rename":
        old, new = draw(st.permutations(NICS))[:2]
        if any(nic == new for nic, _ in state):
            old, new = "none", "nothing"
        moved = {
            (new if nic == old else nic, match): known for (nic, match), known in state.items()
        }
        return Step(lambda journal: journal.rename(old, new), [moved])
    at, location = draw(st.sampled_from(sorted(state))), draw(st.sampled_from(LOCATIONS))
    known = state[at]
    if what == "locate":
        after = state | {at: known._replace(location=location)}
        return Step(lambda journal: journal.locate(*at, location), [after])
    if what == "release":
        return Step(lambda journal: journal.release(*at), [without(state, at)])
    queue = draw(st.sampled_from(QUEUES))
    had = draw(st.sampled_from(known.queues or QUEUES))
    turned = known._replace(queues=(had, queue))

    def turn(journal: FilterJournal) -> None:
        journal.turn(*at, had, queue)
        journal.locate(*at, location)

    on_the_way = [state | {at: turned._replace(location=each)} for each in (None, known.location)]
    return Step(turn, [*on_the_way, state | {at: turned._replace(location=location)}])


def ours(journal: FilterJournal, nic: str, match: Match) -> tuple[set[int], set[int]] | None:
    """Where the journal takes a rule of this match for ours, and on which queues."""
    there = {
        (location, queue)
        for location, queue in product(LOCATIONS, QUEUES)
        if journal.ours(nic, [Filter(location, match, queue)])
    }
    if not there:
        return None
    found, on = {location for location, _ in there}, {queue for _, queue in there}
    assert there == set(product(found, on))
    return found, on


def method(journal: FilterJournal) -> State:
    """What it takes for ours; queues in no order."""
    state = {}
    for nic, rules in journal.left.items():
        for match, at in rules.items():
            found = ours(journal, nic, match)
            assert found is not None
            locations, on = found
            assert locations == (set(LOCATIONS) if at is None else {at})
            state[nic, match] = Known(at, tuple(sorted(on)))
    return state


def plain(state: State) -> State:
    """As `means` has it."""
    return {
        at: Known(w, tuple(sorted({*on} or (PROBED if w is None else QUEUES))))
        for at, (w, on) in state.items()
    }


@contextmanager
def full_after(room: int) -> Iterator[None]:
    """The disk takes so many bytes more."""
    write, left = os.write, room

    def until_full(file: int, data: bytes) -> int:
        nonlocal left
        part = data[:left]
        left -= len(part)
        if data and not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, part)

    with mock.patch.object(os, "write", until_full):
        yield


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm"))  # it is synced often
        self.path = self.folder / "filters.journal"
        self.journal = FilterJournal(self.path)
        self.state: State = {}

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)

    def _restart(self, may: list[State]) -> None:
        """What it knows then is one of these."""
        self.journal.close()
        self.journal = FilterJournal(self.path)
        known = method(self.journal)
        found = [state for state in may if plain(state) == known]
        assert found
        self.state = found[0]

    @invariant()
    def a_restart_knows_what_this_run_does(self) -> None:
        copy = self.folder / "copy.journal"
        shutil.copyfile(self.path, copy)
        journal = FilterJournal(copy)
        journal.close()
        assert method(journal) == plain(self.state)

    @rule(data=st.data())
    def goes_on(self, data: st.DataObject) -> None:
        step = data.draw(steps(self.state))
        step.do(self.journal)
        self.state = step.leaves[-1]

    @rule()
    def restarts(self) -> None:
        self._restart([self.state])

    @rule(data=st.data())
    def is_renamed_and_known_at_once(self, data: st.DataObject) -> None:
        """What this run and earlier ones left is to be adopted under the new name."""
        taken = {nic for nic, _ in self.state}
        for old, new in product(sorted(taken), sorted(set(NICS) - taken)):
            self.journal.rename(old, new)
            of = [(match, known) for (nic, match), known in self.state.items() if nic == old]
            assert self.journal.left[new] == {match: known.location for match, known in of}
            assert not self.journal.left.get(old)
            self.state = {at: known for at, known in self.state.items() if at[0] != old}
            self.state |= {(new, match): known for match, known in of}
            return

    @rule(data=st.data(), cut=st.floats(0, 1))
    def is_killed(self, data: st.DataObject, cut: float) -> None:
        step, before = data.draw(steps(self.state)), self.path.read_bytes()
        step.do(self.journal)
        after = self.path.read_bytes()
        if after.startswith(before):
            more = after[len(before) :]
            after = before + more[: round(cut * len(more))]
        elif cut < 0.5:  # written anew: the old one or the new one is there
            after = before
        self.path.write_bytes(after)
        self._restart([self.state] if after == before else [self.state, *step.leaves])

    @rule(data=st.data(), room=st.integers(0, 150))
    def finds_the_disk_full(self, data: st.DataObject, room: int) -> None:
        step, refused = data.draw(steps(self.state)), False
        with full_after(room):
            try:
                step.do(self.journal)
            except Unrecorded:
                refused = True
        if refused:  # what was to be written ahead is not, and will not be done
            return
        self.journal.rename("none", "nothing")  # written anew, now that there is room
        self.state = step.leaves[-1]

    @rule(data=st.data(), room=st.integers(0, 150))
    def is_killed_on_a_full_disk(self, data: st.DataObject, room: int) -> None:
        step, may = data.draw(steps(self.state)), [self.state]
        with full_after(room), suppress(Unrecorded):
            step.do(self.journal)
            may += step.leaves
        self._restart(may)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=15)
