# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC that changes under a running daemon: it comes late, flaps, is renamed, reset, unloaded, and
an admin changes its channels. Rules are never doubled, leaked, or taken from another program."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.nic.driver import open_nic
from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import Row
from tests.guest.simlab import FAULTS, MODULE, NAME, a_simlab, ethtool, sh, unloaded, wire
from tests.wait import until

__all__: list[str] = []

PERSIST = Path("/sys/module/simnic/parameters/persist")
# A driver that inserts at once: what is missing later was taken out, not dropped.
PARAMETERS = {"queues": 4, "table": 64, "drvname": "hns3", "location": "explicit"}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with a_simlab(**PARAMETERS) as lab, a_bed(lab, tmp_path_factory.mktemp("d"), "bpf") as made:
        made.daemon.start("--nic", "sim[0-9]*", "--arm", "sim[0-9]*", "--observer", "bpf")
        yield made
        made.daemon.end()


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


def listed(nic: str = NAME) -> list[int]:
    """Locations of all filters, as ethtool(8) lists them."""
    return sorted(int(n) for n in re.findall(r"^Filter: (\d+)", ethtool("-n", nic), re.MULTILINE))


def nics(bed: Bed) -> dict[str, Row]:
    return {row["nic"]: row for row in bed.daemon.get("/v1/nics")["nics"]}


def whole(bed: Bed, apps: list[Application], nic: str = NAME) -> None:
    """Every flow has exactly one rule, the table shown is the NIC's, and packets follow it."""
    for app in apps:
        bed.steered(app)
        delivered(bed.meter, app)
    rows = [bed.steered(app) for app in apps]
    assert {row["nic"] for row in rows} == {nic}
    assert sorted(row["filter"] for row in rows) == listed(nic)
    shown = bed.daemon.get(f"/v1/filters?nic={nic}")["filters"]
    assert sorted(row["location"] for row in shown) == listed(nic)


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
    assert listed() == []
    assert nics(bed)[NAME]["paused"]
    sh("ethtool", "-L", NAME, "combined", 2)
    bed.daemon.order("resume", NAME)
    until(lambda: nics(bed)[NAME]["queues"] == 2, "the daemon sees two queues", 30)
    sh("ethtool", "-L", NAME, "combined", 4)
    until(lambda: nics(bed)[NAME]["queues"] == 4, "the daemon sees four queues", 30)
    whole(bed, apps)


def test_a_ring_change(bed: Bed, apps: list[Application]) -> None:
    sh("ethtool", "-G", NAME, "rx", 512)
    until(lambda: nics(bed)[NAME]["ring_size"] == 512, "the daemon sees the new ring", 30)
    whole(bed, apps)


def test_somebody_elses_rules_are_never_touched(bed: Bed, apps: list[Application]) -> None:
    before = listed()
    ethtool("-N", NAME, "flow-type", "tcp4", "dst-port", "7", "action", "1", "loc", "3")
    foreign = ethtool("-n", NAME, "rule", "3")
    (FAULTS / "reset").write_text("keep")
    extra = bed.apps.tcp()
    bed.steered(extra)
    extra.end()
    bed.unknown(extra)
    assert listed() == sorted([*before, 3])
    assert ethtool("-n", NAME, "rule", "3") == foreign
    shown = bed.daemon.get(f"/v1/filters?nic={NAME}")["filters"]
    assert [row["location"] for row in shown if not row["ours"]] == [3]
    bed.daemon.order("pause", NAME)
    assert listed() == [3]
    bed.daemon.order("resume", NAME)
    for app in apps:
        bed.steered(app)
    ethtool("-N", NAME, "delete", "3")
    whole(bed, apps)


def test_a_filter_that_somebody_deletes_is_left_alone(bed: Bed, apps: list[Application]) -> None:
    """A moment after a reset the NIC may have lost it: then it comes back, once or more."""

    def left_alone() -> bool:
        row = bed.daemon.flow(apps[0].key)
        if row is not None and row["filter"] in listed():
            ethtool("-N", NAME, "delete", row["filter"])
        return row is not None and row["state"] == "manual"

    until(left_alone, "it is left alone", 60)
    assert len(listed()) == len(apps) - 1
    bed.daemon.order("resume", NAME)  # the way to have it back
    whole(bed, apps)


def test_it_is_renamed(bed: Bed, apps: list[Application]) -> None:
    sh("ip", "link", "set", NAME, "name", "sim9")
    until(lambda: set(nics(bed)) == {"sim9"}, "the daemon knows the new name", 60)
    assert nics(bed)["sim9"]["armed"]
    sh("ip", "link", "set", "sim9", "name", NAME)
    until(lambda: set(nics(bed)) == {NAME}, "the daemon knows the old name", 60)
    whole(bed, apps)


def test_the_driver_is_unloaded_and_comes_back(bed: Bed) -> None:
    """The sockets of a NIC that is gone are not served; those of the new one are."""
    app = bed.apps.tcp()
    bed.steered(app)
    app.end()
    until(unloaded, "simnic is unloaded", 30)
    until(lambda: not nics(bed), "the daemon releases it", 30)
    assert not bed.daemon.flows()
    sh("insmod", MODULE, *(f"{name}={value}" for name, value in PARAMETERS.items()))
    wire()
    until(lambda: NAME in nics(bed), "the daemon takes the NIC that has come", 30)
    assert nics(bed)[NAME]["armed"]
    assert bed.daemon.ctl("status").returncode == 0
    done = subprocess.run(["dmesg"], capture_output=True, text=True, check=True)
    assert not re.search(r"WARNING|BUG:|Oops", done.stdout)


def test_a_pause_outlives_the_driver(bed: Bed) -> None:
    """It is what a pause is for."""
    bed.daemon.order("pause", NAME)
    until(unloaded, "simnic is unloaded", 30)
    until(lambda: not nics(bed), "the daemon releases it", 30)
    sh("insmod", MODULE, *(f"{name}={value}" for name, value in PARAMETERS.items()))
    wire()
    until(lambda: NAME in nics(bed), "it is taken again", 60)
    assert nics(bed)[NAME]["paused"]
    bed.lab.nic.close()
    bed.lab.nic = open_nic(NAME)
    app = bed.apps.tcp()
    bed.row(app, lambda row: row["state"] == "observed", "is only observed")
    bed.daemon.order("resume", NAME)
    bed.steered(app)
