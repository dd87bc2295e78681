# SPDX-License-Identifier: GPL-2.0-or-later
"""Servers as users run them: single-threaded, several, on whatever CPU the scheduler takes.

Each server serves a port of its own over TCP; the requests come at a fixed rate over all, or as
fast as they are answered. RSS, RFS and atfnd in turn, and the same servers pinned for comparison.
The share of bytes read on the CPU that had processed them; CPU per request of the servers, of the
NAPI threads and of the daemon together (schedstat); how often the scheduler moved the servers
(`nr_migrations`, sched(7)); what the daemon wrote.

On a lab NIC NAPI threads deliver all packets, and these make the scheduler take awakened threads
to another CPU (docs/internals/bench.md): a share near 1 cannot be had there by light load. On
simnic interrupts deliver them, and servers have CPUs of their own; the time that something takes is
not valid there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from atfnd.errors import OperatorError
from bench.bed import Bed, BedMaker, lab_bed
from bench.children import Child, child, pin, program
from bench.contenders import contenders
from bench.cost import cpu_ns
from bench.meter import Meter
from bench.report import Report, Target
from bench.stats import median, ratios

__all__ = ["INTERRUPTS", "LAB", "SIMNIC", "Case", "Load", "measure", "report", "run"]

PORT = 7000
WRITES = ("insert", "rewrite", "delete", "queue-cpu")
THROUGHPUT, CPU = 0.98, 1.02  # of the better of RSS and RFS
DAEMON_SHARE = 0.01  # of a core
LOCALITY = 0.95


class Case(NamedTuple):
    """Servers, connections of each, requests/s over all (None: as many as they answer)."""

    servers: int
    connections: int
    rate: float | None
    pinned: bool

    @property
    def name(self) -> str:
        load = "full speed" if self.rate is None else f"{self.rate:g} requests/s"
        servers = f"{self.servers} server{'s' * (self.servers > 1)} × {self.connections}"
        return f"{servers}, {load}, {'pinned' if self.pinned else 'unpinned'}"


class Load(NamedTuple):
    """What is offered, and for how long."""

    name: str  # of the report
    cases: tuple[Case, ...]
    settle_s: float
    window_s: float
    shares_only: bool = False  # times are not valid


LAB = Load(
    "unpinned",
    tuple(
        Case(servers, connections, rate, pinned)
        for servers, connections in ((1, 16), (8, 4))
        for rate in (4000.0, None)
        for pinned in (False, True)
    ),
    2.0,
    5.0,
)
SIMNIC = Load(
    "unpinned-simnic",
    (
        Case(1, 16, 300.0, False),
        Case(3, 8, 300.0, False),
        Case(6, 4, 300.0, False),
        Case(3, 8, 300.0, True),
    ),
    2.0,
    5.0,
    shares_only=True,
)
# the threads that poll take CPU for the NIC that they stand for
INTERRUPTS = LAB._replace(
    name="unpinned-interrupts",
    cases=tuple(case for case in LAB.cases if case.rate is not None),
    shares_only=True,
)


class Run(NamedTuple):
    """One contender under one case. Shares are 0 to 1, rates per second."""

    case: str
    contender: str
    read_locality: float
    requests: float
    cpu_ns: float  # per request: servers, NAPI threads and the daemon
    daemon: float  # of a core
    migrations: float
    writes: float


def migrations(process: Child) -> int:
    """How often the scheduler has moved the threads of a process to another CPU."""
    found = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        lines = (task / "sched").read_text().splitlines()
        found += sum(int(line.split(":")[1]) for line in lines if "nr_migrations" in line)
    return found


@contextlib.contextmanager
def loaded(bed: Bed, case: Case) -> Iterator[tuple[list[Child], list[Child]]]:
    """The servers and their clients, all of them connected."""
    with contextlib.ExitStack() as stack:
        servers, clients = list[Child](), list[Child]()
        for number in range(case.servers):
            serve = program("rr", "serve", bed.address, PORT + number)
            # where CPUs are spare, these are for everything but the servers
            apart = bed.cpus if bed.spare else None
            servers.append(stack.enter_context(child(*serve, netns=bed.host, cpus=apart)))
            servers[-1].said("ready")
            if case.pinned:
                pin(servers[-1].pid, [bed.cpus[number % len(bed.cpus)]])
        for number in range(case.servers):
            drive = program("rr", "drive", bed.address, PORT + number)
            drive += ("--connections", str(case.connections))
            if case.rate is not None:
                drive += ("--rate", str(case.rate / case.servers))
            clients.append(
                stack.enter_context(child(*drive, netns=bed.peer, cpus=bed.spare or None))
            )
        for client in clients:
            client.said("connected")
        yield servers, clients


def _one(bed: Bed, meter: Meter, name: str, case: Case, load: Load) -> Run:
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(contenders(bed)[name](bed))
        if daemon and bed.spare:
            pin(daemon.process.pid, bed.spare)
        servers, _ = stack.enter_context(loaded(bed, case))
        nic = stack.enter_context(bed.open())
        time.sleep(load.settle_s)
        pids = [server.pid for server in servers]
        pids += [queue.pid for queue in nic.queues() if queue.pid]

        def used_ns() -> int:
            return sum(map(cpu_ns, pids)) + (cpu_ns(daemon.process.pid) if daemon else 0)

        def wrote() -> int:
            return sum(e["kind"] in WRITES for e in daemon.events()) if daemon else 0

        writes, moved = wrote(), sum(map(migrations, servers))
        ours_ns = cpu_ns(daemon.process.pid) if daemon else 0
        counts, spent_ns, began = meter.totals(), used_ns(), time.monotonic()
        time.sleep(load.window_s)
        counts = meter.totals().since(counts)
        spent_ns, took_s = used_ns() - spent_ns, time.monotonic() - began
        ours_ns = cpu_ns(daemon.process.pid) - ours_ns if daemon else 0
        moved, writes = sum(map(migrations, servers)) - moved, wrote() - writes
    if counts.read_locality is None:
        raise OperatorError("nothing was read", exit_code=1)
    # A request of 64 bytes is read by the server: nobody else reads in its namespace.
    requests = (counts.local_bytes + counts.remote_bytes) / 64
    return Run(
        case.name, name, counts.read_locality, requests / took_s, spent_ns / requests,
        ours_ns / 1e9 / took_s, moved / took_s, writes / took_s,
    )  # fmt: skip


def measure(rounds: int, make_bed: BedMaker, load: Load) -> dict[str, Any]:
    """`rounds` rounds; in each, every case is given to every contender in turn."""
    runs = []
    with make_bed() as bed, bed.meter() as meter:
        names = list(contenders(bed))
        for turn in range(rounds):
            first = turn % len(names)
            for case in load.cases:
                for name in [*names[first:], *names[:first]]:
                    runs.append(_one(bed, meter, name, case, load))
        return {"runs": runs, "notes": [f"packets come by {bed.delivery}"]}


def run(rounds: int, *, interrupts: bool = False) -> Report:
    """On a lab NIC."""
    load = INTERRUPTS if interrupts else LAB
    return report(measure(rounds, partial(lab_bed, interrupts=interrupts), load), load)


def report(measured: dict[str, Any], load: Load) -> Report:
    """From what `measure` found, which may have been JSON in between."""
    report = Report(load.name, "servers that the scheduler moves, and the same ones pinned")
    report.notes += measured["notes"]
    runs = [Run(*each) for each in measured["runs"]]
    report.samples["runs"] = [each._asdict() for each in runs]
    found: dict[str, dict[str, list[Run]]] = {}
    for each in runs:
        found.setdefault(each.case, {}).setdefault(each.contender, []).append(each)
    for case, by_name in found.items():
        for name, some in by_name.items():
            local = median(r.read_locality for r in some)
            report.add(f"{case}: read locally", name, "share", local)
            report.add(f"{case}: requests", name, "/s", median(r.requests for r in some))
            if not load.shares_only:
                report.add(f"{case}: CPU a request", name, "ns", median(r.cpu_ns for r in some))
            report.add(f"{case}: migrations", name, "/s", median(r.migrations for r in some))
        ours = by_name["atfnd"]
        report.add(f"{case}: writes", "atfnd", "/s", median(r.writes for r in ours))
        if load.shares_only:
            settled = median(r.read_locality for r in ours).value
            report.targets.append(Target(f"{case}: read locally", settled, LOCALITY, True, "share"))
            continue
        report.add(f"{case}: daemon", "atfnd", "of a core", median(r.daemon for r in ours))
        rivals = [name for name in by_name if name != "atfnd"]
        for what, better, bound in (("requests", max, THROUGHPUT), ("cpu_ns", min, CPU)):
            best = better(rivals, key=lambda n: median(getattr(r, what) for r in by_name[n]).value)
            theirs = [getattr(r, what) for r in by_name[best]]
            ratio = ratios([getattr(r, what) for r in ours], theirs)
            words = "requests" if what == "requests" else "CPU a request"
            report.add(f"{case}: {words}", f"atfnd / {best}", "×", ratio)
            title = f"{case}: {words}, atfnd / {best}"
            report.targets.append(Target(title, ratio.value, bound, what == "requests", "×"))
        spent = median(r.daemon for r in ours).value
        title = f"{case}: the daemon's CPU"
        report.targets.append(Target(title, spent, DAEMON_SHARE, False, "of a core"))
    return report
