# SPDX-License-Identifier: GPL-2.0-or-later
"""A host whose queues have RFS, before atfnd is armed or without it. Changes
net.core.rps_sock_flow_entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from atfnd.kernel.interrupts.packet_steering import FLOW_ENTRIES
from atfnd.model.toeplitz import rss_queue
from bench.meter import FlowCount
from tests.applications import Application, delivered
from tests.bed import a_bed
from tests.labs import Lab
from tests.wait import until


@contextmanager
def rfs(lab: Lab, *queues: int) -> Iterator[None]:
    before = lab.nic.setting(FLOW_ENTRIES)
    assert before is not None
    lab.nic.write_setting(FLOW_ENTRIES, "1024")
    try:
        for queue in queues:
            lab.nic.write_setting(f"rps-flow-cnt:{queue}", "256")
        yield
    finally:
        lab.nic.write_setting(FLOW_ENTRIES, before)


def test_a_pinned_thread_gets_its_filter_though_rfs_brings_its_packets(
    lab: Lab, tmp_path: Path
) -> None:
    with rfs(lab, 0, 1, 2, 3), a_bed(lab, tmp_path, "bpf") as bed:
        app = bed.apps.tcp()
        bed.start()
        delivered(bed.meter, app)
        for _ in range(4):
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)


@pytest.mark.parametrize("queue", range(4))
def test_rfs_of_a_queue_of_the_lab_hands_on_what_comes_through_that_one(
    lab: Lab, tmp_path: Path, queue: int
) -> None:
    with rfs(lab, queue), a_bed(lab, tmp_path, "bpf") as bed:
        rss, by_queue = lab.nic.rss(), dict[int | None, Application]()
        while len(by_queue) < 4:
            app = bed.apps.udp_connected()
            by_queue[rss_queue(rss, app.key)] = app

        def counted(app: Application) -> FlowCount | None:
            found = bed.meter.read().flows.get(app.key)
            return found if found and found.local_segments + found.remote_segments > 200 else None

        for number, app in by_queue.items():
            found = until(partial(counted, app), f"packets of queue {number}")
            assert found is not None
            assert (found.local_segments > found.remote_segments) == (number == queue)
