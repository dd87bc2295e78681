# SPDX-License-Identifier: GPL-2.0-or-later
"""What an observer reports of sockets: in whose turn it is decided on, at what cost, and what is
looked at again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import SocketSeen, SocketUse
from atfnd.observe import Observation
from tests.daemon.simulated import Simulated, simulated, text_of
from tests.simulation.machine import WorldObserver
from tests.values import THREAD, seen


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Simulated]:
    """A NIC that is not armed: flows are entered, and nothing is written."""
    with simulated(tmp_path, text=text_of(armed=False)) as made:
        yield made


def known(bed: Simulated) -> list[int]:
    """The cookies of the table, in the order in which they came."""
    return [flow.cookie for flow in bed.service.engine.memory.table]


def reported(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch, *batches: list[SocketSeen]
) -> tuple[list[int], int]:
    """The observer reports these, one at a time. Returns what is known after one wake-up, and how
    many wait."""
    waiting = list(batches)
    monkeypatch.setattr(WorldObserver, "drain", lambda _: waiting.pop(0) if waiting else [])
    every = [each for batch in batches for each in batch]
    uses = [SocketUse(each.cookie, each.key, 2, each.napi_id, 1, 1) for each in every]
    monkeypatch.setattr(WorldObserver, "audit", lambda _: uses)

    async def wakes_up() -> tuple[list[int], int]:
        bed.daemon._sockets.read()
        return known(bed), len(waiting)

    found: tuple[list[int], int] = bed.answer(wakes_up())
    return found


def by_user(bed: Simulated, uid: int, numbers: range) -> list[SocketSeen]:
    thread = replace(THREAD, tid=100 + uid, pid=100 + uid, uid=uid)
    napi_id = bed.here[0].rings[1].napi_id
    return [seen(number, 2, napi_id=napi_id, thread=thread) for number in numbers]


def test_a_user_with_many_sockets_does_not_keep_another_from_his_turn(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [*by_user(bed, 1, range(1, 400)), *by_user(bed, 2, range(500, 501))]
    at_once, _ = reported(bed, monkeypatch, many)
    assert at_once[:2] == [1001, 1500]
    assert len(at_once) < 400
    bed.until(lambda: len(known(bed)) == 400)


def test_a_long_burst_is_read_in_parts(bed: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work gets its turn between them."""
    batches = (by_user(bed, 1, range(n, n + 1)) for n in range(1, 20))
    assert reported(bed, monkeypatch, *batches)[1] == 19 - 16


def test_where_a_look_costs_more_than_may_be_spent_one_has_its_turn_a_second(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each socket counts what was reported last."""
    drain = WorldObserver.drain

    def costly(observer: WorldObserver) -> list[Observation]:
        bed.daemon._sockets._looked_ns = 1e12
        return drain(observer)

    monkeypatch.setattr(WorldObserver, "drain", costly)
    for cpu in (1, 2, 3):
        bed.opens(cpu=cpu)
    counts = list[int]()
    for _ in range(50):
        bed.goes_on(0.1)
        counts.append(len(known(bed)))
    assert [counts.index(count) // 10 for count in (1, 2, 3)] == sorted(
        {counts.index(count) // 10 for count in (1, 2, 3)}
    )


def test_after_lost_events_every_socket_is_read_again_and_that_is_said_once(
    bed: Simulated,
) -> None:
    [observer] = bed.machine.observers
    observer.losing = 1
    bed.opens()
    bed.goes_on(5)
    assert bed.daemon._sockets.resyncs == 1
    [event] = bed.said("lost")
    assert event.what == "1 events lost"


@pytest.mark.parametrize("exists", [True, False])
def test_a_socket_that_the_observer_has_forgotten_is_not_gone_while_it_exists(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch, *, exists: bool
) -> None:
    """It had to forget it while a report was on its way here."""
    socket = bed.opens()
    bed.until(lambda: known(bed))
    forgotten, audit = {socket.cookie}, WorldObserver.audit

    def adopt(observer: WorldObserver, cpus: Mapping[int, int]) -> None:
        forgotten.difference_update(cpus)

    monkeypatch.setattr(WorldObserver, "adopt", adopt)
    monkeypatch.setattr(
        WorldObserver, "audit", lambda it: [u for u in audit(it) if u.cookie not in forgotten]
    )
    if not exists:
        del bed.machine.sockets[socket.cookie]
    bed.goes_on()
    assert known(bed) == [socket.cookie] * exists


def test_sockets_from_before_are_counted_by_nic(bed: Simulated) -> None:
    for _ in range(2):
        bed.opens()
    bed.killed()
    [event] = bed.said("bootstrap")
    assert (event.nic, event.what) == ("eth0", "2 sockets receive through it")


def test_what_is_reported_for_a_recording_alone_is_not_decided_on(bed: Simulated) -> None:
    async def record() -> list[str]:
        return [line async for line in bed.daemon.source.recording(5.0, 1000)]

    task: Any = bed.begin(record())
    bed.goes_on(0.5)
    right, wrong = bed.opens(rss=True), bed.opens()
    bed.until(task.done)
    assert known(bed) == [wrong.cookie]
    lines = "".join(task.result())
    assert all(f"{each.cookie}" in lines for each in (right, wrong))
    bed.opens(rss=True)
    bed.goes_on()
    assert known(bed) == [wrong.cookie]
