# SPDX-License-Identifier: GPL-2.0-or-later
"""What arming does to a real kernel's settings, steering without filters, and that all is undone.

Told by what we did not write: sysfs, procfs, `ethtool -x` and `ethtool -S`, and bench/meter.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atfnd.model.toeplitz import rss_entry
from tests.applications import Application, delivered
from tests.bed import Bed
from tests.daemons import EVERYTHING, Row
from tests.guest.arrivals import affinities, arrives_only_on, irq_of
from tests.guest.settings import QUEUES, SOCK_FLOWS, on_simnic, set_up_arfs, settings, table
from tests.guest.simlab import NAME, sh
from tests.wait import until

CPUS = (0, 1, 2, 3)
NO_FILTERS = "virtio_net"  # and a hash that is known by the driver's name


def read(side: str, file: str) -> list[str]:
    """One file of each queue, in order."""
    return [(QUEUES / f"{side}-{n}" / file).read_text().strip() for n in range(len(CPUS))]


def restored(bed: Bed) -> None:
    assert bed.daemon.restore().returncode == 0


@pytest.mark.parametrize(("rules", "driver"), [(0, NO_FILTERS), (1, "simnic")])
def test_one_owner_while_armed_and_all_as_before_afterwards(
    tmp_path: Path, rules: int, driver: str
) -> None:
    with on_simnic(tmp_path, queues=4, table=64, rules=rules, drvname=driver) as bed:
        set_up_arfs()
        before = settings(bed)
        assert affinities(bed) == ["0-3"] * 4
        bed.start(arm=False)
        assert settings(bed) == before  # shown, not changed
        bed.daemon.order("arm", NAME)
        assert read("rx", "rps_flow_cnt") == ["0"] * 4
        cpus = affinities(bed)
        assert sorted(cpus) == ["0", "1", "2", "3"]
        xps = [int(mask, 16) for mask in read("tx", "xps_cpus")]
        assert xps == [1 << int(cpu) for cpu in cpus]
        (nic,) = bed.daemon.get("/v1/nics")["nics"]
        assert nic["method"] == ("filters" if rules else "rss")
        app = bed.apps.tcp()
        bed.row(app, lambda row: row["state"] in ("steered", "rss"), "is steered")
        bed.daemon.order("disarm", NAME)
        assert affinities(bed) == cpus  # disarming stops changes, and undoes none
        assert bed.daemon.end() == 0
        restored(bed)
        assert settings(bed) == before


def by_entry(bed: Bed, app: Application) -> Row:
    row = bed.by_entry(app)
    queue = row["target_queue"]
    arrives_only_on(bed, app, queue)
    rss = bed.lab.nic.rss()
    assert rss is not None
    entry = rss_entry(rss, app.key)
    assert entry is not None
    assert table()[entry] == queue
    return row


def test_a_nic_without_filters_keeps_rfs_under_the_built_in_policy(tmp_path: Path) -> None:
    """It is strict, and no move of an indirection entry is proven to keep the order."""
    with on_simnic(tmp_path, queues=4, rules=0, drvname=NO_FILTERS) as bed:
        set_up_arfs()
        before = settings(bed)
        bed.daemon.config.write_text("version: 1\n")
        bed.start()
        (nic,) = bed.daemon.get("/v1/nics")["nics"]
        assert (nic["method"], "order: immediate" in nic["method_why"]) == ("rfs", True)
        assert read("rx", "rps_flow_cnt") == ["2048"] * 4
        app = bed.apps.tcp()
        away = app.cpu  # without RFS its packets arrive elsewhere, so it needs its entry
        for cpu in (*(cpu for cpu in CPUS if cpu != away), away):
            app.pin(cpu)
            delivered(bed.meter, app)
        bed.daemon.config.write_text(EVERYTHING)
        bed.daemon.post("/v1/reload")
        assert read("rx", "rps_flow_cnt") == ["0"] * 4
        by_entry(bed, app)
        bed.daemon.end()
        restored(bed)
        assert settings(bed) == before


def test_one_queue_is_served_by_rfs(tmp_path: Path) -> None:
    with on_simnic(tmp_path, queues=1, rules=0) as bed:
        Path(f"/proc/irq/{irq_of(bed, 0)}/smp_affinity_list").write_text("0")
        before = settings(bed)
        bed.start()
        (nic,) = bed.daemon.get("/v1/nics")["nics"]
        assert (nic["method"], "one receive queue" in nic["method_why"]) == ("rfs", True)
        assert SOCK_FLOWS.read_text().strip() == "32768"
        assert (QUEUES / "rx-0/rps_flow_cnt").read_text().strip() == "32768"
        app = bed.apps.tcp()
        for cpu in (1, 2, 3):
            app.pin(cpu)
            delivered(bed.meter, app)
        assert "(RFS)" in bed.daemon.ctl("explain", str(app.key)).stdout
        bed.daemon.end()
        restored(bed)
        assert settings(bed) == before


@contextmanager
def read_only() -> Iterator[None]:
    """Every mount of this network namespace's sysfs."""
    sh("mount", "-o", "remount,ro", "/sys")
    try:
        yield
    finally:
        sh("mount", "-o", "remount,rw", "/sys")


def test_where_sys_is_read_only_it_is_said_and_the_rest_is_done(tmp_path: Path) -> None:
    """Nothing of what was refused counts as ours."""
    with on_simnic(tmp_path, queues=4, table=64) as bed:
        before = settings(bed)

        def changed() -> set[str]:
            return {
                Path(file).name for file, value in settings(bed).items() if value != before[file]
            }

        with read_only():
            bed.start()
            app = bed.apps.tcp()
            bed.steered(app)
            delivered(bed.meter, app)
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
            assert changed() == {"smp_affinity_list"}
            refused = bed.daemon.events("refused")
            assert {row["errno"] for row in refused} == {"EROFS"}
            assert all(row["what"].startswith("xps-cpus:") for row in refused)
        bed.daemon.order("disarm", NAME)
        bed.daemon.order("arm", NAME)
        until(lambda: changed() == {"smp_affinity_list", "xps_cpus"}, "it is set")
        bed.steered(app)
        assert bed.daemon.end() == 0
        assert bed.daemon.restore().returncode == 0
        assert changed() == set()
