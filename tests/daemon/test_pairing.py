# SPDX-License-Identifier: GPL-2.0-or-later
"""`Pairing` without a daemon: when it counts, who gets which answer, where it has names from."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import pytest

from atfnd.daemon import pairing
from atfnd.daemon.pairing import Pairing
from atfnd.daemon.session import Sessions
from atfnd.model import Distance, ForwardedCount
from atfnd.observe.nics.forwarded import namespace
from tests.diagnose.machines import topology
from tests.values import NIC
from tests.wait import until

T = TypeVar("T")

OURS = namespace(None)
QUEUES = tuple(replace(queue, cpu=queue.index + 4) for queue in NIC.queues[:2])
INGRESS = replace(NIC, name="eth2", netns=None, ifindex=900_002, queues=QUEUES)
VIEW = replace(NIC, name="eth1", netns=None, ifindex=900_001, queues=QUEUES)
COUNT = ForwardedCount(OURS, 900_002, 900_001, 1, 4, 1_000, 64_000)
ELSEWHERE = COUNT._replace(egress_ifindex=900_003, packets=5_000)
LATER = COUNT._replace(cpu=7)  # not from the beginning


class Counter:
    """In place of BPF; `made` of them in all, `open` now. From one reading to the next the same
    comes."""

    made = open = 0
    refuses = 0
    threads: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        Counter.threads.add(threading.get_ident())
        if Counter.refuses:
            raise OSError(Counter.refuses, os.strerror(Counter.refuses))
        self.readings = 0
        Counter.made += 1
        Counter.open += 1

    def read(self) -> list[ForwardedCount]:
        Counter.threads.add(threading.get_ident())
        self.readings += 1
        every = [COUNT, ELSEWHERE, *([LATER] if self.readings > 1 else [])]
        return [
            each._replace(packets=each.packets * self.readings, bytes=each.bytes * self.readings)
            for each in every
        ]

    def missed(self) -> int:
        return 3 * self.readings

    def close(self) -> None:
        Counter.threads.add(threading.get_ident())
        Counter.open -= 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Pairing:
    Counter.made = Counter.open = Counter.refuses = 0
    Counter.threads = set()
    monkeypatch.setattr(pairing, "ForwardedPackets", Counter)
    monkeypatch.setattr(pairing, "EVERY_S", 0.01)
    part: Any = SimpleNamespace
    sessions: Sessions = {"eth1": part(view=VIEW), "eth2": part(view=INGRESS)}
    whys = {("eth2", "eth1"): ("gateway", "they are together")}
    engine = part(why_forwarded=lambda *pair: whys.get(pair))
    return Pairing(sessions, part(known=topology), engine)


@asynccontextmanager
async def kept(asked: Pairing) -> AsyncGenerator[None]:
    """As the daemon does all its life."""
    task = asyncio.ensure_future(asked.keep())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def comes(what: Callable[[], bool], about: str) -> None:
    await asyncio.to_thread(until, what, about)


def run(work: Awaitable[T]) -> T:
    async def whole() -> T:
        return await work

    return asyncio.run(whole())


def test_pairs_have_names_and_the_cpu_of_their_queues(asked: Pairing) -> None:
    found = run(asked.pairs(None, 0.01))
    far, later, near = found.pairs
    assert (far.ingress, far.egress, far.tx_cpu) == ("eth2", "interface 900003", None)
    assert far.distance is None
    assert (later.ingress, later.rx_queue, later.cpu) == ("eth2", None, 7)  # it has none there
    assert (near.rx_queue, near.egress, near.tx_queue, near.tx_cpu) == (0, "eth1", 1, 5)
    assert near.cpu == 4
    assert near.distance is Distance.CORE
    assert near.packets_pps == pytest.approx(1_000 / found.seconds)
    assert near.bytes_per_s == pytest.approx(64_000 / found.seconds)
    assert (near.rule, near.why) == ("gateway", "they are together")
    assert (far.rule, far.why) == (None, None)
    assert (found.why_not, found.missed) == (None, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"rps-cpus:0": "1-2", "rps-cpus:1": ""}},
        {"queues": tuple(replace(queue, cpu=4) for queue in NIC.queues[:2])},
    ],
    ids=["RPS", "two queues on the CPU"],
)
def test_a_receive_queue_is_named_only_where_it_is_known(
    asked: Pairing, changes: dict[str, Any]
) -> None:
    sessions: Any = asked._sessions
    sessions["eth2"].view = replace(INGRESS, **changes)
    near = run(asked.pairs("eth1", 0.01)).pairs[-1]
    assert (near.ingress, near.cpu, near.rx_queue) == ("eth2", 4, None)


def test_a_kernel_that_refuses_is_named(asked: Pairing) -> None:
    Counter.refuses = errno.EPERM
    found = run(asked.pairs(None, 60))
    assert found.why_not == "the kernel refuses the program: Operation not permitted"
    assert found.pairs == ()

    async def goes_on() -> None:
        async with kept(asked):
            asked.want("a rule")
            await comes(lambda: asked.latest() == found, "the refusal is known")

    run(goes_on())


def test_it_counts_while_a_rule_wants_it(asked: Pairing) -> None:
    async def ruled() -> None:
        async with kept(asked):
            assert asked.latest().why_not is not None
            asked.want("a rule")
            await comes(lambda: asked.latest().why_not is None, "there are pairs")
            near = asked.latest("eth1").pairs[-1]
            assert (near.egress, near.packets) == ("eth1", 1_000)  # of one interval
            totals = asked.totals()
            assert totals is not None
            await comes(lambda: sum_of(asked) > 20_000, "it goes on")
            asked.release("a rule")
            await comes(lambda: not Counter.open, "it is detached")
            await comes(lambda: asked.totals() is None, "nothing is shown any more")
            assert asked.latest().pairs == ()

    run(ruled())
    assert Counter.made == 1


def sum_of(asked: Pairing) -> int:
    totals = asked.totals()
    return 0 if totals is None else totals.by_distance.get(Distance.CORE, 0)


def test_it_ends_when_no_reader_has_asked_for_long(asked: Pairing) -> None:
    async def read() -> None:
        async with kept(asked):
            asked.want("a reader", 0.2)
            await comes(lambda: asked.latest().why_not is None, "there are pairs")
            await comes(lambda: not Counter.open, "it is detached")

    run(read())


def test_the_loop_never_waits_for_the_kernel(asked: Pairing) -> None:
    async def read() -> None:
        async with kept(asked):
            asked.want("a reader", math.inf)
            await comes(lambda: asked.latest().why_not is None, "there are pairs")

    run(read())
    assert Counter.open == 0
    assert len(Counter.threads) == 1
    assert threading.get_ident() not in Counter.threads
