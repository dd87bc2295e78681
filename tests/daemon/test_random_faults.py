# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults by chance, one after the other, end as a fresh start does, and no application notices.

ATFND_FAULTS_S is for how many seconds, ATFND_FAULTS_SEED which chance; a failure shows the seed and
every fault.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.meter import FlowCount
from tests.applications import CPUS, Application, delivered, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemon.faults import Faults
from tests.daemon.test_reload_often import ON_ITS_CORE, state
from tests.daemons import EVERYTHING, Daemon
from tests.labs import Lab, a_lab
from tests.wait import until

__all__: list[str] = []

SECONDS = float(os.environ.get("ATFND_FAULTS_S", "40"))
SEED = int(os.environ.get("ATFND_FAULTS_SEED", "6"))
SLOTS = 32

pytestmark = pytest.mark.timeout(int(SECONDS) + 600)


@pytest.fixture
def small() -> Iterator[Lab]:
    with a_lab(slots=SLOTS) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Its run directory is a file system of 8 MiB."""
    run = tmp_path / "run"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", run], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", run], check=True)


def on_its_core(bed: Bed, app: Application) -> bool:
    """Its next hundred segments are delivered there."""
    start = bed.meter.read()

    def next_ones() -> FlowCount | None:
        count = bed.meter.read().since(start).flows.get(app.key)
        return count if count and count.local_segments + count.remote_segments >= 100 else None

    count = until(next_ones, f"segments of {app.key}")
    return count is not None and (count.remote_segments, count.app_cpu) == (0, app.cpu)


def settled(bed: Bed, apps: list[Application]) -> dict[str, Any]:
    """What there is once every flow has followed its application to the CPU of RSS and off it
    again, and nothing else is in the NIC."""
    queues = bed.lab.nic.queues
    until(lambda: all(queue.cpu is not None for queue in queues()), "each queue is on a CPU")
    homes = {app.key: rss_cpu(bed.lab, app.key) or 0 for app in apps}
    for app in apps:
        app.pin(homes[app.key])
        until(partial(on_its_core, bed, app), f"{app.key} is on its core", 60)
    for app in apps:
        app.pin(next(cpu for cpu in CPUS if cpu != homes[app.key]))
    wanted = {app.key: ON_ITS_CORE for app in apps}
    try:
        until(lambda: state(bed, apps) == wanted, "every flow is on its core", 120)
    except AssertionError as late:
        raise AssertionError(f"{late}: {state(bed, apps)}, {bed.daemon.status()}") from late
    for app in apps:
        delivered(bed.meter, app)
    (nic,) = bed.daemon.get("/v1/nics")["nics"]
    status = bed.daemon.status()
    cpus = Counter(
        value for setting, value in nic["settings"].items() if setting.startswith("queue-cpu:")
    )
    shown = (
        "armed",
        "paused",
        "up",
        "driver",
        "method",
        "queues",
        "manual",
        "filters_foreign",
        "rss",
    )
    return {
        **{name: nic[name] for name in shown},
        **{name: status[name] for name in ("observer", "table_capacity")},
        "turned away": status["flows_by_state"]["overflow"],  # now; its policy may have been small
        "queues on a CPU": cpus,
        "policy": [row["rule"] for row in bed.daemon.get("/v1/policy")["flows"]],
    }


def test_it_ends_as_a_fresh_start(small: Lab, folder: Path, tmp_path_factory: Any) -> None:
    with a_bed(small, folder, "bpf") as bed:
        before = small.nic.rss()
        bed.start()
        faults, end = Faults(bed, random.Random(SEED)), time.monotonic() + SECONDS
        print(f"seed {SEED}")
        while time.monotonic() < end:
            faults.one()
        print(Counter(faults.done))
        faults.others_gone()
        bed.daemon.end()
        faults.start("bpf")
        bed.daemon.config.write_text(EVERYTHING)
        bed.daemon.post("/v1/reload")
        faults.resumed()
        faults.armed()
        ended = settled(bed, faults.apps)
        assert bed.daemon.end() == 0
        assert "Traceback" not in bed.daemon.said()
        assert bed.daemon.restore().returncode == 0
        assert (small.nic.filters(), small.nic.rss()) == ([], before)
        bed.daemon = Daemon(tmp_path_factory.mktemp("fresh"), EVERYTHING)
        bed.start()
        assert ended == settled(bed, faults.apps)
        assert bed.daemon.end() == 0
