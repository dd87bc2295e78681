# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that are polled from interrupts: live flows move in strict order by NAPI threads that are
borrowed for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atfnd.nic import Nic
from tests.applications import CPUS, Application
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.simlab import NAME, a_simlab
from tests.labs import Ends
from tests.wait import until

__all__: list[str] = []

THREADED = Path(f"/sys/class/net/{NAME}/threaded")
LONG_S = 60.0  # what was put off is tried again up to 4 s later
SELDOM_S = 0.2
CONNECTIONS, SHORT_S = 20, 2.0


@contextmanager
def interrupts(folder: Path) -> Iterator[Bed]:
    """Each queue's interrupt goes to a CPU of its own."""
    made = {"queues": len(CPUS), "table": 64, "location": "explicit", "drvname": "ixgbe"}
    with a_simlab(**made) as lab:
        for index, cpu in enumerate(CPUS):
            lab.nic.set_queue_cpu(index, cpu)
        config = policy(order="strict", hold_down="50ms")
        with a_bed(lab, folder, "bpf", config) as bed:
            yield bed


def served(bed: Bed) -> Application:
    server = bed.apps.serves()
    server.pin(CPUS[-1])
    return server


def arrive(bed: Bed, flows: list[Application]) -> bool:
    """All are delivered on the CPU where they are used."""
    rows = [bed.daemon.flow(each.key) for each in flows]
    return all(row is not None and row["rx_cpu"] == row["app_cpu"] == CPUS[-1] for row in rows)


def affinities(lab: Ends[Nic]) -> list[str]:
    irqs = [queue.irq for queue in lab.nic.queues()]
    return [Path(f"/proc/irq/{irq}/smp_affinity_list").read_text().strip() for irq in irqs]


def test_live_flows_move_by_threads_that_are_given_back(tmp_path: Path) -> None:
    with interrupts(tmp_path) as bed:
        server = served(bed)
        # They come by several queues, none of them on its CPU: only one of these can follow it.
        flows = [bed.apps.joins(server) for _ in range(6)]
        assert THREADED.read_text().strip() == "0"
        before = affinities(bed.lab)
        bed.start()
        until(lambda: arrive(bed, flows), "all come to their server", LONG_S, SELDOM_S)
        until(lambda: THREADED.read_text().strip() == "0", "threads are given back", LONG_S)
        switched = [e for e in bed.daemon.events("setting") if e["what"].startswith("threaded")]
        assert {each["what"] for each in switched} == {"threaded = 1", "threaded = 0"}
        assert not bed.daemon.events("violated")
        assert not [queue for queue in bed.lab.nic.queues() if queue.threaded]
        followed = bed.daemon.events("queue-cpu")
        moved = sum(a != b for a, b in zip(before, affinities(bed.lab), strict=True))
        assert moved <= len(followed)  # what follows its owner is the interrupt
        bed.daemon.end()
        bed.daemon.restore()
        assert affinities(bed.lab) == before


def test_what_a_killed_daemon_had_borrowed_is_given_back_by_the_next(tmp_path: Path) -> None:
    with interrupts(tmp_path) as bed:
        server = served(bed)
        bed.start()
        assert bed.daemon.process is not None
        pid = bed.daemon.process.pid

        def caught() -> bool:
            if THREADED.read_text().strip() != "1":
                return False
            os.kill(pid, signal.SIGSTOP)
            if THREADED.read_text().strip() == "1":
                return True
            os.kill(pid, signal.SIGCONT)
            return False

        for _ in range(CONNECTIONS):  # threads are borrowed for 0.3 s, if its queue cannot follow
            bed.apps.joins(server)
            with suppress(AssertionError):
                until(caught, "threads are borrowed", SHORT_S, 0.001)
                break
        bed.daemon.end(signal.SIGKILL)
        assert THREADED.read_text().strip() == "1"
        bed.start(arm=False)
        until(lambda: THREADED.read_text().strip() == "0", "they are given back", LONG_S)
        assert [e for e in bed.daemon.events("undo") if e["what"].startswith("threaded")]
        bed.daemon.end()
