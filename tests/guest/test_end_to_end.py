# SPDX-License-Identifier: GPL-2.0-or-later
"""The main job on a NIC with a true filter table, through the real ioctl path, on four CPUs.

Where packets arrive is read from what we did not write: `ethtool -n`, `ethtool -S`,
/proc/interrupts and `ss`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.guest.arrivals import affinities, arrives_only_on, irq_of
from tests.guest.simlab import NAME, a_simlab, ethtool, sh
from tests.wait import until

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]
CPUS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with (
        a_simlab(queues=4, table=64) as lab,
        a_bed(lab, tmp_path_factory.mktemp("daemon"), "bpf") as made,
    ):
        made.start()
        yield made
        made.daemon.end()


def shown_by_ethtool(location: int) -> dict[str, str]:
    """One filter, as `ethtool -n NIC rule N` words it."""
    said = ethtool("-n", NAME, "rule", location)
    rows = re.findall(r"^\s+([^:\n]+): (.+?)(?: mask: .*)?$", said, re.MULTILINE)
    return {label: value.strip() for label, value in rows}


def check(bed: Bed, app: Application) -> None:
    """Rule, queue, interrupt, CPU, socket and process are one chain."""
    row = bed.steered(app)
    location, queue = row["filter"], row["target_queue"]
    rule = shown_by_ethtool(location)
    assert rule["Action"].endswith(f"queue {queue}"), rule
    assert rule["Dest port"] == str(app.key.local_port), rule
    arrives_only_on(bed, app, queue)
    affinity = Path(f"/proc/irq/{irq_of(bed, queue)}/effective_affinity_list").read_text().strip()
    assert affinity == str(app.cpu)
    sockets = sh("ss", "-Hnp", "-t" if app.key.protocol == 6 else "-u", "-a")
    (mine,) = [
        line
        for line in sockets.splitlines()
        if f":{app.key.local_port} " in line and f"pid={app.pid}," in line and "LISTEN" not in line
    ]
    assert f"pid={row['pid']}," in mine


def test_each_queue_is_delivered_on_a_cpu_of_its_own(bed: Bed) -> None:
    until(lambda: sorted(affinities(bed)) == ["0", "1", "2", "3"], "one queue on each CPU", 30)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["tcp4", "tcp6"])
def test_a_connection_is_followed_over_four_cpus(bed: Bed, family: socket.AddressFamily) -> None:
    app = bed.apps.tcp(family)
    first = app.cpu
    check(bed, app)
    for cpu in CPUS:
        if cpu != first:
            app.pin(cpu)
            check(bed, app)
    delivered(bed.meter, app)
    row = bed.steered(app)
    done = bed.daemon.ctl("explain", f"cookie:{row['cookie']}")
    assert done.returncode == 0, done.stderr
    irq = irq_of(bed, row["target_queue"])
    for word in (NAME, f"queue {row['target_queue']}", str(irq), f"CPU {app.cpu}"):
        assert word in done.stdout
    app.end()
    bed.unknown(app)
    assert "Total 0 rules" in ethtool("-n", NAME)


def test_an_unconnected_udp_socket_is_followed(bed: Bed) -> None:
    app = bed.apps.udp()
    check(bed, app)
    app.migrate()
    check(bed, app)
    app.end()
    bed.unknown(app)
    assert "Total 0 rules" in ethtool("-n", NAME)


def test_flows_side_by_side_and_a_restore_that_leaves_nothing(bed: Bed) -> None:
    apps = [bed.apps.tcp() for _ in range(3)]
    for each in apps:
        bed.steered(each)
        delivered(bed.meter, each)
    locations = sorted(bed.steered(each)["filter"] for each in apps)
    rows = bed.daemon.get(f"/v1/filters?nic={NAME}")["filters"]
    assert sorted(row["location"] for row in rows if row["ours"]) == locations
    shown = re.findall(r"^Filter: (\d+)", ethtool("-n", NAME), re.MULTILINE)
    assert sorted(map(int, shown)) == locations
    app, *others = apps
    for each in others:
        each.end()
    bed.unknown(*others)
    assert bed.daemon.end() == 0
    assert "Total 1 rules" in ethtool("-n", NAME)  # a stop keeps: traffic stays where it is
    assert bed.daemon.restore().returncode == 0
    assert "Total 0 rules" in ethtool("-n", NAME)
    assert affinities(bed) == ["0-3"] * 4
    bed.start()
    bed.steered(app)
    app.end()
