# SPDX-License-Identifier: GPL-2.0-or-later
"""`BirthReader` without a daemon: when handshakes are observed, what the engine hears of them, and
which ports are looked at."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from atfnd.daemon import handshakes
from atfnd.engine.command import FindListeners, LookAtPorts, WatchAccepts
from atfnd.engine.event import BirthsDetached, BirthsHeard, BirthsLost, ListenersFound, PortsLooked
from atfnd.model import Born, Connecting, Listening, Mode, SocketUse, ThreadReads
from atfnd.model.rss_hash import rss_index
from atfnd.policy.match.matching import Sources
from tests.daemon.parts import POLICY, Parts, parts_of
from tests.values import RULE, THREAD, key

__all__: list[str] = []

STRICT = replace(POLICY, flows=(replace(RULE, order=Mode.STRICT),))
OURS = 4026531840
PORT = key(0)._replace(remote=bytes(4), remote_port=0)


class ScriptedBirths:
    """As `observe.sockets.handshakes.Births`: in a pipe that is never readable."""

    made: ClassVar[list[ScriptedBirths]] = []
    refuses = refuses_start = 0

    def __init__(self) -> None:
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self._ends = os.pipe()
        self.served: list[str | None] | None = None
        self.events: list[Born] = []
        self.heard: list[Listening] = []
        self.ports: frozenset[int] = frozenset()
        self.dropped, self.started = 0, False
        self.made.append(self)

    def start(self) -> None:
        if self.refuses_start:
            raise OSError(self.refuses_start, os.strerror(self.refuses_start))
        self.started = True

    def serve(self, netns: Sequence[str | None]) -> None:
        self.served = list(netns)

    def is_of(self, netns: int, path: str | None) -> bool:
        return netns == OURS and path is None

    def accepts(self, ports: Collection[int]) -> None:
        self.ports = frozenset(ports)

    def fileno(self) -> int:
        return self._ends[0]

    def drain(self) -> list[Born]:
        events, self.events = self.events, []
        return events

    def lost(self) -> int:
        return self.dropped

    def listeners(self) -> list[Listening]:
        return list(self.heard)

    def close(self) -> None:
        for each in self._ends:
            os.close(each)
        self._ends = -1, -1

    @property
    def open(self) -> bool:
        return self._ends[0] >= 0


@pytest.fixture
def births(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedBirths]:
    monkeypatch.setattr(ScriptedBirths, "made", [])
    monkeypatch.setattr(handshakes, "Births", ScriptedBirths)
    return ScriptedBirths


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """One NIC that has every address, under a policy that keeps order from birth."""
    with parts_of(tmp_path, STRICT) as built:
        session = built.serve(armed=False)
        session.watch.owns = lambda local: True  # type: ignore[method-assign]
        session.watch.tunnel_of = lambda key: None  # type: ignore[method-assign]
        built.events.clear()
        yield built


def in_loop(parts: Parts, *steps: Callable[[], object]) -> None:
    async def run() -> None:
        for step in steps:
            step()
        parts.births.close()

    asyncio.run(run())


def connecting(number: int, *, netns: int = OURS) -> Connecting:
    return Connecting(1, 1000 + number, key(number), netns, THREAD, 2)


def listening(*, netns: int = OURS) -> Listening:
    return Listening(1, 7, PORT, netns, THREAD)


class TestAttaching:
    def test_a_policy_that_keeps_order_from_birth_has_births_observed(
        self, parts: Parts, births: type[ScriptedBirths]
    ) -> None:
        attached: list[bool] = []
        in_loop(parts, parts.births.start, lambda: attached.append(parts.births.attached))
        assert attached == [True]
        [made] = births.made
        assert (made.started, made.open) == (True, False)

    def test_one_that_does_not_has_none(self, parts: Parts, births: type[ScriptedBirths]) -> None:
        parts.in_force.policy = POLICY
        in_loop(parts, parts.births.start, parts.births.renew)
        assert births.made == []

    def test_a_recording_has_them_observed_under_any_policy(
        self, parts: Parts, births: type[ScriptedBirths]
    ) -> None:
        parts.in_force.policy = POLICY
        with parts.recorder.asking():
            in_loop(parts, parts.births.renew)
        assert len(births.made) == 1
        assert births.made[0].served == [None]

    @pytest.mark.parametrize("what", ["refuses", "refuses_start"])
    def test_a_kernel_that_refuses_is_said_and_nothing_stays_open(
        self,
        parts: Parts,
        births: type[ScriptedBirths],
        monkeypatch: pytest.MonkeyPatch,
        what: str,
    ) -> None:
        monkeypatch.setattr(births, what, errno.EPERM)
        in_loop(parts, parts.births.start, parts.births.read, parts.births.serve)
        assert not parts.births.attached
        assert not any(made.open for made in births.made)
        [event] = parts.log.after(0, 9)
        assert event.kind == "handshakes"
        assert "Operation not permitted" in (event.why or "")

    def test_they_end_with_the_last_that_wants_them(
        self, parts: Parts, births: type[ScriptedBirths]
    ) -> None:
        def other_policy() -> None:
            parts.births.end()
            assert parts.births.attached
            parts.in_force.policy = POLICY

        def left() -> None:
            parts.engine.has_births = lambda: True  # type: ignore[method-assign]
            parts.births.end()
            assert parts.births.attached
            parts.engine.has_births = lambda: False  # type: ignore[method-assign]
            parts.births.end()
            assert not parts.births.attached

        in_loop(parts, parts.births.start, other_policy, left, parts.births.end)
        assert parts.of(BirthsDetached) == [BirthsDetached()]
        assert not births.made[0].open


class TestWhatIsHeard:
    @pytest.fixture(autouse=True)
    def bed(self, parts: Parts, births: type[ScriptedBirths]) -> None:
        self.parts, self.births = parts, births

    def heard(self, *events: Born) -> list[BirthsHeard]:
        def read() -> None:
            self.births.made[0].events = list(events)
            self.parts.births.read()

        in_loop(self.parts, self.parts.births.start, read)
        return self.parts.of(BirthsHeard)

    def test_a_connect_is_offered_to_the_nic_that_has_its_address(self) -> None:
        [heard] = self.heard(connecting(1))
        [birth] = heard.events
        [offer] = birth.offers
        predicted = rss_index(self.parts.sessions["nic"].view, key(1))
        assert predicted is not None
        assert (offer.nic, offer.rule.name, offer.rss_queue) == ("nic", "rest", predicted)

    @pytest.mark.parametrize("why", ["of another namespace", "of another address", "by a tunnel"])
    def test_a_connect_that_does_not_come_in_here_is_offered_to_none(self, why: str) -> None:
        watch = self.parts.sessions["nic"].watch
        if why == "of another address":
            watch.owns = lambda local: False  # type: ignore[method-assign]
        if why == "by a tunnel":
            watch.tunnel_of = lambda key: "vxlan0"  # type: ignore[method-assign]
        netns = 1 if why == "of another namespace" else OURS
        [heard] = self.heard(connecting(1, netns=netns))
        assert [birth.offers for birth in heard.events] == [[]]

    def test_a_connect_without_a_rule_that_keeps_order_is_offered_to_none(self) -> None:
        self.parts.matching.renew(POLICY, Sources())
        [heard] = self.heard(connecting(1))
        assert [birth.offers for birth in heard.events] == [[]]

    def test_a_listener_is_of_the_only_nic_that_it_receives_through(self) -> None:
        [heard] = self.heard(listening())
        assert [birth.nic for birth in heard.events] == ["nic"]

    def test_a_listener_of_two_nics_is_of_none(self) -> None:
        other = self.parts.serve("other", armed=False)
        other.watch.owns = lambda local: True  # type: ignore[method-assign]
        [heard] = self.heard(listening())
        assert [birth.nic for birth in heard.events] == [None]

    def test_lost_events_are_told_once(self) -> None:
        def lose() -> None:
            self.births.made[0].dropped = 3
            self.parts.births.read()
            self.parts.births.read()

        in_loop(self.parts, self.parts.births.start, lose)
        assert self.parts.of(BirthsLost) == [BirthsLost()]

    @pytest.mark.parametrize(("napi", "told"), [(101, ["nic"]), (999, [])])
    def test_who_reads_a_connection_first_is_told_for_a_nic_of_ours(
        self, napi: int, told: list[str]
    ) -> None:
        self.parts.births.read_first(ThreadReads(1, key(1), napi, THREAD))
        heard = self.parts.of(BirthsHeard)
        assert [birth.nic for each in heard for birth in each.events] == told


class TestPorts:
    @pytest.fixture(autouse=True)
    def bed(self, parts: Parts, births: type[ScriptedBirths]) -> None:
        self.parts, self.births = parts, births

    def test_accepts_are_observed_from_before_the_sockets_are_read(self) -> None:
        """Else a connection that is accepted in between is missed."""
        made, order = self.births.made, list[object]()
        inventory = self.parts.observer.inventory

        def read() -> list[SocketUse]:
            order.append(made[0].ports)
            return inventory()

        self.parts.observer.inventory = read  # type: ignore[method-assign]
        in_loop(
            self.parts,
            self.parts.births.start,
            lambda: self.parts.executor.carry_out([LookAtPorts(frozenset({443}))]),
        )
        assert order == [frozenset({443})]
        assert len(self.parts.of(PortsLooked)) == 1

    def test_accepts_of_other_ports_are_watched_when_the_engine_says_so(self) -> None:
        def watch() -> None:
            self.parts.executor.carry_out([WatchAccepts(frozenset({80}))])
            assert self.births.made[0].ports == {80}

        in_loop(self.parts, self.parts.births.start, watch)

    def test_what_listens_is_found_by_nic(self) -> None:
        def find() -> None:
            self.births.made[0].heard = [listening(), listening(netns=1)]
            self.parts.executor.carry_out([FindListeners()])

        in_loop(self.parts, self.parts.births.start, find)
        assert self.parts.of(ListenersFound)[-1] == ListenersFound("nic", (listening(),))
