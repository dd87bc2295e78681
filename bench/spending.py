# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon spends of a CPU on one migration, one queue that follows, one filter that moves.

Servers are pinned and migrate one by one, under a light load. From before a migration until all
that follows from it is over, the daemon's CPU time is read (schedstat, all its threads, so spinners
count); as much of it as a window without a migration takes is subtracted. `follow`: one server, and
its queue goes along. `strict`: eight servers on two queues, so nobody owns a queue, and flows move
one by one, under holds. `immediate`: one server, a filter for each connection, written at once.
The daemon may use half a CPU, so that no move waits for its share.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.bed import Bed, lab_bed
from bench.children import Child, child, cpu_ns, pin, program
from bench.contenders import atfnd
from bench.daemon import follow_tcp
from bench.report import Report
from bench.servers import PORT, SERVERS
from bench.stats import median
from bench.traffic import requests

__all__ = ["run"]

WRITES = ("insert", "rewrite", "delete", "queue-cpu")
MIGRATIONS = 12  # of a case in a round
EVERY_S = 2.0  # a queue rests for a second before it follows again
WINDOW_S = 0.12  # a guest's flows wait for 40 ms, and a write is watched for some more
SETTLE_S = 4.0
DAEMON = "daemon: { on_stop: restore, cpu: 50% }\n"


class Case(NamedTuple):
    """Servers, connections of each, requests/s over all; `bound_ns`: of a migration."""

    servers: int
    connections: int
    per_s: float
    order: str
    bound_ns: float


CASES = {
    "follow": Case(1, 16, 2000.0, "strict", 150_000),
    "strict": Case(8, 4, 2000.0, "strict", 400_000),
    "immediate": Case(1, 4, 1000.0, "immediate", 400_000),
}


class Spent(NamedTuple):
    """Of the migrations that were followed: what each took, and the daemon's writes in all."""

    each_ns: list[float]
    writes: int


def run(rounds: int) -> Report:
    """`rounds` rounds of every case."""
    report = Report("spending", "the daemon's CPU time for a migration, a follow, a move")
    with lab_bed() as bed, tempfile.TemporaryDirectory() as folder:
        asker = requests.built(Path(folder))
        for name, case in CASES.items():
            found = [_spent(bed, asker, case) for _ in range(rounds)]
            report.samples[name] = [each._asdict() for each in found]
            each_ns = [ns for each in found for ns in each.each_ns]
            writes = sum(each.writes for each in found)
            if not each_ns:
                report.notes.append(f"{name}: nothing was followed")
                continue
            migration = report.add(f"{name}: a migration", "atfnd", "ns", median(each_ns))
            write_ns = sum(each_ns) / writes
            report.add(f"{name}: a write, mean", "atfnd", "ns", median([write_ns]))
            report.at_most(f"{name}: a migration", migration.value, case.bound_ns, "ns")
    return report


def _spent(bed: Bed, asker: Path, case: Case) -> Spent:
    policy = follow_tcp("stay", order=case.order) + DAEMON
    with atfnd(bed, policy) as daemon, _loaded(bed, asker, case) as servers:

        def window(server: Child | None = None, cpu: int = 0) -> tuple[int, int, int]:
            began_ns, before_ns = time.monotonic_ns(), cpu_ns(daemon.process.pid)
            if server is not None:
                pin(server.pid, [cpu])
            time.sleep(WINDOW_S)
            return began_ns, time.monotonic_ns(), cpu_ns(daemon.process.pid) - before_ns

        time.sleep(SETTLE_S)
        at = [number % len(bed.cpus) for number in range(len(servers))]
        idle_ns = median([window()[2] for _ in range(MIGRATIONS)]).value
        windows = []
        for turn in range(MIGRATIONS):
            number = turn % len(servers)
            at[number] = (at[number] + 1) % len(bed.cpus)
            windows.append(window(servers[number], bed.cpus[at[number]]))
            time.sleep(EVERY_S - WINDOW_S)
        wrote_ns = [each["at_ns"] for each in daemon.events() if each["kind"] in WRITES]
    writes = [sum(began <= ns <= ended for ns in wrote_ns) for began, ended, _ in windows]
    spent = [ns - idle_ns for (*_, ns), count in zip(windows, writes, strict=True) if count]
    return Spent(spent, sum(writes))


@contextlib.contextmanager
def _loaded(bed: Bed, asker: Path, case: Case) -> Iterator[list[Child]]:
    """Servers, each on a CPU in turn, and asked by clients of its own."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(case.servers):
            serve = program("rr", bed.address, PORT + number)
            servers.append(stack.enter_context(child(*serve, netns=bed.host)))
            servers[-1].said("ready")
            pin(servers[-1].pid, [bed.cpus[number % len(bed.cpus)]])
            rate, asked = case.per_s / case.servers, SERVERS["rr"].asked
            stack.enter_context(
                requests.asking(asker, bed, PORT + number, asked, case.connections, rate, 0, 3600)
            )
        yield servers
