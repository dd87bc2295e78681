# SPDX-License-Identifier: GPL-2.0-or-later
"""Arming confines loose queues; what an admin then moves stays moved, what a flap loses is
restored."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model.toeplitz import rss_queue
from tests.applications import delivered
from tests.bed import Bed, a_bed
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

CPUS = sorted(os.sched_getaffinity(0))
LOOSE = 2  # the queue that nobody has confined


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    os.sched_setaffinity(lab.nic.queues()[LOOSE].pid or 0, CPUS)
    with a_bed(lab, tmp_path, "bpf") as made:
        made.start(arm=False)
        assert cpu(made) is None
        assert made.daemon.ctl("arm", lab.nic.name).returncode == 0
        assert cpu(made) is not None
        yield made


def cpu(bed: Bed) -> int | None:
    return bed.lab.nic.queues()[LOOSE].cpu


def restored(bed: Bed) -> str:
    done = bed.daemon.restore()
    assert done.returncode == 0, done
    return done.stdout


def test_a_loose_queue_is_confined_and_let_loose_again(bed: Bed) -> None:
    bed.daemon.end()
    assert cpu(bed) is not None
    assert f"queue-cpu:{LOOSE} is" in restored(bed)
    assert cpu(bed) is None


def test_a_queue_an_admin_lets_loose_stays_so(bed: Bed) -> None:
    app, rss = bed.apps.tcp(), bed.lab.nic.rss()
    assert rss is not None
    while rss_queue(rss, app.key) == LOOSE:  # once that is loose, RSS may deliver it anywhere
        app.end()
        app = bed.apps.tcp()
    bed.steered(app)
    os.sched_setaffinity(bed.lab.nic.queues()[LOOSE].pid or 0, CPUS)
    until(lambda: bed.daemon.events("manual"), "it is noticed", 60)
    app.migrate()
    bed.steered(app)
    delivered(bed.meter, app)
    assert cpu(bed) is None
    assert bed.daemon.get("/v1/nics")["nics"][0]["manual"] == [f"queue-cpu:{LOOSE}"]
    bed.daemon.end()
    restored(bed)
    assert cpu(bed) is None


def test_a_link_flap_is_not_an_admin(bed: Bed) -> None:
    before = cpu(bed)
    for state in ("down", "up"):
        ip = ["ip", "-n", f"{bed.lab.name}-host", "link", "set", "r0", state]
        subprocess.run(ip, check=True)
    until(lambda: cpu(bed) == before, "it is where it was", 60)
    assert bed.daemon.events("manual") == []
