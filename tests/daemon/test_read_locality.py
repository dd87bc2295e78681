# SPDX-License-Identifier: GPL-2.0-or-later
"""Read locality of a running daemon, over a lab NIC: exact bytes, armed and not.

The test's own thread reads from sockets whose ports are chosen by where RSS delivers them.
"""

from __future__ import annotations

import itertools
import socket
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import FlowKey, Protocol
from tests.applications import rss_cpu
from tests.bed import a_bed
from tests.daemons import Daemon
from tests.labs import HOST, PEER, Lab, packed
from tests.observe.observing import RIGHT, WRONG, Pair, lockstep, on_cpu
from tests.wait import until

SIZE = 1000
LEFT = (
    "version: 1\nflows: [{ name: all, match: { protocol: [tcp, udp, sctp] }, placement: leave }]\n"
)

pytestmark = pytest.mark.usefixtures("own_affinity")
_ports = itertools.count(33000)


def by_rss(lab: Lab, cpu: int) -> Pair:
    """Connected UDP sockets whose packets RSS delivers on this CPU."""
    local, remote = packed(HOST[socket.AF_INET]), packed(PEER[socket.AF_INET])
    keys = (FlowKey(Protocol.UDP, local, port, remote, port) for port in _ports)
    key = next(each for each in keys if rss_cpu(lab, each) == cpu)
    return lab.udp_pair(socket.AF_INET, key.remote_port, key.local_port)


def test_read_locality_is_what_was_read_armed_and_not(lab: Lab, tmp_path: Path) -> None:
    """To the byte: nothing, all right and half right by RSS alone; then armed, then not again."""
    daemon, name = Daemon(tmp_path, LEFT), lab.nic.name
    on_cpu(RIGHT)
    right, wrong = by_rss(lab, RIGHT), by_rss(lab, WRONG)

    def counted(local: int, remote: int) -> Any:
        """What was read since the start, once the daemon has counted so much."""

        def said() -> Any:
            (reads,) = daemon.status()["reads"]
            sums = (reads["armed"][w] + reads["unarmed"][w] for w in ("local", "remote"))
            return reads if tuple(sums) == (local * SIZE, remote * SIZE) else None

        return until(said, f"{local} and {remote} messages are counted", 30)

    try:
        daemon.start("--nic", name)
        assert daemon.status()["locality"] is None
        assert counted(0, 0)["unarmed"]["locality"] is None
        lockstep(*right, times=3, size=SIZE)
        assert counted(3, 0)["unarmed"]["locality"] == 1
        assert daemon.status()["locality"] == 1
        lockstep(*wrong, times=3, size=SIZE)
        assert counted(3, 3)["unarmed"]["locality"] == 0.5
        lockstep(*wrong, times=2, size=SIZE)
        daemon.post(f"/v1/nics/{name}/arm")
        lockstep(*right, times=7, size=SIZE)
        lockstep(*wrong, times=2, size=SIZE)
        daemon.post(f"/v1/nics/{name}/disarm")
        lockstep(*wrong, times=4, size=SIZE)
        reads = counted(10, 11)
        assert reads["armed"] == {
            "local": 7 * SIZE, "remote": 2 * SIZE, "unseen": 0, "locality": 7 / 9
        }  # fmt: skip
        assert (reads["unarmed"]["local"], reads["unarmed"]["remote"]) == (3 * SIZE, 9 * SIZE)
    finally:
        daemon.reap()


def test_it_agrees_with_what_is_said_of_each_flow(lab: Lab, tmp_path: Path) -> None:
    """Of flows that RSS delivers right, then wrong; nobody steers them."""
    with a_bed(lab, tmp_path, "bpf") as bed:
        apps = [bed.apps.tcp(by_rss=True) for _ in range(3)]
        bed.start(arm=False)
        until(lambda: bed.daemon.status()["locality"] == 1.0, "all is read where it arrives")
        assert all(row["placed"] is not False for row in bed.daemon.flows())
        for app in apps:
            app.migrate()
            bed.row(app, lambda row: row["placed"] is False, "arrives on another CPU")
        until(lambda: bed.daemon.status()["locality"] < 1.0, "it is not said any more")
