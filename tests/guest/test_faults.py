# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC may do to us: refuse, at once or later, lose, reset, flap. Afterwards traffic flows,
the table shown is the NIC's, and a stop with `restore` leaves no filter of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.guest.filters import listed
from tests.guest.simlab import FAULTS, NAME, a_simlab, ethtool, iperf3, sh
from tests.wait import until

BEFORE = "3"  # location of a rule that was there before us


def shown(bed: Bed) -> list[int]:
    rules = bed.daemon.get(f"/v1/filters?nic={NAME}")["filters"]
    return sorted(row["location"] for row in rules)


def foreign(location: str, port: str) -> str:
    """Another program's filter, as ethtool shows it."""
    ethtool("-N", NAME, "flow-type", "tcp4", "dst-port", port, "action", "1", "loc", location)
    return ethtool("-n", NAME, "rule", location)


@contextmanager
def a_nic(folder: Path, **parameters: object) -> Iterator[Bed]:
    """simnic as ordered, with a rule of another program, and a daemon on it; at the end the
    table shown is the NIC's, traffic flows, and nothing of ours is left."""
    with a_simlab(queues=4, **{"table": 64, **parameters}) as lab, a_bed(lab, folder, "bpf") as bed:
        theirs = foreign(BEFORE, "7")
        bed.start()
        yield bed
        last = bed.apps.tcp(by_rss=True)
        until(lambda: last.talks.process.poll() is None, "an application runs")
        until(lambda: shown(bed) == sorted(listed()), "the table shown is the NIC's")
        delivered(bed.meter, last)
        assert bed.daemon.end() == 0
        assert bed.daemon.restore().returncode == 0
        assert [*listed()] == [int(BEFORE)]
        assert ethtool("-n", NAME, "rule", BEFORE) == theirs
        bed.apps.close()


def whole(bed: Bed, apps: list[Application]) -> None:
    """Every flow is on its core by one rule of its own, and the table shown is the NIC's."""
    for app in apps:
        bed.steered(app)
        delivered(bed.meter, app)
    locations = [bed.steered(app)["filter"] for app in apps]
    assert len(set(locations)) == len(apps)
    assert set(locations) <= set(listed())


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


def test_whatever_befalls_it_under_load(tmp_path: Path) -> None:
    """A reset wipes its table, its link flaps, an admin adds channels without a word."""
    with a_nic(tmp_path, max_queues=8) as bed, iperf3("-P", 2, "-b", "1M") as load:
        apps = [bed.apps.tcp() for _ in range(3)]
        whole(bed, apps)
        (FAULTS / "reset").write_text("wipe")
        foreign(BEFORE, "7")  # theirs is gone too, and it is for them to put it back
        whole(bed, apps)
        for _ in range(3):
            sh("ip", "link", "set", NAME, "down")
            sh("ip", "link", "set", NAME, "up")
        whole(bed, apps)
        sh("ethtool", "-L", NAME, "combined", 8)
        until(lambda: len(bed.daemon.get("/v1/queues")["queues"]) == 8, "eight queues are seen")
        whole(bed, apps)
        assert load.poll() is None
