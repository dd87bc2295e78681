# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs that are served, without a daemon: they come, cannot be read, get new queues and names,
and go. What holds for each of them holds on."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atfnd.daemon.session import NicSession
from atfnd.engine.event import (
    Armed,
    Disarmed,
    Event,
    NicAttached,
    NicLost,
    NicRenamed,
    Paused,
)
from atfnd.model import Match, NicView, SocketUse
from atfnd.program.journals.record_file import Unrecorded
from tests.daemon.parts import Parts, parts_of
from tests.values import key

__all__: list[str] = []

XPS = "xps-cpus:0"


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with parts_of(tmp_path) as built:
        yield built


def in_loop(parts: Parts, *steps: Callable[[], object]) -> None:
    """Each step in a loop; the sessions that are left are closed."""

    async def run() -> None:
        for step in steps:
            step()
        for session in [*parts.sessions.values()]:
            parts.served.detach(session)
        parts.sessions.clear()

    asyncio.run(run())


def arrives(parts: Parts, name: str) -> None:
    parts.nic(name)
    parts.served.arrivals()


def stands(parts: Parts, order: Event) -> None:
    parts.executor.take(order)


def goes(parts: Parts, name: str, new: str | None = None) -> None:
    """The interface is gone, or has a new name."""
    nic = parts.nics.pop(name)
    nic.called = new
    if new is not None:
        nic.name = new
        parts.nics[new] = nic


class TestAnArrival:
    def test_a_nic_that_comes_is_served_and_observed(self, parts: Parts) -> None:
        views: list[NicView] = []

        def look() -> None:
            arrives(parts, "eth0")
            views.append(parts.sessions["eth0"].view)
            assert set(parts.observer.watched) == {100, 101, 102, 103}
            assert parts.sessions["eth0"].met

        in_loop(parts, look)
        assert views[0].armed
        assert parts.of(NicAttached)[0].facts.name == "eth0"
        assert "attach" in parts.kinds()

    def test_one_that_cannot_be_watched_is_said(self, parts: Parts) -> None:
        parts.interfaces.refuses["eth0"] = "it is a bond"
        in_loop(parts, lambda: arrives(parts, "eth0"))
        [event] = parts.log.after(0, 9)
        assert (event.kind, event.why, event.nic) == ("refused", "it is a bond", "eth0")

    @pytest.mark.parametrize("order", ["arm", "disarm"])
    @pytest.mark.parametrize("by_policy", [True, False])
    def test_the_last_order_for_a_nic_holds_when_it_comes(
        self, parts: Parts, order: str, *, by_policy: bool
    ) -> None:
        parts.interfaces.armed = by_policy
        parts.operator_journal.say(order, "eth0")
        armed: list[bool] = []
        in_loop(
            parts,
            lambda: arrives(parts, "eth0"),
            lambda: armed.append(parts.sessions["eth0"].view.armed),
        )
        assert armed == [order == "arm"]
        assert (order in parts.kinds()) is (by_policy is not (order == "arm"))
        assert parts.of(NicAttached)[0].armed is (order == "arm")

    def test_a_nic_that_was_paused_comes_paused(self, parts: Parts) -> None:
        parts.operator_journal.say("pause", "eth0")
        views: list[NicView] = []
        in_loop(
            parts,
            lambda: arrives(parts, "eth0"),
            lambda: views.append(parts.sessions["eth0"].view),
        )
        assert (views[0].armed, views[0].paused) == (False, True)
        assert "pause" in parts.kinds()

    def test_queues_that_the_observer_has_no_room_for_are_said_once(self, parts: Parts) -> None:
        parts.observer.room = 3

        def more() -> None:
            parts.observer.room = 10
            arrives(parts, "eth1")

        in_loop(
            parts,
            lambda: arrives(parts, "eth0"),
            lambda: parts.served.look_again(flapped(parts, "eth0")),
        )
        assert parts.kinds().count("napis") == 2  # 1, then 5 with those of the past
        [first, _] = [each for each in parts.log.after(0, 99) if each.kind == "napis"]
        assert first.what == "1 queues, past or present, are not seen"

    def test_as_many_queues_without_room_as_before_are_no_news(self, parts: Parts) -> None:
        parts.observer.room = 3
        in_loop(
            parts,
            lambda: arrives(parts, "eth0"),
            lambda: parts.served.look_again(news_of(parts, "eth0")),
        )
        assert parts.kinds().count("napis") == 1


def lists(session: NicSession) -> None:
    """A look that lists its filters."""
    session.watch.read_filters()


def flapped(parts: Parts, name: str) -> NicSession:
    """It has new queues."""
    parts.nics[name].napis += 50
    return parts.sessions[name]


def news_of(parts: Parts, name: str) -> NicSession:
    """Another program has put a queue on another CPU: the same queues are watched."""
    parts.nics[name].cpus[0] = 5
    return parts.sessions[name]


class TestANicThatCannotBeRead:
    @pytest.mark.parametrize("code", [errno.EIO, errno.EBUSY, errno.ETIMEDOUT, errno.ENETDOWN])
    def test_it_is_tried_again_and_said_once_and_others_are_served_on(
        self, parts: Parts, code: int
    ) -> None:
        looked: list[str] = []

        def look(session: NicSession) -> None:
            session.watch.nic.filters()
            looked.append(session.name)

        for name in ("a", "b"):
            parts.serve(name)
        parts.nics["a"].refuse("filters", code, code)
        for _ in range(3):
            parts.served.each(look)
        assert looked == ["b", "b", "a", "b"]
        assert parts.kinds().count("unread") == 1
        assert parts.sessions["a"].unread == ""

    def test_another_reason_is_said_too_and_so_is_the_same_one_later(self, parts: Parts) -> None:
        parts.serve("a")
        parts.nics["a"].refuse("filters", errno.EIO, errno.EBUSY, 0, errno.EBUSY)
        for _ in range(4):
            parts.served.each(lists)
        assert parts.kinds().count("unread") == 3

    def test_a_shortage_is_for_the_loop_to_take(self, parts: Parts) -> None:
        parts.serve("a")
        parts.nics["a"].refuse("filters", errno.ENOMEM)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            parts.served.each(lists)
        assert parts.kinds() == []
        assert "a" in parts.sessions

    def test_a_journal_that_cannot_be_written_is_not_the_nic(self, parts: Parts) -> None:
        parts.serve("a")

        def unrecorded(session: NicSession) -> None:
            raise Unrecorded(errno.EIO, "Input/output error")

        with pytest.raises(Unrecorded):
            parts.served.each(unrecorded)

    def test_what_arming_did_not_look_at_is_looked_at_the_next_time(self, parts: Parts) -> None:
        def arrives_unread() -> None:
            parts.nic("eth0").refuse("settings", errno.EIO)
            parts.served.arrivals()
            assert not parts.sessions["eth0"].met
            parts.served.reconcile()
            assert parts.sessions["eth0"].met

        in_loop(parts, arrives_unread)
        assert parts.kinds().count("unread") == 1


class TestANicThatIsGone:
    @pytest.fixture(autouse=True)
    def two(self, parts: Parts) -> None:
        self.parts, self.closed = parts, list[str]()
        self.match = Match.of(key(1))

    def both(self) -> None:
        for name in ("a", "b"):
            arrives(self.parts, name)
            session = self.parts.sessions[name]
            close = session.watch.close

            def closed(name: str = name, close: Callable[[], None] = close) -> None:
                self.closed.append(name)
                close()

            session.watch.close = closed  # type: ignore[method-assign]
            self.parts.journal.claim(name, self.match, 1)

    def test_it_is_forgotten_and_the_others_are_served_on(self) -> None:
        parts, looked = self.parts, list[str]()

        def gone() -> None:
            goes(parts, "a")
            parts.served.each(lambda session: looked.append(session.name))
            assert parts.sessions.keys() == {"b"}
            assert set(parts.observer.watched) == {200, 201, 202, 203}
            assert self.closed == ["a"]

        in_loop(parts, self.both, gone)
        assert looked == ["b"]
        assert parts.of(NicLost) == [NicLost("a")]
        assert parts.engine.memory.nics.keys() == {"b"}
        assert (parts.journal.names("a"), parts.journal.names("b")) == (False, True)
        assert parts.kinds()[-1] == "gone"


class TestANewName:
    def renamed(self, parts: Parts, *before: Callable[[], object]) -> list[NicView]:
        """`eth0` is served, and is `ren0` now. Returns what it is then."""
        views: list[NicView] = []

        def rename() -> None:
            goes(parts, "eth0", "ren0")
            parts.served.each(lambda session: None)
            views.extend(session.view for session in parts.sessions.values())

        in_loop(parts, lambda: arrives(parts, "eth0"), *before, rename)
        return views

    def test_it_is_served_under_its_new_name(self, parts: Parts) -> None:
        [view] = self.renamed(parts)
        assert (view.name, view.armed) == ("ren0", True)
        assert parts.of(NicRenamed) == [NicRenamed("eth0", "ren0")]
        assert parts.of(NicLost) == []
        assert parts.engine.memory.nics.keys() == {"ren0"}

    @pytest.mark.parametrize("armed", [True, False])
    def test_it_stays_armed_or_not(self, parts: Parts, *, armed: bool) -> None:
        [view] = self.renamed(
            parts, lambda: stands(parts, Armed("eth0") if armed else Disarmed("eth0"))
        )
        assert view.armed is armed
        assert parts.operator_journal.armed("ren0") is armed

    def test_a_pause_goes_on_and_so_does_what_its_end_brings_back(self, parts: Parts) -> None:
        def pause() -> None:
            stands(parts, Paused("eth0"))
            parts.operator_journal.say("pause", "eth0")

        [view] = self.renamed(parts, pause)
        assert (view.armed, view.paused) == (False, True)
        assert parts.operator_journal.armed("ren0") is True

    def test_a_pause_of_a_measurement_does_not_go_on(self, parts: Parts) -> None:
        [view] = self.renamed(parts, lambda: stands(parts, Paused("eth0")))
        assert (view.armed, view.paused) == (True, False)

    def test_an_order_for_the_new_name_counts_more(self, parts: Parts) -> None:
        parts.operator_journal.say("disarm", "ren0")
        [view] = self.renamed(parts)
        assert not view.armed

    def test_a_new_name_that_is_not_wanted_ends_its_service(self, parts: Parts) -> None:
        parts.interfaces.refuses["ren0"] = "its name is not readable text"
        assert self.renamed(parts) == []
        assert parts.of(NicLost) == [NicLost("ren0")]
        assert parts.engine.memory.nics.keys() == set()
        assert parts.kinds()[-1] == "refused"

    @pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
    def test_interfaces_that_exchange_names_keep_what_is_theirs(
        self, parts: Parts, names: tuple[str, ...]
    ) -> None:
        """Each takes the name of the next one, all of them before we look."""
        after = dict(zip(names, (*names[1:], names[0]), strict=True))
        watches = {}

        def exchange() -> None:
            for number, name in enumerate(names):
                arrives(parts, name)
                parts.journal.claim(name, Match.of(key(number)), 1)
                parts.nics[name].put(3, Match.of(key(number)), 1)
                parts.nics[name].values[XPS] = "4"
                parts.undo_journal.note(name, XPS, name)
                parts.undo_journal.wrote(name, XPS, "4")
                watches[name] = parts.sessions[name].watch
            parts.observer.sockets = [
                SocketUse(1000 + number, key(number), 1, 101, 1, 0) for number in range(len(names))
            ]
            parts.served.each(parts.served.filters.adopt)
            assert len(parts.engine.memory.table) == len(names)
            parts.engine.memory.nics[names[0]].displaced[1] = 7
            for name in names:
                goes(parts, name, f"{name}~")
            for name, new in after.items():
                goes(parts, f"{name}~", new)
                watches[name].nic.called = new  # type: ignore[attr-defined]
            parts.served.each(lambda session: None)
            assert {*parts.sessions} == {*names}
            for name, new in after.items():
                assert parts.sessions[new].watch is not watches[name]
                assert parts.sessions[new].view.armed

        in_loop(parts, exchange)
        assert parts.engine.memory.nics.keys() == {*names}
        displaced = {name: nic.displaced for name, nic in parts.engine.memory.nics.items()}
        assert displaced == {name: {} for name in names} | {after[names[0]]: {1: 7}}
        for number, name in enumerate(names):
            assert parts.undo_journal.held(after[name])[XPS].original == name
            assert {*parts.journal.left.get(after[name], {})} == {Match.of(key(number))}
        flows = {flow.nic: flow.key for flow in parts.engine.memory.table}
        assert flows == {after[name]: key(number) for number, name in enumerate(names)}
