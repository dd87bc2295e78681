# SPDX-License-Identifier: GPL-2.0-or-later
"""A core that another program keeps full: flows read there are left to RSS, and come back when that
program ends. A real scheduler, and packets of the lab NIC. The other CPU must be idle: where
somebody else keeps it full, too, flows stay, and the test says that they did not leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.applications import CPUS, delivered
from tests.bed import a_bed
from tests.daemons import Row, policy
from tests.labs import Lab
from tests.wait import until

SPIN = "while True: pass"
RULES = policy("""\
  - name: stays
    match: { protocol: tcp, process: stays }
    placement: { near: core }
    full_core: stay
    order: strict
  - name: leaves
    match: { protocol: tcp }
    placement: { near: core }
    order: strict
""")


@contextmanager
def kept_full(cpu: int) -> Iterator[None]:
    """Another program takes all the time of this CPU that it gets."""
    spinner = subprocess.Popen(
        [sys.executable, "-c", SPIN], preexec_fn=lambda: os.sched_setaffinity(0, {cpu})
    )
    try:
        yield
    finally:
        spinner.kill()
        spinner.wait()


def left_to_rss(row: Row) -> bool:
    return row["filter"] is None and row["target_queue"] is None


def test_flows_leave_a_full_core_and_come_back(lab: Lab, tmp_path: Path) -> None:
    cpu = CPUS[0]
    with a_bed(lab, tmp_path, "bpf", RULES) as bed:
        server = bed.apps.serves()  # on this CPU
        staying = bed.apps.serves()
        staying.host.tell("name stays")
        leaves, stays = bed.apps.joins(server), bed.apps.joins(staying)
        bed.start()
        for app in (leaves, stays):
            bed.steered(app)
            delivered(bed.meter, app)
        with kept_full(cpu):
            row = bed.row(leaves, left_to_rss, "is left to RSS")
            assert f"CPU {cpu} is full" in row["why"]
            assert bed.rule(leaves) is None
            [event] = bed.daemon.events("full")
            assert event["what"] == f"CPU {cpu}"
            late = bed.apps.joins(server)
            assert f"CPU {cpu} is full" in bed.row(late, left_to_rss, "is never moved")["why"]
            assert bed.rule(late) is None
            delivered(bed.meter, stays)
        until(lambda: bed.daemon.events("not-full"), "the CPU has slack again", 120)
        for app in (leaves, late):
            bed.steered(app)
            delivered(bed.meter, app)
        moves = bed.daemon.status()["moves"]
        assert [each for each in moves if each["verdict"] == "violated"] == []
