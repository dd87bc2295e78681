# SPDX-License-Identifier: GPL-2.0-or-later
"""What the service manager hears, by the one that listens: a datagram socket of ours."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.daemon.chores import Rounds, Shortage
from atfnd.serve.log.event_log import EventLog
from atfnd.serve.notify import Notify
from tests.daemons import Daemon
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

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


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


def test_messages(manager: Manager) -> None:
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


def test_an_abstract_address() -> None:
    manager = Manager(f"@atfnd-test-{os.getpid()}")
    Notify(manager.address).alive("well")
    assert manager.said() == [{"STATUS": "well"}]
    manager.close()


@pytest.mark.parametrize(
    ("given", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "12000000"}, 12.0),
        ({"WATCHDOG_USEC": "12000000", "WATCHDOG_PID": str(os.getpid())}, 12.0),
        ({"WATCHDOG_USEC": "12000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_what_the_environment_says(given: dict[str, str], watchdog_s: float | None) -> None:
    environment = given | {"NOTIFY_SOCKET": "/nowhere", "HOME": "/root"}
    notify = Notify.of(environment, EventLog())
    assert (notify.address, notify.watchdog_s) == ("/nowhere", watchdog_s)
    assert environment == {"HOME": "/root"}


def test_without_a_manager_nothing_is_sent() -> None:
    log = EventLog()
    Notify.of({}, log).ready("well")
    assert log.after(0, 10) == []


def test_a_manager_that_does_not_listen_is_reported(tmp_path: Path) -> None:
    log = EventLog()
    Notify(str(tmp_path / "nobody"), None, log).ready("well")
    (event,) = log.after(0, 10)
    assert (event.kind, event.why) == ("notify", "No such file or directory")
    assert "READY=1" in event.what


@pytest.mark.parametrize("stuck", [False, True])
def test_a_chore_that_stands_still_ends_the_signs_of_life(stuck: bool) -> None:
    """The loop still turns, and another chore runs on."""
    rounds: list[int] = []
    ran: list[int] = []

    async def run() -> None:
        enough = asyncio.Event()
        each = Rounds(lambda: rounds.append(1), 0.03, Shortage(print))
        if stuck:
            each.part()

        def chore() -> None:
            ran.append(1)
            if len(ran) == 5:
                enough.set()

        task = asyncio.ensure_future(each.regularly(chore))
        await enough.wait()
        task.cancel()

    asyncio.run(run())
    assert len(rounds) == (0 if stuck else 5)


@pytest.mark.parametrize("observer", ["bpf", "sock_diag"])
def test_a_daemon_from_start_to_stop(
    lab: Lab, tmp_path: Path, manager: Manager, observer: str
) -> None:
    daemon = Daemon(tmp_path)
    reported = f"NOTIFY_SOCKET={manager.address}"
    # At its usual pace: what nobody reads in time would fill the manager's queue.
    wrapped = ("env", reported, "WATCHDOG_USEC=60000000", "ATFND_PACE=1")
    try:
        daemon.start("--nic", lab.nic.name, "--observer", observer, wrapped=wrapped)
        until(lambda: len(manager.said()) > 1, "a round is completed", 60)
        ready, alive = manager.all[:2]
        assert ready["READY"] == "1"
        assert ready["STATUS"].startswith("0 of 1 NICs armed; ")
        assert alive["WATCHDOG"] == "1"
        daemon.post(f"/v1/nics/{lab.nic.name}/arm")
        daemon.post("/v1/reload")
        first = next(i for i, said in enumerate(manager.said()) if "RELOADING" in said)
        assert any("READY" in said for said in manager.all[first + 1 :])
        daemon.config.write_text("version: 2\n")
        assert daemon.ctl("reload").returncode == 2
        refused = [said["STATUS"] for said in manager.said() if "READY" in said][-1]
        assert f"1 of 1 NICs armed: {lab.nic.name}; " in refused
        assert refused.endswith(f"policy {daemon.config}:1:10: expected 1, got `2`")
        assert daemon.end() == 0
        assert manager.said()[-1]["STOPPING"] == "1"
    finally:
        daemon.reap()
