# SPDX-License-Identifier: GPL-2.0-or-later
"""`Translating` without a daemon: what it reports to the engine, at which cost, and which refusals
it takes."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from atfnd.daemon import translating
from atfnd.daemon.chores import Pace
from atfnd.daemon.translating import Carried, Translating, tracked
from atfnd.engine.event import TranslatedLooked
from atfnd.model import FlowKey, Protocol, TranslatedFlow
from tests.values import NIC

__all__: list[str] = []

PACE = Pace(every_s=0, share=1e9)  # no rest that a test would notice
WHERE = {b"\x0a\0\0\1": 11, b"\x08\x08\x08\x08": 12}  # interface by the source of packets


def going(number: int, carried: int | None) -> TranslatedFlow:
    original = FlowKey(Protocol.TCP, b"\x08\x08\x08\x08", 443, b"\x0a\0\0\1", number)
    reply = FlowKey(Protocol.TCP, b"\xc0\0\2\1", number, b"\x08\x08\x08\x08", 443)
    return TranslatedFlow(original, reply, carried, None if carried is None else 0)


class Kernel:
    """In place of a namespace's conntrack and routes."""

    flows: ClassVar[list[TranslatedFlow]] = []
    refuses = open = reads = 0

    def __init__(self, netns: str | None) -> None:
        if Kernel.refuses:
            raise OSError(Kernel.refuses, os.strerror(Kernel.refuses))
        Kernel.open += 1

    def close(self) -> None:
        Kernel.open -= 1

    def read(self, least_bytes: int) -> Iterator[list[TranslatedFlow]]:
        for each in Kernel.flows:
            Kernel.reads += 1
            yield [each]

    def find(self, key: FlowKey) -> TranslatedFlow | None:
        return next((each for each in Kernel.flows if each.original == key), None)

    def ingress(self, key: FlowKey) -> int | None:
        return WHERE.get(key.remote)


class Daemon:
    """The parts around it."""

    def __init__(self) -> None:
        part: Any = SimpleNamespace
        self.reported: list[TranslatedLooked] = []
        self.said: list[str] = []
        self.known: dict[int, TranslatedFlow] = {}
        self.policy = part(translates=lambda: True)
        self.cpu = part(over=False)
        table = part(of_cookie=lambda cookie: [part(nic="lan")])
        sessions: Any = {
            name: part(view=replace(NIC, ifindex=ifindex), watch=part(nic=part(netns=None)))
            for name, ifindex in (("lan", 11), ("wan", 12))
        }
        self.translating = Translating(
            part(translated=lambda: self.known, memory=part(table=table, cpu=self.cpu)),
            part(take=self.reported.append),
            sessions,
            part(policy=self.policy),
            part(add=lambda kind, what, why: self.said.append(why)),
            part(take=lambda error: error.errno == errno.EMFILE),
        )

    def look(self, times: int = 1, pace: Pace = PACE) -> None:
        """Each time, all is read to the end."""

        async def looks() -> None:
            self.translating._pace = pace
            for _ in range(times):
                await self.translating.look()
                if self.translating._reading is not None:
                    await self.translating._reading

        asyncio.run(looks())


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    Kernel.flows, Kernel.refuses, Kernel.open, Kernel.reads = [], 0, 0, 0
    monkeypatch.setattr(translating, "NamespaceTranslations", Kernel)
    monkeypatch.setattr(translating, "_LOOKS", 1)
    seconds = itertools.count(1_000_000_000, 1_000_000_000)  # between two parts
    clock: Any = SimpleNamespace(monotonic_ns=lambda: next(seconds), thread_time=time.thread_time)
    monkeypatch.setattr(translating, "time", clock)
    yield Daemon()
    assert Kernel.open == 0


def test_what_it_carries_is_known_from_two_readings(daemon: Daemon) -> None:
    Kernel.flows = [going(1, 1_000_000), going(2, 5_000_000)]
    daemon.look(2)
    assert daemon.reported == []
    Kernel.flows = [going(1, 4_000_000), going(2, 6_000_000), going(3, 9_000_000)]
    daemon.look(2)
    found = daemon.reported[-1].found
    assert [each.flow for each in found] == [going(1, 4_000_000), going(2, 6_000_000)]
    first, second = (each.bytes_per_s for each in found)
    assert first is not None
    assert second is not None
    assert first > second > 0
    assert {(each.ingress, each.egress) for each in found} == {("lan", "wan")}


def test_all_is_read_less_often_than_those_that_are_steered(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translating, "_LOOKS", 3)
    daemon.known, Kernel.flows = {1: going(1, 0)}, [going(1, 1_000_000)]
    daemon.look(6)
    assert (Kernel.reads, len(daemon.reported)) == (2, 6)


def test_only_the_first_of_many_are_candidates(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translating, "_FOUND", 3)
    Kernel.flows = [going(number, 1_000_000) for number in range(9)]
    daemon.look()
    Kernel.flows = [going(number, 2_000_000 + number * 1_000_000) for number in range(9)]
    daemon.look(2)
    assert [each.flow.original.remote_port for each in daemon.reported[-1].found] == [8, 7, 6]


def test_no_more_is_remembered_than_there_is_room_for(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translating, "_REMEMBERED", 2)
    Kernel.flows = [going(number, 1_000_000) for number in range(9)]
    daemon.look()
    assert len(daemon.translating._before) == 2


def test_it_rests_after_each_part_as_long_as_its_share_asks(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    ticks = iter(range(10_000))
    part: Any = SimpleNamespace
    fake = part(sleep=sleep, ensure_future=asyncio.ensure_future)
    monkeypatch.setattr(translating, "asyncio", fake)
    clock = part(thread_time=lambda: next(ticks) / 1000, monotonic_ns=lambda: 1)
    monkeypatch.setattr(translating, "time", clock)
    Kernel.flows = [going(number, 1_000_000) for number in range(5)]
    daemon.look(pace=Pace(share=0.0005))
    assert rests == pytest.approx([0.001 / 0.005] * 5)


def test_it_waits_while_the_daemon_is_short_of_cpu_time(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        daemon.cpu.over = daemon.cpu.over and len(waits) < 4

    fake: Any = SimpleNamespace(sleep=sleep, ensure_future=asyncio.ensure_future)
    monkeypatch.setattr(translating, "asyncio", fake)
    daemon.cpu.over = True
    Kernel.flows = [going(1, 1_000_000)]
    daemon.look()
    assert waits[1:] == [1, 1, 1]


def test_those_that_are_steered_are_looked_up(daemon: Daemon) -> None:
    daemon.known = {1: going(1, 0), 2: going(2, 0), 3: going(3, 0)}
    other = going(3, 7)._replace(reply=going(9, 7).reply)
    Kernel.flows = [going(1, 5), other]  # the second has ended, the third is another one now
    daemon.look()
    known = daemon.reported[-1].known
    assert known[1] is not None
    assert (known[1].flow, known[1].bytes_per_s) == (going(1, 5), None)
    assert (known[2], known[3]) == (None, None)
    Kernel.flows = [going(1, 50)]
    daemon.look()
    again = daemon.reported[-1].known[1]
    assert again is not None
    assert (again.bytes_per_s or 0) > 0


def test_nothing_is_read_that_nobody_wants(daemon: Daemon) -> None:
    daemon.policy.translates = lambda: False
    daemon.look(2)
    assert (Kernel.reads, daemon.reported) == (0, [])
    daemon.translating._before[None, going(1, 0).original] = Carried(1, 1)
    daemon.look()
    assert daemon.translating._before == {}
    daemon.known = {1: going(1, 0)}  # the policy before wanted it: until its filter is gone
    Kernel.flows = [going(1, 5)]
    daemon.look()
    assert (Kernel.reads, len(daemon.reported)) == (0, 1)


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.ENOENT])
def test_a_kernel_without_conntrack_is_named_once_and_nothing_ends(
    daemon: Daemon, refusal: int
) -> None:
    daemon.known = {1: going(1, 0)}
    Kernel.refuses = refusal
    daemon.look(3)
    assert daemon.said == [os.strerror(refusal)]
    assert all(dict(each.known) == {} for each in daemon.reported)


def test_a_shortage_is_none(daemon: Daemon) -> None:
    Kernel.refuses = errno.EMFILE
    daemon.look(2)
    assert daemon.said == []
    Kernel.refuses = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        daemon.look()


def test_connections_without_counters_are_named(daemon: Daemon) -> None:
    Kernel.flows = [going(1, None)]
    daemon.look(3)
    assert daemon.said == ["conntrack counts no bytes (sysctl net.netfilter.nf_conntrack_acct=1)"]
    Kernel.flows = [going(1, None), going(2, 5)]  # that one began later
    daemon.look()
    assert len(daemon.said) == 1


def test_some_connections_without_counters_are_nothing_to_say(daemon: Daemon) -> None:
    Kernel.flows = [going(1, None), going(2, 5)]
    daemon.look(3)
    assert daemon.said == []


def test_a_burst_counts_half() -> None:
    now = Carried(4_000, 4_000_000_000)
    assert now.smoothed(Carried(1_000, 1_000_000_000), None) == 1_000
    assert now.smoothed(Carried(1_000, 1_000_000_000), 3_000) == 2_000
    assert now.smoothed(None, 3_000) is None
    assert now.smoothed(Carried(9_000, 1_000_000_000), 3_000) is None  # counters began anew


def test_what_filters_were_left_for_is_found_by_their_tuples(daemon: Daemon) -> None:
    Kernel.flows = [going(1, 5), going(2, 5)]
    keys = [going(1, 0).original, going(9, 0).original]
    assert tracked(None, keys) == (going(1, 5),)
    Kernel.refuses = errno.EPERM
    assert tracked(None, keys) == ()
