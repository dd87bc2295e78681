# SPDX-License-Identifier: GPL-2.0-or-later
"""Windows of a real server under whatever steers its packets: what it answered, and for how much.

A cell is a server (bench/servers.py), its connections, its threads where the scheduler puts them or
pinned, and light or saturated. Light: requests come at times that do not wait for answers, and p99
counts from when one was to be sent. Saturated: each connection asks again when it is answered.

CPU of an operation: the time that CPUs were busy (atfnd/observe/machine/busy.py) without that of
the clients and of the threads that play the wire. So the daemon's is in it, and softirqs are.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.system.netns import path_of
from atfnd.model import FlowKey, Match, Protocol
from atfnd.observe.machine.busy import BusyCpus, handoffs
from bench.bed import Bed, napis_of
from bench.children import Child, cpu_ns
from bench.contenders import rss
from bench.daemon import Daemon
from bench.meter import Meter
from bench.servers import PORT, SERVERS, pin_workers, running
from bench.traffic import requests
from bench.verdicts import LOAD, Run

__all__ = ["LIGHT", "Bench", "Cell", "caveats", "kept_busy", "placed"]

LIGHT = 0.2  # of what is answered at most under RSS
WARM_S, CALIBRATION_S = 1.0, 1.5


class Cell(NamedTuple):
    """One load on one server."""

    server: str
    connections: int
    pinned: bool
    saturated: bool

    @property
    def name(self) -> str:
        pinned = "pinned" if self.pinned else "unpinned"
        load = "saturated" if self.saturated else "light"
        return f"{self.server} × {self.connections}, {pinned}, {load}"


@contextlib.contextmanager
def placed(bed: Bed, cpu: int) -> Iterator[None]:
    """All packets of the port, by TCP, come to the queue of this CPU."""
    bed.clear_filters()
    key = FlowKey(Protocol.TCP, bytes(map(int, bed.address.split("."))), PORT, bytes(4), 0)
    with bed.open() as nic:
        queue = next(q.index for q in nic.queues() if q.cpu == cpu)
        location = nic.insert(Match.of(key), queue)
        try:
            yield
        finally:
            nic.delete(location)


class _Spent:
    """CPU time that the host's side takes."""

    def __init__(self, bed: Bed, busy: BusyCpus, client: Child) -> None:
        self._busy, self._client, self._wire = busy, client, _wire_threads(bed)

    def ns(self) -> int:
        others = sum(map(cpu_ns, (self._client.pid, *self._wire)))
        return sum(self._busy.read().busy_ns.values()) - others


def _wire_threads(bed: Bed) -> list[int]:
    """Of a lab; a NIC of another kind has no such wire."""
    lab, _, name = bed.nic.partition(":")
    if lab != "lab":
        return []
    return [napi.pid for napi in napis_of(path_of(f"{name}-wire"), "w0") if napi.pid]


class _Measured(NamedTuple):
    """Between two readings."""

    seconds: float
    spent_ns: int
    daemon_ns: int
    handoffs: int
    read_locality: float | None


def _between(
    meter: Meter, spent: _Spent, daemon: Daemon | None, window: AbstractContextManager[None]
) -> _Measured:
    """What was counted while `window` lasted; it waits for its begin."""

    def read() -> tuple[int, ...]:
        ours_ns = cpu_ns(daemon.process.pid) if daemon else 0
        return time.monotonic_ns(), spent.ns(), ours_ns, handoffs() or 0

    with window:
        before, counts = read(), meter.totals()
    counts, now = meter.totals().since(counts), read()
    ns, spent_ns, ours_ns, handed = (b - a for a, b in zip(before, now, strict=True))
    return _Measured(ns / 1e9, spent_ns, ours_ns, handed, counts.read_locality)


@contextlib.contextmanager
def _window(client: Child, limit_s: float) -> Iterator[None]:
    client.said("measuring", limit_s)
    yield
    client.said("measured", limit_s)


class Bench:
    """What every window needs. `tree`: of the servers' programs, as for `servers.running`.
    `program`: that asks them, None: it is compiled."""

    def __init__(
        self,
        bed: Bed,
        meter: Meter,
        busy: BusyCpus,
        folder: Path,
        tree: Path | None = None,
        program: Path | None = None,
    ) -> None:
        self.bed, self.meter, self.busy, self.folder = bed, meter, busy, folder
        self.tree = tree
        self.program = program or requests.built(folder)

    def limit(self, cell: Cell) -> float:
        """Operations a second under RSS, saturated."""
        with rss(self.bed):
            full = cell._replace(saturated=True)
            return self.window(full, "rss", None, 0, None, (WARM_S, CALIBRATION_S), 0.0).per_s

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
        limit_s = sum(lasting_s) + 30
        with self.asking(cell, rate, *lasting_s) as client:
            spent = _Spent(self.bed, self.busy, client)
            found = _between(self.meter, spent, daemon, _window(client, limit_s))
            got = requests.answers(client, limit_s)
        operations = max(1.0, got.per_s * found.seconds)
        return Run(
            turn, cell.name, name, got.per_s, got.p50_ns, got.p99_ns,
            found.spent_ns / operations, found.daemon_ns / 1e9 / found.seconds,
            found.handoffs / operations, found.read_locality,
            loud,
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
            yield stack.enter_context(
                requests.asking(*to, cell.connections, rate, warm_s, window_s)
            )


def kept_busy(busy: BusyCpus, look_s: float = 0.2) -> float:
    """CPUs that are busy while nothing of ours runs."""
    before, began = busy.read().busy_ns, time.monotonic_ns()
    time.sleep(look_s)
    now = busy.read().busy_ns
    return sum(now[cpu] - before.get(cpu, now[cpu]) for cpu in now) / (time.monotonic_ns() - began)


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
