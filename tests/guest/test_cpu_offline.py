# SPDX-License-Identifier: GPL-2.0-or-later
"""A CPU goes offline while flows are delivered and used on it, and comes back: the daemon takes its
queue to another and back, every flow is served, and no connection breaks."""

from __future__ import annotations

from pathlib import Path

from tests.applications import delivered
from tests.bed import a_bed
from tests.guest.test_hotplug import CPU, offline
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

ANOTHER = 2


def test_under_load(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf") as bed:

        def cpus() -> list[int | None]:
            return [queue.cpu for queue in lab.nic.queues()]

        bed.start()
        apps = [bed.apps.tcp(), bed.apps.tcp_connected(), bed.apps.udp_connected()]
        for app in apps:
            app.pin(CPU)
            delivered(bed.meter, app)
        before = cpus()
        with offline():
            until(lambda: not {CPU, None} & set(cpus()), "its queue is on another CPU", 60)
            for app in apps:
                app.pin(ANOTHER)
                delivered(bed.meter, app)
        until(lambda: cpus() == before, "its queue is there again", 60)
        for app in apps:
            app.pin(CPU)
            delivered(bed.meter, app)
            assert app.host.process.poll() is app.peer.process.poll() is None
        assert bed.daemon.status()["events_lost"] == 0
        assert bed.daemon.end() == 0
        assert "Traceback" not in bed.daemon.said()
