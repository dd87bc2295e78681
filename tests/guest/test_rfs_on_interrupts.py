# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that are polled from interrupts get RFS, by NAPI threads that are borrowed for it."""

from __future__ import annotations

import os
from pathlib import Path

from atfnd.kernel.interrupts.packet_steering import FLOW_ENTRIES
from tests.applications import CPUS
from tests.bed import a_bed
from tests.daemons import policy
from tests.guest.simlab import NAME, a_simlab
from tests.wait import until

__all__: list[str] = []

SYS = Path(f"/sys/class/net/{NAME}")
LONG_S = 60.0
STAY_S, SELDOM_S = 0.05, 1.0
CONFIG = (
    policy(order="strict")
    + """\
interfaces:
  - match: { name: '*' }
    unowned: rfs
"""
)


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
        with a_bed(lab, tmp_path, "bpf", CONFIG) as bed:
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
