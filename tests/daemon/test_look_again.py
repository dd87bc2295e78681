# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC whose queues are new ones is seen as such, whatever part of the daemon reads it first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atfnd.daemon.nics import ServedNics
from atfnd.daemon.session import NicSession
from atfnd.daemon.watched_queues import WatchedQueues
from atfnd.engine.event import Event, TakenUp
from atfnd.engine.table.memory import NicMemory
from atfnd.model import NicView, Queue
from atfnd.nic import Nic
from atfnd.observe.nics.watch import NicWatch
from atfnd.serve.log.event_log import EventLog
from tests.nic.fake_nic import FakeNic

__all__: list[str] = []


class Flapping(FakeNic):
    """`flaps` gives it new queues."""

    napis = 100

    def flaps(self) -> None:
        self.napis += 100

    def queues(self) -> tuple[Queue, ...]:
        return tuple(replace(each, napi_id=self.napis + each.index) for each in super().queues())


class Bed:
    """One NIC that is served; `confine` is what arming does in the middle of a look."""

    def __init__(self, watch: NicWatch, nic: Flapping) -> None:
        anything: Any = SimpleNamespace
        known = NicMemory(NicView.of(watch.facts))
        self.nic, self.session = nic, NicSession(watch, known)
        self.session.met = True
        self.confine: Callable[[], None] = lambda: None
        self.observed: set[int] = set()
        self.events: list[Event] = []
        arming = anything(confine=lambda session: self.confine(), meet=None)
        executor = anything(know=lambda session: None, take=self.events.append)
        sessions, self.log = {nic.name: self.session}, EventLog()
        births = anything(serve=lambda: None)
        queues = WatchedQueues(sessions, anything(watch=self._observe), births, self.log)
        self.nics = ServedNics(
            anything(), sessions, executor, arming, anything(check=lambda session: None), queues,
            anything(), anything(), lambda name: True, self.log,
        )  # fmt: skip

    def _observe(self, netns: object, napis: Iterable[int]) -> int:
        self.observed = set(napis)
        return 0

    def look(self) -> list[Event]:
        """Look again; returns the events for the engine."""
        self.events.clear()
        self.nics.look_again(self.session)
        return list(self.events)


@pytest.fixture
def bed() -> Iterator[Bed]:
    nic = Flapping()
    with closing(NicWatch(cast(Nic, nic))) as watch:
        yield Bed(watch, nic)


def test_a_nic_that_stays_as_it_is_is_no_news(bed: Bed) -> None:
    assert (bed.look(), bed.observed) == ([], set())


def test_new_queues_are_observed_and_their_flows_looked_at(bed: Bed) -> None:
    bed.nic.flaps()
    assert bed.look() == [TakenUp("nic")]
    assert {200, 201, 202, 203} <= bed.observed
    assert bed.look() == []


def test_queues_that_change_while_others_are_put_back_are_observed_too(bed: Bed) -> None:
    """The link came up again while queues were put back: the read that follows that took the change
    for known, and the NIC's sockets were seen no more."""

    def confine() -> None:
        bed.nic.flaps()
        bed.session.watch.refresh()

    bed.nic.flaps()
    bed.confine = confine
    assert bed.look() == [TakenUp("nic")]
    bed.confine = lambda: None
    assert bed.look() == [TakenUp("nic")]
    assert {300, 301, 302, 303} <= bed.observed
    assert bed.look() == []


def test_a_queue_that_we_moved_is_no_news(bed: Bed) -> None:
    bed.nic.set_queue_cpu(1, 3)
    bed.session.watch.queue_moved(1, 3)
    assert bed.look() == []
    assert bed.log.after(0, 9) == []


def test_a_queue_that_another_program_moved_is_news(bed: Bed) -> None:
    bed.nic.set_queue_cpu(1, 3)
    assert bed.look() == [TakenUp("nic")]
