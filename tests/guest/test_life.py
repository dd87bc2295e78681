# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC that changes under a running daemon: it comes late, flaps, is reset, unloaded, and an admin
changes its channels. Rules are never doubled or leaked. And the clock jumps."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from atfnd.nic.driver import open_nic
from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import Row
from tests.guest.filters import listed
from tests.guest.simlab import FAULTS, MODULE, NAME, a_simlab, sh, unloaded, wire
from tests.wait import until

YEAR_S = 365 * 86400
PERSIST = Path("/sys/module/simnic/parameters/persist")
# A driver that inserts at once: what is missing later was taken out, not dropped.
PARAMETERS = {"queues": 4, "table": 64, "drvname": "hns3", "location": "explicit"}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with a_simlab(**PARAMETERS) as lab, a_bed(lab, tmp_path_factory.mktemp("d"), "bpf") as made:
        begin(made)
        yield made
        assert made.daemon.end() == 0
        assert "Traceback" not in made.daemon.said()


def begin(bed: Bed) -> None:
    bed.daemon.start("--nic", "sim[0-9]*", "--arm", "sim[0-9]*", "--observer", "bpf")


@pytest.fixture
def apps(bed: Bed) -> Iterator[list[Application]]:
    """Three steered connections; afterwards nothing of ours is left of them."""
    made = [bed.apps.tcp() for _ in range(3)]
    for app in made:
        bed.steered(app)
    yield made
    for app in made:
        app.end()
    bed.unknown(*made)


def nics(bed: Bed) -> dict[str, Row]:
    return {row["nic"]: row for row in bed.daemon.get("/v1/nics")["nics"]}


def whole(bed: Bed, apps: list[Application]) -> None:
    """Every flow has exactly one rule, the table shown is the NIC's, and packets follow it."""
    for app in apps:
        bed.steered(app)
        delivered(bed.meter, app)
    rows = [bed.steered(app) for app in apps]
    assert sorted(row["filter"] for row in rows) == sorted(listed())
    shown = bed.daemon.get(f"/v1/filters?nic={NAME}")["filters"]
    assert sorted(row["location"] for row in shown) == sorted(listed())


def test_the_clock_that_can_be_set_jumps(bed: Bed, apps: list[Application]) -> None:
    """clock_settime(2): nothing is decided by it, it is only shown."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() - 10 * YEAR_S)
    try:
        apps[0].migrate()
        whole(bed, apps)
        assert 0 < bed.daemon.status()["uptime_s"] < YEAR_S
        reported = datetime.fromisoformat(bed.daemon.events()[-1]["time"])
        assert reported.year == datetime.now(reported.tzinfo).year
        before = listed()
        bed.daemon.end(signal.SIGKILL)
        begin(bed)
        assert listed() == before
        [adopted] = bed.daemon.events("adopt")
        assert adopted["what"] == "3 filters taken over, 0 orphans deleted"
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() + 10 * YEAR_S)
    apps[0].migrate()
    whole(bed, apps)
    status = bed.daemon.status()
    assert (status["events_lost"], status["resyncs"], status["table_entries"]) == (0, 0, 3)


def test_a_nic_forgets_its_rules_when_it_goes_down(bed: Bed, apps: list[Application]) -> None:
    PERSIST.write_text("ifdown")
    try:
        sh("ip", "link", "set", NAME, "down")
        until(lambda: not nics(bed)[NAME]["up"], "the daemon sees it go down", 30)
        sh("ip", "link", "set", NAME, "up")
        whole(bed, apps)
    finally:
        PERSIST.write_text("all")


@pytest.mark.parametrize("how", ["keep", "phantom"])
def test_a_reset(bed: Bed, apps: list[Application], how: str) -> None:
    """Nobody tells of it: the rules that are missing, or have no effect, do."""
    (FAULTS / "reset").write_text(how)
    whole(bed, apps)


def test_pause_gives_the_nic_back_and_resume_takes_it_up(bed: Bed, apps: list[Application]) -> None:
    bed.daemon.order("pause", NAME)
    assert listed() == {}
    assert nics(bed)[NAME]["paused"]
    sh("ethtool", "-L", NAME, "combined", 2)
    bed.daemon.order("resume", NAME)
    until(lambda: nics(bed)[NAME]["queues"] == 2, "the daemon sees two queues", 30)
    sh("ethtool", "-L", NAME, "combined", 4)
    sh("ethtool", "-G", NAME, "rx", 512)
    until(lambda: nics(bed)[NAME]["queues"] == 4, "the daemon sees four queues", 30)
    until(lambda: nics(bed)[NAME]["ring_size"] == 512, "the daemon sees the new ring", 30)
    whole(bed, apps)


def test_the_driver_is_unloaded_and_comes_back(bed: Bed) -> None:
    """The sockets of a NIC that is gone are not served; those of the new one are. A pause outlives
    the driver: it is what a pause is for."""
    app = bed.apps.tcp()
    bed.steered(app)
    app.end()
    for state in ("armed", "paused"):
        until(unloaded, "simnic is unloaded", 30)
        until(lambda: not nics(bed), "the daemon releases it", 30)
        assert not bed.daemon.flows()
        sh("insmod", MODULE, *(f"{name}={value}" for name, value in PARAMETERS.items()))
        wire()
        until(lambda: NAME in nics(bed), "the daemon takes the NIC that has come", 60)
        assert nics(bed)[NAME][state]
        if state == "armed":
            bed.daemon.order("pause", NAME)
    bed.lab.nic.close()
    bed.lab.nic = open_nic(NAME)
    app = bed.apps.tcp()
    bed.row(app, lambda row: row["state"] == "observed", "is only observed")
    bed.daemon.order("resume", NAME)
    bed.steered(app)
