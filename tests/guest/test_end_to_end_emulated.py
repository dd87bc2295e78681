# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon on igb and virtio-net, as QEMU emulates them, with their own drivers: no 5-tuple
filters there. virtio tells its RSS key, so flows are steered by the indirection table; igb keeps it
to itself, so RFS it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import CPUS, delivered
from tests.bed import Bed, a_bed
from tests.guest.arrivals import affinities, arrives_only_on
from tests.guest.simlab import a_lab_between, ethtool, ports

METHODS = {"igb": "rfs", "virtio_net": "rss"}
NO_FILTERS = re.compile("(igb|virtio_net) has no (5-tuple filters|filter table)")
SAID = {"igb": "(RFS)", "virtio_net": "indirection table points to queue"}
SOCK_FLOWS = Path("/proc/sys/net/core/rps_sock_flow_entries")


@pytest.fixture(scope="module", params=METHODS)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    near, far = ports(request.param)[:2]
    with (
        a_lab_between(near, far) as lab,
        a_bed(lab, tmp_path_factory.mktemp("daemon"), "bpf") as made,
    ):
        made.start(arm=False)
        yield made
        made.daemon.end()


@pytest.fixture
def name(bed: Bed) -> str:
    return bed.lab.nic.name


@pytest.fixture
def driver(name: str) -> str:
    return ethtool("-i", name).splitlines()[0].removeprefix("driver: ")


def kernel_state(name: str) -> dict[str, str]:
    """What arming may change."""
    queues = Path("/sys/class/net", name, "queues")
    files = [SOCK_FLOWS, *queues.glob("rx-*/rps_*"), *queues.glob("tx-*/xps_cpus")]
    return {str(file): file.read_text() for file in files} | {"rss": ethtool("-x", name)}


BEFORE: dict[str, tuple[dict[str, str], list[str]]] = {}


def test_each_queue_gets_a_cpu_of_its_own_when_it_is_armed(bed: Bed, name: str) -> None:
    BEFORE[name] = kernel_state(name), affinities(bed)
    (nic,) = bed.daemon.get("/v1/nics")["nics"]
    assert (nic["nic"], nic["armed"]) == (name, False)
    assert (kernel_state(name), affinities(bed)) == BEFORE[name]
    assert bed.daemon.ctl("arm", name).returncode == 0
    assert sorted(affinities(bed)) == ["0", "1", "2", "3"]


def test_why_it_has_no_filters_is_said(bed: Bed, name: str, driver: str) -> None:
    (nic,) = bed.daemon.get("/v1/nics")["nics"]
    assert nic["method"] == METHODS[driver]
    assert NO_FILTERS.search(nic["method_why"]), nic["method_why"]
    said = bed.daemon.get(f"/v1/doctor?nic={name}")["findings"]
    assert any(NO_FILTERS.search(each["what"]) for each in said), said


def test_a_connection_is_delivered_where_its_application_runs(
    bed: Bed, name: str, driver: str
) -> None:
    app = bed.apps.tcp()
    for cpu in (app.cpu, *(cpu for cpu in CPUS if cpu != app.cpu)):
        app.pin(cpu)
        delivered(bed.meter, app)
        if driver == "virtio_net":
            arrives_only_on(bed, app, bed.by_entry(app)["target_queue"])
    answer = bed.daemon.ctl("explain", str(app.key))
    assert SAID[driver] in answer.stdout, answer
    app.end()


def test_restore_puts_everything_back(bed: Bed, name: str) -> None:
    assert bed.daemon.end() == 0
    assert bed.daemon.restore().returncode == 0
    assert (kernel_state(name), affinities(bed)) == BEFORE[name]
