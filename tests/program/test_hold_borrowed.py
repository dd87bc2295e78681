# SPDX-License-Identifier: GPL-2.0-or-later
"""A queue that has borrowed its thread is held once no softirq of another CPU can poll it."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from atfnd.model import Queue
from atfnd.observe.sockets.transit import HoldEnd, HoldResult, Transit
from atfnd.program.quiesce import QueueHold

HELD, OTHER = sorted(os.sched_getaffinity(0))[:2]
LIMIT_NS = 10**9


class Polls(Transit):
    """The NAPI of a queue: `idle`, or its last poll ended on this CPU so long ago."""

    def __init__(self, cpu: int | None = None, ago_ns: int = 0) -> None:
        self._cpu, self._ago_ns = cpu, ago_ns

    def idle(self, napi_id: int) -> bool:
        return self._cpu is None

    def polled(self, napi_id: int) -> tuple[int, int] | None:
        assert self._cpu is not None
        return time.monotonic_ns() - self._ago_ns, self._cpu

    def quiesce(
        self,
        napis_a: tuple[int, ...],
        napi_b: int,
        cpu: int,
        priority: int,
        ready_ns: int,
        until_ns: int,
    ) -> int:
        return time.monotonic_ns()

    def resume(self, napi_b: int) -> HoldResult:
        return HoldResult(HoldEnd.RELEASED, 0, 0, None, False, ())


class Unpolled(Polls):
    def polled(self, napi_id: int) -> tuple[int, int] | None:
        return None


@pytest.fixture
def queue() -> Iterator[Queue]:
    """Its thread, confined to one CPU, is borrowed."""
    with subprocess.Popen(["tail", "-f", "/dev/null"]) as thread:
        os.sched_setaffinity(thread.pid, {HELD})
        try:
            yield Queue(0, 7, 40, HELD, threaded=True, pid=thread.pid, borrowed=True)
        finally:
            thread.kill()


def hold(transit: Transit, queue: Queue) -> None:
    QueueHold(transit, (), queue, time.monotonic_ns() + LIMIT_NS).release()


def test_it_is_held_when_it_is_idle_or_polled_on_its_cpu(queue: Queue) -> None:
    hold(Polls(), queue)
    hold(Polls(HELD), queue)
    hold(Polls(OTHER), replace(queue, borrowed=False))  # of a thread of its own nothing is asked


@pytest.mark.parametrize("polls", [Polls(OTHER), Polls(HELD, ago_ns=10**9), Unpolled(HELD)])
def test_it_is_not_held_while_another_cpu_may_poll_it(queue: Queue, polls: Polls) -> None:
    with pytest.raises(OSError, match=f"queue 0 is not seen to be polled on CPU {HELD}") as refusal:
        hold(polls, queue)
    assert refusal.value.errno == errno.EAGAIN
