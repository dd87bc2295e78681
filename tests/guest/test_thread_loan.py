# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that are polled from interrupts: live flows move in strict order, and RFS is switched, by
NAPI threads that are borrowed for it."""

from __future__ import annotations

import os
from pathlib import Path

from atfnd.kernel.interrupts.packet_steering import FLOW_ENTRIES
from tests.applications import CPUS, Application
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.arrivals import affinities
from tests.guest.simlab import NAME, a_simlab
from tests.wait import until

SYS = Path(f"/sys/class/net/{NAME}")
THREADED = SYS / "threaded"
LONG_S = 60.0  # what was put off is tried again up to 4 s later
STAY_S, SELDOM_S = 0.05, 0.2


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


def counts() -> set[str]:
    """rps_flow_cnt of the queues."""
    paths = (SYS / f"queues/rx-{each}/rps_flow_cnt" for each in range(len(CPUS)))
    return {path.read_text().strip() for path in paths}


def given_back(said: list[str]) -> bool:
    """RFS was switched on with threads that were borrowed, and given back afterwards."""
    switched = [at for at, what in enumerate(said) if what.startswith("rps-flow-cnt:")]
    if not switched or "threaded = 1" not in said[: switched[0]]:
        return False
    return "threaded = 0" in said[switched[0] :]


def test_the_queue_of_a_thread_that_wanders_gets_rfs_and_threads_are_given_back(
    tmp_path: Path,
) -> None:
    made = {"queues": len(CPUS), "table": 64, "location": "explicit", "drvname": "rvu-nicpf"}
    made["arfs"] = 0  # as that driver
    with a_simlab(**made) as lab:
        for index, cpu in enumerate(CPUS):
            lab.nic.set_queue_cpu(index, cpu)
        before = {each: lab.nic.setting(each) for each in (FLOW_ENTRIES, "threaded")}
        assert counts() == {"0"}
        with a_bed(lab, tmp_path, "bpf", policy(order="strict", unowned="rfs")) as bed:
            server, stays = bed.apps.serves(), iter(CPUS * 10_000)
            for _ in range(2):
                bed.apps.joins(server)
            bed.start()

            def wanders() -> bool:
                """It may run on every CPU, and does not stay."""
                os.sched_setaffinity(server.pid, {next(stays)})
                os.sched_setaffinity(server.pid, CPUS)
                return counts() != {"0"}

            until(wanders, "a queue has RFS", LONG_S, STAY_S)

            def settings() -> list[str]:
                return [each["what"] for each in bed.daemon.events("setting")]

            until(lambda: given_back(settings()), "threads are given back", LONG_S, SELDOM_S)
            bed.daemon.end()
            bed.daemon.restore()
        assert counts() == {"0"}
        assert {each: lab.nic.setting(each) for each in before} == before
