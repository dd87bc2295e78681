# SPDX-License-Identifier: GPL-2.0-or-later
"""Two daemons steer one NIC, each from a run directory of its own: neither touches the other's
filters, and what one gives back the other takes up. (With one run directory the second does not
start: test_bad_start.py.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING, Daemon
from tests.labs import Lab

__all__: list[str] = []


@pytest.fixture
def bed(shared_lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(shared_lab, tmp_path, "bpf") as made:
        yield made


@pytest.fixture
def other(shared_lab: Lab, tmp_path: Path) -> Iterator[Daemon]:
    folder = tmp_path / "other"
    folder.mkdir()
    made = Daemon(folder, EVERYTHING)
    yield made
    made.reap()


def served(bed: Bed, apps: list[Application]) -> None:
    """Each has its one filter, and comes with it to another CPU."""
    for app in apps:
        app.migrate()
    for app in apps:
        bed.steered(app)
        delivered(bed.meter, app)
    assert len(bed.lab.nic.filters()) == len(apps)


def test_each_leaves_the_other_alone(bed: Bed, other: Daemon) -> None:
    name = bed.lab.nic.name
    bed.start()
    apps = [bed.apps.tcp(), bed.apps.udp_connected()]
    for app in apps:
        bed.steered(app)
    other.start("--nic", name, "--arm", name)
    for _ in range(3):
        served(bed, apps)
    for app in apps:
        row = other.flow(app.key)
        assert row is not None
        assert "another program has a filter" in row["why"]
    assert other.events("refused") == []
    assert other.status()["actions_applied"] == 0
    assert bed.daemon.events("manual", "refused", "lost") == []

    assert bed.daemon.ctl("restore", name).returncode == 0
    bed.daemon, first = other, bed.daemon
    try:
        served(bed, apps)
        assert first.ctl("restore", name).returncode == 0
        assert len(bed.lab.nic.filters()) == len(apps)
        assert first.end() == 0
        assert bed.daemon.end() == 0
    finally:
        first.reap()
