# SPDX-License-Identifier: GPL-2.0-or-later
"""A bug in the loop ends it, no matter what called."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable

import pytest

from atfnd.daemon.chores import Rounds, Shortage, bugs, regularly


def _boom() -> None:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("where", ["reader", "timer"])
def test_a_bug_in_a_reader_or_a_timer_is_raised(where: str) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        bug = bugs(loop, Shortage(print))
        here, there = socket.socketpair()
        with here, there:
            if where == "reader":
                loop.add_reader(here, _boom)
                there.send(b"x")
            else:
                loop.call_soon(_boom)
            try:
                await asyncio.wait_for(bug, 10)
            finally:
                loop.remove_reader(here)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_a_bug_in_a_chore_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(regularly(_boom))


def test_while_it_is_pressing_a_chore_that_costs_much_runs_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clocks are made up: a run costs 4 ms of CPU time, eight seconds' share."""
    slept: list[float] = []
    spent_s = iter(each for run in range(100) for each in (run, run + 0.004))

    async def sleep(seconds: float) -> None:
        if len(slept) == 5:
            raise ZeroDivisionError("enough")
        slept.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr("time.thread_time", lambda: next(spent_s))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(regularly(lambda: None, lambda: len(slept) == 3))
    assert slept == [2, pytest.approx(8), pytest.approx(8), 2, pytest.approx(8)]


@pytest.mark.parametrize(
    ("pressing", "waits_s"), [(None, [2, 2, 20, 2]), (lambda: False, [2, 2, 2, 2])]
)
def test_a_daemon_short_of_cpu_time_looks_as_seldom_as_it_may(
    monkeypatch: pytest.MonkeyPatch, pressing: Callable[[], bool] | None, waits_s: list[float]
) -> None:
    """What may be pressing keeps its pace: a trial with windows of unequal length is void."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        if len(slept) == 4:
            raise ZeroDivisionError("enough")
        slept.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    rounds = Rounds(lambda: None, None, Shortage(print), short=lambda: len(slept) == 2)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(rounds.regularly(lambda: None, pressing))
    assert slept == waits_s


def none_left() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_where_descriptors_are_exhausted_the_loop_goes_on_and_says_it_once() -> None:
    said: list[str] = []
    shortage = Shortage(said.append)
    rounds: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        bug = bugs(loop, shortage)
        for _ in range(1000):
            loop.call_soon(none_left)
        loop.call_exception_handler({"message": "accept", "exception": OSError(errno.ENFILE, "")})
        third = asyncio.Event()

        def completed() -> None:
            rounds.append(1)
            if len(rounds) == 3:
                third.set()

        chore = asyncio.ensure_future(Rounds(completed, 0.03, shortage).regularly(none_left))
        await third.wait()
        chore.cancel()
        assert not bug.done()

    asyncio.run(run())
    assert said == ["Too many open files in system"]
    assert (shortage.over(), shortage.over()) == (True, False)


def test_a_shortage_is_said_again_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    shortage, now_s = Shortage(said.append), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    for second in range(61):
        now_s[0] = float(second)
        assert shortage.take(OSError(errno.ENFILE, ""))
    assert said == [
        "Too many open files in system",
        "Too many open files in system, 60 times since the last message",
    ]
    assert not shortage.take(OSError(errno.ENODEV, ""))
    assert not shortage.take(ValueError())
