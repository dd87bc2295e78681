# SPDX-License-Identifier: GPL-2.0-or-later
"""Two daemons steer one NIC, each from a run directory of its own: neither touches the other's
filters, and what one gives back the other takes up. (With one run directory the second does not
start: test_bad_start.py.)"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import Daemon
from tests.labs import Lab


def served(bed: Bed, apps: list[Application]) -> None:
    """Each has its one filter, and comes with it to another CPU."""
    for app in apps:
        app.migrate()
    for app in apps:
        bed.steered(app)
        delivered(bed.meter, app)
    assert len(bed.lab.nic.filters()) == len(apps)


def test_each_leaves_the_other_alone(shared_lab: Lab, tmp_path: Path) -> None:
    name, folder = shared_lab.nic.name, tmp_path / "other"
    folder.mkdir()
    other = Daemon(folder)
    with a_bed(shared_lab, tmp_path, "bpf") as bed, ExitStack() as stack:
        stack.callback(other.reap)
        stack.callback(bed.daemon.reap)
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
        served(bed, apps)
        assert first.ctl("restore", name).returncode == 0
        assert len(bed.lab.nic.filters()) == len(apps)
        assert first.end() == 0
        assert bed.daemon.end() == 0
