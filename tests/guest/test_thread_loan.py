# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that are polled from interrupts: live flows move in strict order by NAPI threads that are
borrowed for it."""

from __future__ import annotations

from pathlib import Path

from tests.applications import CPUS, Application
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.arrivals import affinities
from tests.guest.simlab import NAME, a_simlab
from tests.wait import until

__all__: list[str] = []

THREADED = Path(f"/sys/class/net/{NAME}/threaded")
LONG_S = 60.0  # what was put off is tried again up to 4 s later
SELDOM_S = 0.2


def arrive(bed: Bed, flows: list[Application]) -> bool:
    """All are delivered on the CPU where they are used."""
    rows = [bed.daemon.flow(each.key) for each in flows]
    return all(row is not None and row["rx_cpu"] == row["app_cpu"] == CPUS[-1] for row in rows)


def test_live_flows_move_by_threads_that_are_given_back(tmp_path: Path) -> None:
    made = {"queues": len(CPUS), "table": 64, "location": "explicit", "drvname": "ixgbe"}
    config = policy(order="strict", hold_down="50ms")
    with a_simlab(**made) as lab, a_bed(lab, tmp_path, "bpf", config) as bed:
        for index, cpu in enumerate(CPUS):
            lab.nic.set_queue_cpu(index, cpu)
        server = bed.apps.serves()
        server.pin(CPUS[-1])
        # They come by several queues, none of them on its CPU: only one of these can follow it.
        flows = [bed.apps.joins(server) for _ in range(6)]
        assert THREADED.read_text().strip() == "0"
        before = affinities(bed)
        bed.start()
        until(lambda: arrive(bed, flows), "all come to their server", LONG_S, SELDOM_S)
        until(lambda: THREADED.read_text().strip() == "0", "threads are given back", LONG_S)
        switched = [e for e in bed.daemon.events("setting") if e["what"].startswith("threaded")]
        assert {each["what"] for each in switched} == {"threaded = 1", "threaded = 0"}
        assert not bed.daemon.events("violated")
        assert not [queue for queue in lab.nic.queues() if queue.threaded]
        followed = bed.daemon.events("queue-cpu")
        moved = sum(a != b for a, b in zip(before, affinities(bed), strict=True))
        assert moved <= len(followed)  # what follows its owner is the interrupt
        bed.daemon.end()
        bed.daemon.restore()
        assert affinities(bed) == before
