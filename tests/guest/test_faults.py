# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC may do to us: refuse, at once or later, lose, reset, flap. Afterwards traffic flows,
the table shown is the NIC's, and a stop with `restore` leaves no filter of ours."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.guest.simlab import FAULTS, NAME, a_simlab, ethtool, sh
from tests.labs import HOST
from tests.wait import until

__all__: list[str] = []

BEFORE = "3"  # location of a rule that was there before us
DURING = "4"


def listed() -> list[int]:
    """Locations of all filters, as ethtool(8) lists them."""
    return sorted(int(n) for n in re.findall(r"^Filter: (\d+)", ethtool("-n", NAME), re.MULTILINE))


def shown(bed: Bed) -> list[int]:
    rules = bed.daemon.get(f"/v1/filters?nic={NAME}")["filters"]
    return sorted(row["location"] for row in rules)


def foreign(location: str, port: str) -> str:
    """Another program's filter, as ethtool shows it."""
    ethtool("-N", NAME, "flow-type", "tcp4", "dst-port", port, "action", "1", "loc", location)
    return ethtool("-n", NAME, "rule", location)


@contextmanager
def a_nic(folder: Path, *, arm: bool = True, **parameters: object) -> Iterator[Bed]:
    """simnic as ordered, with a rule of another program, and a daemon on it; at the end everything
    the issue of faults asks for holds."""
    with a_simlab(queues=4, **{"table": 64, **parameters}) as lab, a_bed(lab, folder, "bpf") as bed:
        theirs = foreign(BEFORE, "7") if parameters.get("masks", 1) else None
        bed.start(arm=arm)
        yield bed
        last = bed.apps.tcp(by_rss=True)
        until(lambda: last.talks.process.poll() is None, "an application runs")
        until(lambda: shown(bed) == listed(), "the table shown is the NIC's")
        delivered(bed.meter, last)
        assert bed.daemon.end() == 0
        assert bed.daemon.restore().returncode == 0
        assert listed() == ([int(BEFORE)] if theirs else [])
        assert theirs in (None, ethtool("-n", NAME, "rule", BEFORE) if theirs else None)
        bed.apps.close()


@contextmanager
def load(bed: Bed) -> Iterator[subprocess.Popen[str]]:
    """iperf3 through the NIC, without a pause; it must not end before we let it."""
    words = ["iperf3", "-c", HOST[2], "-p", "5201", "-P", "2", "-t", "3600", "-b", "1M"]
    with ExitStack() as stack:
        for netns, command in (("sim-host", ["iperf3", "-s", "-p", "5201"]), ("sim-peer", words)):
            running = subprocess.Popen(
                ["ip", "netns", "exec", netns, *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(running.wait)
            stack.callback(running.kill)
            if netns == "sim-host":
                until(lambda: ":5201" in sh("ss", "-Hltn"), "iperf3 listens")
        until(lambda: flows_of(bed, 5201) >= 2, "the load is seen")
        yield running
        assert running.poll() is None


def flows_of(bed: Bed, port: int) -> int:
    return sum(row["local"].endswith(f":{port}") for row in bed.daemon.flows())


def whole(bed: Bed, apps: list[Application]) -> None:
    """Every flow is on its core by one rule of its own, and the table shown is the NIC's."""
    for app in apps:
        bed.steered(app)
        delivered(bed.meter, app)
    locations = [bed.steered(app)["filter"] for app in apps]
    assert len(set(locations)) == len(apps)
    assert set(locations) <= set(listed())


def test_a_table_that_is_full(tmp_path: Path) -> None:
    """ENOSPC at once: those without a rule say so, and get one when there is room."""
    with a_nic(tmp_path, table=6) as bed:
        apps = [bed.apps.tcp() for _ in range(7)]
        until(lambda: bed.daemon.status()["flows_by_state"]["steered"] == 5, "the table is full")
        until(lambda: bed.daemon.status()["flows_by_state"]["overflow"] == 2, "two find it full")
        rows = {app: bed.daemon.flow(app.key) for app in apps}
        left = [app for app, row in rows.items() if row and row["state"] == "overflow"]
        for app in left:
            row = rows[app]
            assert row is not None
            assert "full" in row["why"] or "in use" in row["why"]
        for app in [app for app in apps if app not in left][:2]:
            app.end()
        whole(bed, left)


def test_a_table_that_turns_out_to_be_full_later(tmp_path: Path) -> None:
    """Every insert succeeds, and some filters are gone a moment after (i40e, iavf)."""
    with a_nic(tmp_path, table=6, async_ms=20, drvname="i40e", location="explicit") as bed:
        apps = [bed.apps.tcp() for _ in range(6)]

        def the_sixth() -> Application | None:
            """Known to have no rule: it gets one again and again, as long as it hopes."""
            rows = {app: row for app in apps if (row := bed.daemon.flow(app.key))}
            without = [app for app, row in rows.items() if row["filter"] is None]
            steered = [app for app, row in rows.items() if row["state"] == "steered"]
            return without[0] if len(without) == 1 and len(steered) == 5 else None

        without = until(the_sixth, "five have a rule, and the sixth is known to have none", 60)
        assert without is not None
        row = bed.row(without, lambda row: row["state"] != "steered", "has no rule")
        assert row["state"] in ("overflow", "wanted")
        assert row["why"]
        next(app for app in apps if app is not without).end()
        whole(bed, [without])


def test_a_filter_of_the_same_flow_is_somebody_elses(tmp_path: Path) -> None:
    with a_nic(tmp_path, arm=False, duplicates=0) as bed:
        app, other = bed.apps.tcp(), bed.apps.tcp()
        key = app.key
        ethtool(
            *("-N", NAME, "flow-type", "tcp4", "src-ip", "10.8.0.1", "dst-ip", "10.9.0.1"),
            *("src-port", key.remote_port, "dst-port", key.local_port, "action", "0"),
            *("loc", DURING),
        )  # fmt: skip
        theirs = ethtool("-n", NAME, "rule", DURING)
        bed.daemon.order("arm", NAME)
        whole(bed, [other])
        row = bed.row(app, lambda row: row["filter"] is None, "has no filter of ours")
        assert row["state"] == "wanted"
        assert ethtool("-n", NAME, "rule", DURING) == theirs
        app.end()
        bed.unknown_to_table(app)
        assert ethtool("-n", NAME, "rule", DURING) == theirs
        ethtool("-N", NAME, "delete", DURING)


def test_a_nic_for_exact_filters_only(tmp_path: Path) -> None:
    """A connected flow is steered; one whose remote is open is not, and says why."""
    with a_nic(tmp_path, masks=0) as bed:
        tcp, udp = bed.apps.tcp(), bed.apps.udp()
        whole(bed, [tcp])
        row = bed.row(udp, lambda row: row["state"] == "wanted", "is known to have no rule")
        assert "filter" in row["why"]
        assert len(listed()) == 1


def test_an_insert_is_refused_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    with a_nic(tmp_path, arm=False) as bed:
        apps = [bed.apps.tcp() for _ in range(5)]
        for app in apps:
            bed.row(app, lambda row: row["state"] == "observed", "is seen")
        bed.daemon.order("arm", NAME)
        whole(bed, apps)  # the probe is over
        bed.daemon.order("pause", NAME)
        (FAULTS / "fail_insert").write_text("16 2")  # EBUSY, after two of our five
        bed.daemon.order("resume", NAME)
        whole(bed, apps)  # the refused one is tried again
        assert (FAULTS / "fail_insert").read_text() == "0 0\n"  # it was refused, once
        refused = [row for row in bed.daemon.events("refused") if "busy" in row["why"].lower()]
        assert len(refused) <= 1


def test_a_reset_wipes_the_table_under_load(tmp_path: Path) -> None:
    with a_nic(tmp_path) as bed, load(bed):
        apps = [bed.apps.tcp() for _ in range(3)]
        whole(bed, apps)
        (FAULTS / "reset").write_text("wipe")
        foreign(BEFORE, "7")  # theirs is gone too, and it is for them to put it back
        whole(bed, apps)


def test_the_link_flaps_under_load(tmp_path: Path) -> None:
    with a_nic(tmp_path) as bed, load(bed):
        apps = [bed.apps.tcp() for _ in range(3)]
        whole(bed, apps)
        for _ in range(3):
            sh("ip", "link", "set", NAME, "down")
            sh("ip", "link", "set", NAME, "up")
        whole(bed, apps)


def test_an_admin_adds_channels_without_a_word(tmp_path: Path) -> None:
    """Fewer than our filters name are refused by the kernel; more are taken up."""
    with a_nic(tmp_path, max_queues=8) as bed:
        apps = [bed.apps.tcp() for _ in range(3)]
        whole(bed, apps)
        done = subprocess.run(["ethtool", "-L", NAME, "combined", "1"], capture_output=True)
        counts = re.findall(r"^Combined:\s+(\d+)", ethtool("-l", NAME), re.MULTILINE)
        assert counts == ["8", "4"], done
        sh("ethtool", "-L", NAME, "combined", 8)
        until(lambda: len(bed.daemon.get("/v1/queues")["queues"]) == 8, "eight queues are seen")
        whole(bed, apps)
