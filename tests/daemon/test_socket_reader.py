# SPDX-License-Identifier: GPL-2.0-or-later
"""`SocketReader` without a daemon: what the engine hears of the sockets that an observer reports,
in whose turn, and what is looked at again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atfnd.daemon.session import NicSession
from atfnd.engine.event import (
    AuditDue,
    QueuesLooked,
    SocketClosed,
    SocketReported,
    SocketsAudited,
)
from atfnd.model import (
    SocketGone,
    SocketSeen,
    SocketUse,
    Thread,
    ThreadReads,
)
from atfnd.model.rss_hash import rss_index
from atfnd.observe import Observation
from tests.daemon.parts import Parts, parts_of
from tests.values import THREAD, flow, key, seen

__all__: list[str] = []


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """One NIC that is not armed: flows are entered, and nothing is written."""
    with parts_of(tmp_path) as built:
        built.serve(armed=False)
        built.events.clear()
        yield built


def read(parts: Parts, *events: SocketSeen | SocketGone | ThreadReads) -> None:
    """One wake-up; what waits for a later turn is dropped."""
    parts.observer.batches.append(list(events))

    async def wake_up() -> None:
        parts.sockets.read()
        parts.sockets.close()

    asyncio.run(wake_up())


def use(number: int, **changes: Any) -> SocketUse:
    return SocketUse(1000 + number, key(number), 1, 101, 1, 1 << 20)._replace(**changes)


def reported(parts: Parts) -> list[int]:
    """Flows that the engine heard of, by number, in order."""
    events = parts.of(SocketReported)
    return [int.from_bytes(event.seen.key.remote[2:], "big") for event in events]


def by_user(uid: int) -> Thread:
    return replace(THREAD, tid=100 + uid, pid=100 + uid, uid=uid)


class TestWhatIsReported:
    def test_of_each_socket_only_its_last_event_counts(self, parts: Parts) -> None:
        read(parts, seen(1, 2, napi_id=101), seen(2, 1, napi_id=101), seen(1, 3, napi_id=101))
        last = {each.seen.cookie: each.seen.app_cpu for each in parts.of(SocketReported)}
        assert last == {1001: 3, 1002: 1}
        assert len(parts.of(SocketReported)) == 2

    def test_a_socket_with_several_peers_has_a_flow_for_each(self, parts: Parts) -> None:
        read(parts, seen(1, 2, napi_id=101), seen(2, 1, napi_id=101, cookie=1001))
        assert reported(parts) == [1, 2]

    def test_a_socket_that_has_ended_is_not_decided_on(self, parts: Parts) -> None:
        read(parts, seen(1, 2, napi_id=101), SocketGone(1, 1001))
        assert parts.of(SocketClosed) == [SocketClosed(1001)]
        assert len(parts.engine.memory.table) == 0

    def test_what_it_may_not_look_at_waits_for_the_next_reading(
        self, parts: Parts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then the last report of each socket counts."""
        descriptor = os.eventfd(0)
        monkeypatch.setattr(parts.observer, "fileno", lambda: descriptor)
        cpu, second = parts.engine.memory.cpu, 1_000_000_000
        cpu.read(0, 0)
        parts.sockets._looked_ns = second
        parts.observer.batches += [[seen(1, 2, napi_id=101)], [seen(1, 3, napi_id=101)]]

        async def wake_up() -> None:
            parts.sockets.read()
            assert reported(parts) == []
            cpu.read(0, second)
            parts.sockets.go_on()

        asyncio.run(wake_up())
        os.close(descriptor)
        assert [each.seen.app_cpu for each in parts.of(SocketReported)] == [3]

    def test_one_has_its_turn_at_each_reading(
        self, parts: Parts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where the look at all sockets costs more than may be spent."""
        descriptor = os.eventfd(0)
        monkeypatch.setattr(parts.observer, "fileno", lambda: descriptor)
        cpu, second = parts.engine.memory.cpu, 1_000_000_000
        cpu.read(0, 0)
        drain = parts.observer.drain

        def costly() -> list[Observation]:
            parts.sockets._looked_ns = second
            return list(drain())

        monkeypatch.setattr(parts.observer, "drain", costly)
        parts.observer.batches.append([seen(1, 2, napi_id=101)])

        async def readings() -> None:
            parts.sockets.read()
            parts.sockets.read()  # not now: it rests
            assert reported(parts) == []
            cpu.read(second, second)
            parts.sockets.go_on()

        asyncio.run(readings())
        os.close(descriptor)
        assert reported(parts) == [1]

    def test_where_rss_delivers_it_is_told_where_the_observer_sees_no_queue(
        self, parts: Parts
    ) -> None:
        watch = parts.sessions["nic"].watch
        watch.owns = lambda local: True  # type: ignore[method-assign]
        predicted = rss_index(parts.sessions["nic"].view, key(1))
        assert predicted is not None
        read(parts, seen(1, 2, napi_id=None))
        read(parts, seen(1, 2, napi_id=101))
        assert [each.rss_cpu for each in parts.of(SocketReported)] == [predicted, None]


class TestTurns:
    def test_a_user_with_many_sockets_does_not_keep_another_from_his_turn(
        self, parts: Parts
    ) -> None:
        many = [seen(n, 2, napi_id=101, thread=by_user(1)) for n in range(1, 400)]
        read(parts, *many, seen(500, 2, napi_id=101, thread=by_user(2)))
        assert reported(parts)[:2] == [1, 500]

    def test_what_is_not_his_turn_yet_comes_later(self, parts: Parts) -> None:
        many = [seen(n, 2, napi_id=101, thread=by_user(1)) for n in range(1, 100)]
        parts.observer.batches.append(list(many))
        at_once: list[int] = []

        async def turns() -> None:
            every = asyncio.Event()
            parts.executor.changed = lambda: every.set() if len(reported(parts)) == 99 else None
            parts.sockets.read()
            at_once.append(len(reported(parts)))
            await asyncio.wait_for(every.wait(), 30)
            parts.sockets.close()

        asyncio.run(turns())
        assert at_once[0] < 99
        assert sorted(reported(parts)) == list(range(1, 100))

    def test_a_long_burst_is_read_in_parts(self, parts: Parts) -> None:
        """Other work gets its turn between them."""
        parts.observer.batches = [[seen(n, 2, napi_id=101)] for n in range(1, 20)]
        read(parts)
        assert len(parts.observer.batches) == 20 - 16

    def test_an_observer_that_polls_is_read_once(self, parts: Parts) -> None:
        parts.observer.polls_s = 1.0
        parts.observer.batches = [[seen(n, 2, napi_id=101)] for n in range(1, 4)]
        read(parts)
        assert len(parts.observer.batches) == 3


class TestLostEvents:
    def test_every_socket_is_read_again_and_that_is_said_once(self, parts: Parts) -> None:
        read(parts, seen(1, 2, napi_id=101), seen(2, 2, napi_id=101))
        parts.observer.dropped, parts.observer.sockets = 5, [use(2)]
        read(parts)
        read(parts)
        assert parts.sockets.resyncs == 1
        assert [entry.key for entry in parts.engine.memory.table] == [key(2)]
        assert [event.what for event in parts.log.after(0, 9) if event.kind == "lost"] == [
            "5 events lost"
        ]

    def test_more_that_are_lost_are_counted_from_there(self, parts: Parts) -> None:
        for parts.observer.dropped in (5, 7):
            read(parts)
        assert parts.sockets.resyncs == 2
        assert [event.what for event in parts.log.after(0, 9)][1] == "2 events lost"


class TestAudits:
    def test_without_a_flow_no_socket_is_looked_at(self, parts: Parts) -> None:
        parts.sockets.audit()
        assert parts.of(SocketsAudited) == parts.of(AuditDue) == []
        assert len(parts.of(QueuesLooked)) == 1

    @pytest.mark.parametrize(("cookie", "stays"), [(1001, True), (77, False), (None, False)])
    def test_a_socket_that_the_observer_has_forgotten_is_not_gone_while_it_exists(
        self, parts: Parts, monkeypatch: pytest.MonkeyPatch, cookie: int | None, stays: bool
    ) -> None:
        """It had to forget it while a report was on its way here."""
        read(parts, seen(1, 2, napi_id=101), seen(2, 2, napi_id=101))
        parts.observer.reported = [use(2)]
        monkeypatch.setattr(NicSession, "socket_of", lambda session, key: cookie)

        def adopt(cpus: Mapping[int, int]) -> None:
            parts.observer.reported += [use(1)] if cpus == {1001: 2} else []

        monkeypatch.setattr(parts.observer, "adopt", adopt)
        parts.sockets.audit()
        assert (parts.engine.memory.table.get(key(1)) is not None) == stays


class TestSocketsFromBefore:
    def test_they_are_counted_by_nic(self, parts: Parts) -> None:
        parts.observer.sockets = [use(1), use(2), use(3, napi_id=999)]
        parts.sockets.bootstrap()
        [event] = parts.log.after(0, 9)
        assert (event.nic, event.what) == ("nic", "2 sockets receive through it")

    def test_sockets_without_an_entry_are_reported_again(self, parts: Parts) -> None:
        read(parts, seen(1, 2, napi_id=101))
        parts.engine.memory.table.overflowed[key(2)] = flow(2)
        parts.observer.reported = [use(1), use(2), use(3)]
        parts.sockets.forget_unknown()
        assert parts.observer.forgotten == {1003}


class TestARecording:
    def test_what_is_reported_for_it_alone_is_not_decided_on(self, parts: Parts) -> None:
        right = seen(1, 3, napi_id=103)
        assert right.rx_cpu == right.app_cpu
        with parts.recorder.asking():
            read(parts, right)
            assert parts.of(SocketReported) == []
            read(parts, seen(2, 2, napi_id=103))
            assert reported(parts) == [2]
        read(parts, right)
        assert reported(parts) == [2, 1]

    def test_a_flow_that_has_an_entry_is_decided_on(self, parts: Parts) -> None:
        read(parts, seen(1, 2, napi_id=103))
        with parts.recorder.asking():
            read(parts, seen(1, 3, napi_id=103))
        assert reported(parts) == [1, 1]
