# SPDX-License-Identifier: GPL-2.0-or-later
"""A host whose queues have RFS before atfnd is armed. Changes net.core.rps_sock_flow_entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atfnd.kernel.interrupts.packet_steering import FLOW_ENTRIES
from tests.applications import delivered
from tests.bed import a_bed
from tests.labs import Lab

__all__: list[str] = []


@contextmanager
def rfs(lab: Lab) -> Iterator[None]:
    before = lab.nic.setting(FLOW_ENTRIES)
    assert before is not None
    lab.nic.write_setting(FLOW_ENTRIES, "1024")
    try:
        for queue in lab.nic.queues():
            lab.nic.write_setting(f"rps-flow-cnt:{queue.index}", "256")
        yield
    finally:
        lab.nic.write_setting(FLOW_ENTRIES, before)


def test_a_pinned_thread_gets_its_filter_though_rfs_brings_its_packets(
    lab: Lab, tmp_path: Path
) -> None:
    with rfs(lab), a_bed(lab, tmp_path, "bpf") as bed:
        app = bed.apps.tcp()
        bed.start()
        delivered(bed.meter, app)
        for _ in range(4):
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
