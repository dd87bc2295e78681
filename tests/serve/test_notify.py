# SPDX-License-Identifier: GPL-2.0-or-later
"""What the service manager hears, by the one that listens: a datagram socket of ours."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest

from atfnd.daemon.chores import Rounds, Shortage
from atfnd.serve.log.event_log import EventLog
from atfnd.serve.notify import Notify

Said = dict[str, str]


class Manager:
    """Listens where NOTIFY_SOCKET says."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.setblocking(False)
        self.all: list[Said] = []

    def said(self) -> list[Said]:
        """Everything so far, a message each."""
        while True:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                return self.all
            self.all.append(dict(line.split("=", 1) for line in data.decode().split("\n")))

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("abstract", [False, True])
def test_messages(tmp_path: Path, abstract: bool) -> None:
    manager = Manager(f"@atfnd-test-{os.getpid()}" if abstract else str(tmp_path / "there"))
    notify = Notify(manager.address, 60.0)
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notify.ready("two\nlines")
    notify.reloading()
    notify.alive("well")
    notify.stopping(restoring=False)
    ready, reloading, alive, stopping = manager.said()
    assert ready == {"READY": "1", "STATUS": "two lines"}
    assert reloading["RELOADING"] == "1"
    assert before_us <= int(reloading["MONOTONIC_USEC"])
    assert alive == {"WATCHDOG": "1", "STATUS": "well"}
    assert stopping["STOPPING"] == "1"
    manager.close()


@pytest.mark.parametrize(
    ("given", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "12000000"}, 12.0),
        ({"WATCHDOG_USEC": "12000000", "WATCHDOG_PID": str(os.getpid())}, 12.0),
        ({"WATCHDOG_USEC": "12000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_what_the_environment_says(given: dict[str, str], watchdog_s: float | None) -> None:
    environment = given | {"NOTIFY_SOCKET": "/nowhere", "HOME": "/root"}
    notify = Notify.of(environment, EventLog())
    assert (notify.address, notify.watchdog_s) == ("/nowhere", watchdog_s)
    assert environment == {"HOME": "/root"}


def test_a_manager_that_does_not_listen_is_reported_and_none_is_not(tmp_path: Path) -> None:
    log = EventLog()
    Notify.of({}, log).ready("well")
    assert log.after(0, 10) == []
    Notify(str(tmp_path / "nobody"), None, log).ready("well")
    (event,) = log.after(0, 10)
    assert (event.kind, event.why) == ("notify", "No such file or directory")
    assert "READY=1" in event.what


@pytest.mark.parametrize("stuck", [False, True])
def test_a_chore_that_stands_still_ends_the_signs_of_life(stuck: bool) -> None:
    """The loop still turns, and another chore runs on."""
    rounds: list[int] = []

    async def run() -> None:
        ran = asyncio.Semaphore(0)
        each = Rounds(lambda: rounds.append(1), 0.03, Shortage(print))
        if stuck:
            each.part()
        task = asyncio.ensure_future(each.regularly(ran.release))
        for _ in range(5):
            await ran.acquire()
        task.cancel()

    asyncio.run(run())
    assert len(rounds) == (0 if stuck else 5)
