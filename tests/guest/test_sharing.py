# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon with few filters, on a NIC with a true filter table: connections share that of their
port."""

from __future__ import annotations

import os
from pathlib import Path

from tests.bed import a_bed
from tests.daemon.test_sharing import FEW, Served, proven
from tests.guest.simlab import NAME, a_simlab
from tests.wait import until

__all__: list[str] = []

QUEUES = 4
LONG_S = 100.0  # a port's filter that was refused is tried again after 1, 2, 4 s
SELDOM_S = 2.0  # what flows here keeps the guest's two real CPUs from the hold


def test_connections_of_one_port_share_a_filter(tmp_path: Path) -> None:
    """Every ring of RSS is to drain under one hold, on three other CPUs."""
    with a_simlab(queues=QUEUES, table=16, location="explicit", drvname="ixgbe") as lab:
        Path(f"/sys/class/net/{NAME}/threaded").write_text("1")
        with a_bed(lab, tmp_path, "bpf", FEW) as bed:
            served = Served(lab)
            bed.start()
            os.sched_setaffinity(0, {2})
            until(served.shares, "all come by their port's filter", LONG_S, SELDOM_S)
            held = served.held()
            assert held is not None
            assert lab.nic.queues()[held.queue or 0].cpu == 2
            assert proven(bed) > 0
            served.check()
            bed.daemon.end()
