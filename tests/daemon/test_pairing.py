# SPDX-License-Identifier: GPL-2.0-or-later
"""`Pairing` without a daemon: when it counts, who gets which answer, where it has names from."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon import pairing
from atfnd.daemon.pairing import Pairing
from atfnd.daemon.session import Sessions
from atfnd.model import Distance, ForwardedCount
from atfnd.observe.nics.forwarded import namespace
from tests.machines import topology
from tests.values import NIC
from tests.wait import until

__all__: list[str] = []

OURS = namespace(None)
QUEUES = tuple(replace(queue, cpu=queue.index + 4) for queue in NIC.queues[:2])
VIEW = replace(NIC, name="eth1", netns=None, ifindex=900_001, queues=QUEUES)
COUNT = ForwardedCount(OURS, 900_002, 900_001, 1, 4, 1_000, 64_000)
ELSEWHERE = COUNT._replace(egress_ifindex=900_003, packets=5_000)


class Counter:
    """In place of BPF; `made` of them in all, `open` now."""

    made = open = 0
    refuses = 0

    def __init__(self) -> None:
        if Counter.refuses:
            raise OSError(Counter.refuses, os.strerror(Counter.refuses))
        Counter.made += 1
        Counter.open += 1

    def read(self) -> list[ForwardedCount]:
        return [COUNT, ELSEWHERE]

    def missed(self) -> int:
        return 3

    def close(self) -> None:
        Counter.open -= 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Pairing:
    Counter.made = Counter.open = Counter.refuses = 0
    monkeypatch.setattr(pairing, "ForwardedPackets", Counter)
    part: Any = SimpleNamespace
    sessions: Sessions = {"eth1": part(view=VIEW)}
    return Pairing(sessions, part(known=topology))


def test_pairs_have_names_and_the_cpu_of_their_tx_queue(asked: Pairing) -> None:
    found = asyncio.run(asked.pairs(None, 0.01))
    far, near = found.pairs
    assert (far.ingress, far.egress, far.tx_cpu) == ("interface 900002", "interface 900003", None)
    assert far.distance is None
    assert (near.egress, near.tx_queue, near.cpu, near.tx_cpu) == ("eth1", 1, 4, 5)
    assert near.distance is Distance.CORE
    assert near.packets_pps == pytest.approx(1_000 / found.seconds)
    assert near.bytes_per_s == pytest.approx(64_000 / found.seconds)
    assert (found.why_not, found.missed) == (None, 3)
    assert Counter.open == 0


def test_only_what_passes_this_interface(asked: Pairing) -> None:
    found = asyncio.run(asked.pairs("eth1", 0.01))
    assert [each.egress for each in found.pairs] == ["eth1"]


def test_who_asks_meanwhile_gets_the_same_count(asked: Pairing) -> None:
    async def both() -> None:
        one, other = await asyncio.gather(asked.pairs(None, 0.01), asked.pairs("eth1", 60))
        assert one.seconds == other.seconds
        await asked.pairs(None, 0.01)

    asyncio.run(both())
    assert Counter.made == 2


def test_a_kernel_that_refuses_is_named(asked: Pairing) -> None:
    Counter.refuses = errno.EPERM
    found = asyncio.run(asked.pairs(None, 60))
    assert found.why_not == "the kernel refuses the program: Operation not permitted"
    assert found.pairs == ()


def test_a_count_ends_with_the_daemon(asked: Pairing) -> None:
    async def stops() -> None:
        waiting = asyncio.ensure_future(asked.pairs(None, 20))
        await asyncio.to_thread(until, lambda: Counter.open, "it counts")
        asked.close()
        assert (await waiting).seconds < 20

    asyncio.run(stops())
    assert Counter.open == 0
