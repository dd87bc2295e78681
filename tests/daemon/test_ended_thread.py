# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread that has ended is not named as the user of a socket that lives on."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

from atfnd.model import FlowKey, Protocol
from tests.applications import rss_cpu
from tests.daemons import Daemon
from tests.labs import Lab, key_of
from tests.observe.observing import RIGHT, lockstep, on_cpu
from tests.wait import until

__all__: list[str] = []


def test_a_thread_that_ends_is_named_no_more(lab: Lab, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    ports = range(34000, 35000)
    pairs = (lab.udp_pair(socket.AF_INET, port, port) for port in ports)
    pair, key = next(
        (pair, key)
        for pair in pairs
        for key in [FlowKey(*key_of(pair[1], Protocol.UDP))]
        if rss_cpu(lab, key) != RIGHT
    )
    said: list[int | None] = []

    def tid() -> int | None:
        row: Any = daemon.flow(key)
        return None if row is None else row["tid"]

    def work() -> None:
        on_cpu(RIGHT)

        def named() -> bool:
            lockstep(*pair)
            return tid() == threading.get_native_id()

        until(named, "the thread is named", 30)
        said.append(threading.get_native_id())

    try:
        daemon.start("--nic", lab.nic.name)
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        assert said, "the worker failed"
        assert daemon.flow(key) is not None
        until(lambda: tid() is None, "nobody is named", 30)
        assert daemon.flow(key) is not None
    finally:
        daemon.reap()
