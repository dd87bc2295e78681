# SPDX-License-Identifier: GPL-2.0-or-later
"""A bug in the loop ends it, whoever called."""

from __future__ import annotations

import asyncio
import socket

import pytest

from atfnd.chores import bugs, regularly


def _boom() -> None:
    raise ZeroDivisionError("a bug")


def test_a_bug_in_a_reader_is_raised() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        bug = bugs(loop)
        here, there = socket.socketpair()
        with here, there:
            loop.add_reader(here, _boom)
            there.send(b"x")
            try:
                await asyncio.wait_for(bug, 10)
            finally:
                loop.remove_reader(here)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_a_bug_in_a_timer_is_raised() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        bug = bugs(loop)
        loop.call_soon(_boom)
        await asyncio.wait_for(bug, 10)

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
