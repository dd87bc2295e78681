# SPDX-License-Identifier: GPL-2.0-or-later
"""Real servers under RSS, RFS, atfnd with its default policy, and placed by hand.

A cell is a server (bench/servers.py; iperf3 receives streams), few or many connections, its threads
where the scheduler puts them or pinned, and light or saturated. Light is a fifth of what was
answered at most under RSS, in requests that do not wait for answers; p99 counts from when a request
was to be sent. Saturated: each connection asks again when it is answered.

Placed by hand (`static`): the server is pinned, and a filter brings its port to the queue of its
CPU. Only for a server of one thread: no filter of a port does it for several.

CPU of an operation: the time that CPUs were busy (atfnd/observe/machine/busy.py) without that of
the clients and of the threads that play the wire; with interrupts also without the threads that
play the NIC. So the daemon's is in it, and softirqs are. For iperf3 an operation is a megabyte.

Each run is appended to build/bench/applications.runs, from which `resume` takes what it has.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink.netdev import NetdevFamily
from atfnd.kernel.system.netns import path_of
from atfnd.model import FlowKey, Match, Protocol
from atfnd.observe.machine.busy import BusyCpus, handoffs
from atfnd.observe.processes.cpu_time import context_switches
from bench import applications_report, contenders
from bench.applications_report import LOAD, Run
from bench.bed import Bed, lab_bed
from bench.children import Child
from bench.cost import cpu_ns
from bench.daemon import Daemon
from bench.meter import Meter
from bench.report import FOLDER, Report
from bench.servers import PORT, REAL, SERVERS, pin_workers, running
from bench.traffic import iperf, requests

__all__ = ["Bench", "Cell", "Wanted", "caveats", "cells", "kept_busy", "measure", "placed", "run"]
__all__ += ["seconds"]

BULK = {"iperf3-tcp": (1, 16), "iperf3-udp": (1, 16)}
CONNECTIONS = (4, 64)
LIGHT = 0.2
WARM_S, CALIBRATION_S, WINDOW_S = 1.0, 1.5, 5.0  # RSS and RFS need no longer
OVERHEAD_S = 1.5  # of a run: server, clients; the daemon takes as long again
MB = 1_000_000
DEFAULT = "version: 1\n"  # nothing but the built-in rules
DEFAULT_AT_ONCE = """\
version: 1
flows:
  - name: rest
    match: { protocol: [tcp, udp, sctp], min_bytes: 64KiB, min_age: 200ms }
    placement: { near: core }
    order: immediate
"""


class Cell(NamedTuple):
    """One load on one server."""

    server: str
    connections: int
    pinned: bool
    saturated: bool

    @property
    def name(self) -> str:
        pinned = "pinned" if self.pinned else "unpinned"
        return f"{self.server} × {self.connections}, {pinned}, {self.load}"

    @property
    def load(self) -> str:
        return "saturated" if self.saturated else "light"


class Wanted(NamedTuple):
    """What is to be measured. `only`: servers, and parts of names of cells."""

    rounds: int
    only: tuple[str, ...] = ()
    window_s: float = WINDOW_S
    interrupts: bool = False
    resume: bool = False
    warm_s: float = 6.0  # before a window: the daemon looks at loads every two seconds


def cells(only: Sequence[str] = ()) -> list[Cell]:
    """All, or those of a server or with these words in their names. OperatorError: there are
    none."""
    counts = {**dict.fromkeys(REAL, CONNECTIONS), **BULK}
    every = [
        Cell(server, count, pinned, saturated)
        for server, few_and_many in counts.items()
        for count in few_and_many
        for pinned in (False, True)
        for saturated in (False, True)
    ]

    def chosen(cell: Cell, words: str) -> bool:
        return cell.server == words if words in counts else words in cell.name

    found = [cell for cell in every if not only or any(chosen(cell, words) for words in only)]
    if not found:
        raise OperatorError(f"no cell of {', '.join(only)}", f"servers: {', '.join(counts)}")
    return found


def contending(cell: Cell) -> list[str]:
    """The contenders that are measured in a cell."""
    workers = 1 if cell.server in BULK else SERVERS[cell.server].workers
    return ["rss", "rfs", "atfnd", *(["static"] if cell.pinned and workers == 1 else [])]


def seconds(wanted: Wanted) -> float:
    """About how long it takes."""
    chosen = cells(wanted.only)
    each = wanted.warm_s + wanted.window_s + OVERHEAD_S
    runs = [name for cell in chosen for name in contending(cell)]
    limits = {(cell.server, cell.connections, cell.pinned) for cell in chosen}
    once = len(limits) * (WARM_S + CALIBRATION_S + OVERHEAD_S)
    return once + wanted.rounds * (len(runs) * each + runs.count("atfnd") * OVERHEAD_S)


@contextlib.contextmanager
def placed(bed: Bed, cpu: int, protocol: Protocol = Protocol.TCP) -> Iterator[None]:
    """All packets of the port come to the queue of this CPU."""
    bed.clear_filters()
    key = FlowKey(protocol, bytes(map(int, bed.address.split("."))), PORT, bytes(4), 0)
    with bed.open() as nic:
        queue = next(q.index for q in nic.queues() if q.cpu == cpu)
        location = nic.insert(Match.of(key), queue)
        try:
            yield
        finally:
            nic.delete(location)


def _contender(name: str, bed: Bed, cell: Cell) -> AbstractContextManager[Daemon | None]:
    if name == "static":
        udp = cell.server == "iperf3-udp" or (
            cell.server in SERVERS and SERVERS[cell.server].asked.means == "udp"
        )
        return placed(bed, bed.cpus[0], Protocol.UDP if udp else Protocol.TCP)
    if name == "atfnd":
        policy = DEFAULT if bed.order == "strict" else DEFAULT_AT_ONCE
        return contenders.atfnd(bed, policy)
    return contenders.contenders(bed)[name](bed)


class _Spent:
    """CPU time that the host's side takes."""

    def __init__(self, bed: Bed, busy: BusyCpus, clients: Sequence[Child]) -> None:
        self._busy, self._clients = busy, clients
        self._threads = _napi_threads(bed, "wire", "w0")
        if bed.delivery == "interrupts":
            self._threads += _napi_threads(bed, "host", bed.device)

    def ns(self) -> int:
        others = sum(cpu_ns(client.pid) for client in self._clients)
        others += sum(cpu_ns(thread) for thread in self._threads)
        return sum(self._busy.read().busy_ns.values()) - others


def _napi_threads(bed: Bed, role: str, device: str) -> list[int]:
    """Of a lab's device; a NIC of another kind has no such wire."""
    lab, _, name = bed.nic.partition(":")
    if lab != "lab":
        return []
    netns = path_of(f"{name}-{role}")
    with closing(Interface(device, netns)) as interface, closing(NetdevFamily(netns)) as family:
        return [napi.pid for napi in family.napis(interface.ifindex) or [] if napi.pid]


class _Measured(NamedTuple):
    """Between two readings."""

    seconds: float
    spent_ns: int
    daemon_ns: int
    handoffs: int
    switches: int
    bytes: int
    read_locality: float | None


def _between(
    meter: Meter, spent: _Spent, daemon: Daemon | None, window: AbstractContextManager[None]
) -> _Measured:
    """What was counted while `window` lasted; it waits for its begin."""

    def ours_ns() -> int:
        return cpu_ns(daemon.process.pid) if daemon else 0

    with window:
        before = time.monotonic(), spent.ns(), ours_ns(), handoffs() or 0, context_switches() or 0
        counts = meter.totals()
    counts = meter.totals().since(counts)
    now = time.monotonic(), spent.ns(), ours_ns(), handoffs() or 0, context_switches() or 0
    lasted_s, spent_ns, daemon_ns, handed, switched = (
        b - a for a, b in zip(before, now, strict=True)
    )
    read = counts.local_bytes + counts.remote_bytes + counts.unseen_bytes
    return _Measured(
        lasted_s, int(spent_ns), int(daemon_ns), int(handed), int(switched), read,
        counts.read_locality,
    )  # fmt: skip


@contextlib.contextmanager
def _window(client: Child, limit_s: float) -> Iterator[None]:
    client.said("measuring", limit_s)
    yield
    client.said("measured", limit_s)


@contextlib.contextmanager
def _lasting(warm_s: float, seconds: float) -> Iterator[None]:
    time.sleep(warm_s)
    yield
    time.sleep(seconds)


class Bench:
    """What every run needs. `tree`: of the servers' programs, as for `servers.running`. `program`:
    that asks them, None: it is compiled. `alone_s`: for so long one connection asks before the
    others are made, so that it is known by then which thread accepts them."""

    def __init__(
        self,
        bed: Bed,
        meter: Meter,
        busy: BusyCpus,
        folder: Path,
        tree: Path | None = None,
        alone_s: float = 0.0,
        program: Path | None = None,
    ) -> None:
        self.bed, self.meter, self.busy, self.folder = bed, meter, busy, folder
        self.tree, self.alone_s = tree, alone_s
        self.program = program or requests.built(folder)
        self.limits: dict[tuple[str, int, bool], float] = {}

    def limit(self, cell: Cell) -> float:
        """Operations a second under RSS, saturated; measured once."""
        key = cell.server, cell.connections, cell.pinned
        if key not in self.limits:
            lasting = WARM_S, CALIBRATION_S
            found = self._run(cell._replace(saturated=True), "rss", 0, None, lasting)
            self.limits[key] = found.per_s
        return self.limits[key]

    def run(self, cell: Cell, name: str, turn: int, wanted: Wanted) -> Run:
        rate = None if cell.saturated else LIGHT * self.limit(cell)
        return self._run(cell, name, turn, rate, (wanted.warm_s, wanted.window_s))

    def _run(
        self, cell: Cell, name: str, turn: int, rate: float | None, lasting_s: tuple[float, float]
    ) -> Run:
        loud = kept_busy(self.busy)
        with _contender(name, self.bed, cell) as daemon:
            return self.window(cell, name, daemon, turn, rate, lasting_s, loud)

    def window(
        self,
        cell: Cell,
        name: str,
        daemon: Daemon | None,
        turn: int,
        rate: float | None,
        lasting_s: tuple[float, float],
        loud: float,
    ) -> Run:
        """One window under the contender of this name, which is in force. `rate`: operations a
        second, None: as many as the server does. `lasting_s`: before the window, and the window.
        `loud`: what `kept_busy` found."""
        one = self._bulk if cell.server in BULK else self._asked
        got, found = one(cell, daemon, rate, *lasting_s)
        operations = max(1.0, got.per_s * found.seconds)
        return Run(
            turn, cell.name, name, got.per_s, got.p50_ns, got.p99_ns,
            found.spent_ns / operations, found.daemon_ns / 1e9 / found.seconds,
            found.handoffs / operations, found.switches / operations, found.read_locality,
            got.lost, loud,
        )  # fmt: skip

    @contextlib.contextmanager
    def asking(
        self, cell: Cell, rate: float | None, warm_s: float, window_s: float
    ) -> Iterator[Child]:
        """The server of a cell, and its client, which is yielded when it is connected."""
        server = SERVERS[cell.server]
        to = self.program, self.bed, PORT, server.asked
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder)))
            process = stack.enter_context(running(cell.server, self.bed, folder, self.tree))
            if cell.pinned:
                pin_workers(process, server.workers, self.bed.cpus)
            if self.alone_s:
                with requests.asking(*to, 1, 10.0, 0.0, self.alone_s) as first:
                    first.wait(self.alone_s + 30)
            client = stack.enter_context(
                requests.asking(*to, cell.connections, rate, warm_s, window_s)
            )
            if cell.pinned and not server.workers:
                pin_workers(process, server.workers, self.bed.cpus)
            yield client

    def _asked(
        self, cell: Cell, daemon: Daemon | None, rate: float | None, warm_s: float, window_s: float
    ) -> tuple[_Rate, _Measured]:
        with self.asking(cell, rate, warm_s, window_s) as client:
            spent = _Spent(self.bed, self.busy, [client])
            limit_s = warm_s + window_s + 30
            found = _between(self.meter, spent, daemon, _window(client, limit_s))
            got = requests.answers(client, limit_s)
        return _Rate(got.per_s, got.p50_ns, got.p99_ns, got.lost), found

    def _bulk(
        self, cell: Cell, daemon: Daemon | None, rate: float | None, warm_s: float, window_s: float
    ) -> tuple[_Rate, _Measured]:
        bed = self.bed
        cpus = bed.cpus if bed.spare else None
        pace = None if rate is None else int(8 * MB * rate / cell.connections)
        with ExitStack() as stack:
            process = stack.enter_context(iperf.server(bed.host, bed.address, PORT, cpus))
            if cell.pinned:
                pin_workers(process, 1, bed.cpus)
            client = stack.enter_context(
                iperf.client(
                    bed.peer, bed.address, PORT, cell.connections, warm_s + window_s + 1, pace,
                    udp=cell.server == "iperf3-udp",
                )
            )  # fmt: skip
            spent, window = _Spent(bed, self.busy, [client]), _lasting(warm_s, window_s)
            found = _between(self.meter, spent, daemon, window)
        return _Rate(found.bytes / MB / found.seconds, None, None, 0), found


class _Rate(NamedTuple):
    """What a client got."""

    per_s: float
    p50_ns: float | None
    p99_ns: float | None
    lost: int


def kept_busy(busy: BusyCpus, look_s: float = 0.2) -> float:
    """CPUs that are busy while nothing of ours runs."""
    before, began = busy.read().busy_ns, time.monotonic_ns()
    time.sleep(look_s)
    now = busy.read().busy_ns
    return sum(now[cpu] - before.get(cpu, now[cpu]) for cpu in now) / (time.monotonic_ns() - began)


def _kept(path: Path) -> dict[tuple[int, str, str], Run]:
    """Runs of an earlier time; a line that was cut is none."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError, TypeError):
            each = Run(*json.loads(line))
            found[each.turn, each.cell, each.contender] = each
    return found


def measure(wanted: Wanted, folder: Path = FOLDER) -> dict[str, Any]:
    """In each round every cell is given to every contender in turn. Who begins changes with the
    round and the cell, so that no contender always runs after the same one."""
    mode = "-interrupts" if wanted.interrupts else ""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"applications{mode}.runs"
    kept = _kept(path) if wanted.resume else {}
    chosen, runs = cells(wanted.only), list[Run]()
    with (
        lab_bed(interrupts=wanted.interrupts) as bed,
        bed.meter() as meter,
        closing(BusyCpus()) as busy,
        tempfile.TemporaryDirectory(prefix="atfnd-applications-") as scratch,
        path.open("a" if wanted.resume else "w") as log,
    ):
        Path(scratch).chmod(0o755)
        bench = Bench(bed, meter, busy, Path(scratch))
        for turn in range(wanted.rounds):
            for place, cell in enumerate(chosen):
                names = contending(cell)
                first = (turn + place) % len(names)
                for name in [*names[first:], *names[:first]]:
                    one = kept.get((turn, cell.name, name))
                    if one is None:
                        one = bench.run(cell, name, turn, wanted)
                        print(json.dumps(one), file=log, flush=True)
                    runs.append(one)
        notes = [f"packets come by {bed.delivery}; atfnd's order is {bed.order}"]
        notes += caveats(bed, runs)
    return {"runs": runs, "notes": notes, "name": f"applications{mode}"}


def caveats(bed: Bed, runs: Sequence[Run]) -> list[str]:
    """What a reader of the figures should know first."""
    found = []
    if not bed.spare:
        found.append(
            f"clients and wire share the host's {len(bed.cpus)} CPUs: saturated, they take from "
            "the server what steering may save, and p99 is also theirs"
        )
    loud = sum(run.others > LOAD for run in runs)
    if loud:
        found.append(f"before {loud} of {len(runs)} runs others kept more than {LOAD:g} CPUs busy")
    return found


def run(wanted: Wanted) -> Report:
    """On a lab NIC; says first how long it takes."""
    minutes = seconds(wanted) / 60
    count = len(cells(wanted.only))
    print(
        f"applications: {count} cells, {wanted.rounds} rounds, about {minutes:.0f} minutes"
        f"; load average {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
        flush=True,
    )
    return applications_report.report(measure(wanted))
