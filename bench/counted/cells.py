# SPDX-License-Identifier: GPL-2.0-or-later
"""What a request costs in the counted guest: a server of one thread on CPU 2 of two sockets, or
wherever the scheduler takes it, clients on the last CPUs, and packets steered by each contender.

A round has connections of its own: RSS depends on where they hash. Python, and the daemon of atfnd,
are confined to the last CPU of the server's; Python sleeps while windows are measured. Which bytes
are read on the CPU that processed them is counted before: the meter has programs, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from atfnd.errors import OperatorError
from bench import contenders
from bench.bed import Bed, succeed
from bench.children import Child, child
from bench.counted.counts import (
    KINDS,
    LATENCIES_NS,
    MODES,
    ROUNDS,
    Window,
    judge,
    marks,
    pingpongs,
    windows,
)
from bench.daemon import Daemon, follow_tcp
from bench.meter import Meter
from bench.servers import PORT, SERVERS, pin_workers, running
from bench.sim_bed import counted_bed

__all__ = [
    "CLIENTS",
    "CONNECTIONS",
    "CONTENDERS",
    "COUNTS",
    "LOADS",
    "NEIGHBOUR",
    "SERVED",
    "STATIC",
    "Counting",
    "Load",
    "Wanted",
    "figures",
    "filtered",
    "measure",
    "serving",
    "start",
]

SERVED = (
    "redis", "nginx", "memcached", "haproxy", "nginx-4", "postgresql", "nginx-short",
    "redis-8", "unbound-1", "stream", "stream-udp",
)  # fmt: skip
SERVER_CPU, NEIGHBOUR = 2, 3
CLIENTS = {8: 2, 16: 4, 32: 8}  # of so many CPUs
CONNECTIONS = 16
WARM_MS, WINDOWS = 50, 2  # of eight CPUs' virtual time
LOOK_S, STILL, SETTLE_S = 0.5, 120, 180.0
METERED_S = 0.5
TRIES = 3
SLOWER = 3  # for each CPU: N of them execute a billion instructions a second of the guest's time
START = Path(__file__).with_name("start.sh")
COPIED = Path("/dev/shm/counted")  # by start.sh
COUNTS = Path("/run/guest/counts")

Contender = Callable[[Bed, str], AbstractContextManager[Daemon | None]]  # tcp or udp


class Load(NamedTuple):
    """What is offered, and for how long."""

    share: float | None  # of what RSS answers at most; None: each connection asks when answered
    window_ms: int  # of eight CPUs' virtual time


LOADS = {"saturated": Load(None, 120), "half": Load(0.5, 120), "light": Load(0.2, 240)}


class Wanted(NamedTuple):
    """Cells of one server, as JSON has them. `most`: requests/s of RSS when saturated; None: no
    load is a share of it."""

    server: str
    pinned: bool
    cpus: int
    most: float | None
    cells: list[tuple[str, str]]  # load, contender


@contextlib.contextmanager
def filtered(bed: Bed, protocol: str, *, queue: int) -> Iterator[None]:
    """One for the server's port."""
    bed.clear_filters()
    said = f"flow-type {protocol}4 dst-port {PORT} action {queue} loc 0"
    succeed("ethtool", "-N", bed.device, *said.split())
    with bed.open() as nic:
        if [rule.queue for rule in nic.filters()] != [queue]:  # ethtool exits 0 when refused
            raise OperatorError(f"{bed.device} did not take the filter", exit_code=1)
    try:
        yield
    finally:
        bed.clear_filters()


@contextlib.contextmanager
def _atfnd(bed: Bed, protocol: str) -> Iterator[Daemon]:
    """What the daemon does regularly takes the share of a CPU that it takes of a real one."""
    os.environ["ATFND_PACE"] = str(1 / (SLOWER * _count(bed)))
    policy = follow_tcp(unowned="keep", protocol=protocol)
    with contenders.atfnd(bed, policy) as daemon:
        yield daemon


# For a server that is pinned.
STATIC: dict[str, Contender] = {
    "same-core": partial(filtered, queue=SERVER_CPU),
    "neighbour": partial(filtered, queue=NEIGHBOUR),
}
# atfnd is first: its daemon starts before anything is instrumented, which is slow.
CONTENDERS: dict[str, Contender] = {
    "atfnd": _atfnd,
    "rss": lambda bed, _: contenders.rss(bed),
    "rfs": lambda bed, _: contenders.rfs(bed),
    "arfs": lambda bed, _: contenders.arfs(bed),
    **STATIC,
}


def measure(rounds: int, wanted: str) -> dict[str, Any]:
    """Figures of each window, by cell. `wanted`: JSON of a Wanted. OperatorError: the bed is not as
    it should be."""
    server, pinned, cpus, most, asked = Wanted(*json.loads(wanted))
    about = {"server": server, "pinned": pinned, "cpus": cpus, "connections": CONNECTIONS}

    def found() -> Iterator[dict[str, Any]]:
        started = False
        with serving(server, cpus, pinned=pinned) as bench:
            for name in CONTENDERS:
                loads = [load for load, contender in asked if contender == name]
                if not loads:
                    continue
                protocol = "udp" if SERVERS[server].asked.means == "udp" else "tcp"
                with CONTENDERS[name](bench.bed, protocol) as daemon:
                    if not started:
                        start(cpus)
                        started = True
                    for load in loads:
                        windows = []
                        rate = (LOADS[load].share or 0) * (most or 0)
                        for turn in range(rounds):
                            windows += bench.measured(load, rate, daemon)
                            said = f"{name}, {load}: {turn + 1} of {rounds}"
                            print(said, file=sys.stderr, flush=True)
                        yield {"load": load, "contender": name, "windows": windows}

    return collected(about, found())


def collected(about: dict[str, Any], found: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """All cells; each is also printed when it is done, as if it were the only one."""
    cells = []
    for cell in found:
        print(json.dumps({**about, "cells": [cell]}), flush=True)
        cells.append(cell)
    return {**about, "cells": cells}


@contextlib.contextmanager
def serving(server: str, cpus: int, *, pinned: bool = True) -> Iterator[Counting]:
    """A server that listens, on SERVER_CPU and, if it has several workers, on those after it;
    python is confined to the last of the server's CPUs."""
    with (
        counted_bed(CLIENTS[cpus]) as bed,
        contextlib.closing(bed.meter()) as meter,
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
    ):
        first = bed.cpus.index(SERVER_CPU)
        apart = (*bed.cpus[first:-1], *bed.cpus[:first])
        places = apart[:1] if SERVERS[server].workers == 1 else apart
        there = replace(bed, cpus=places) if pinned else bed
        with running(server, there, Path(folder)) as process:
            os.sched_setaffinity(0, {bed.cpus[-1]})
            yield Counting(bed, server, process, places if pinned else None, meter)


def _count(bed: Bed) -> int:
    """Of CPUs."""
    return len(bed.cpus) + len(bed.spare)


def start(cpus: int) -> None:
    """Count from now on. OperatorError: the machine is refused."""
    pairs = [f"{one} {other}" for one, other in pingpongs(cpus)]
    said = succeed("bash", str(START), str(ROUNDS), *pairs)
    judge(COUNTS.read_text(), said, cpus)


@dataclass(frozen=True, slots=True)
class Counting:
    """A server that listens on a bed. `places`: of its workers, in turn; None: where they like."""

    bed: Bed
    server: str
    process: Child
    places: tuple[int, ...] | None
    meter: Meter
    connections: int = CONNECTIONS

    def measured(self, load: str, rate: float, daemon: Daemon | None) -> list[dict[str, Any]]:
        """The windows of one set of connections; of another, when one is refused."""
        for attempt in range(TRIES):
            with self._asking(rate, LOADS[load].window_ms) as client:
                if daemon:
                    self._settle(daemon)
                locality = self._locality()
                os.kill(client.pid, signal.SIGUSR1)
                os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)  # polling would be counted
                lines = client.wait(10).splitlines()[1:]
            said = [json.loads(line) for line in lines]
            counted = marks(COUNTS.read_text())[-2 * WINDOWS :]
            try:
                found = windows(counted, [each["ns"] for each in said])
            except OperatorError as refused:
                if attempt + 1 == TRIES:
                    raise
                print(refused.message, file=sys.stderr, flush=True)
                continue
            both = zip(said, found, strict=True)
            return [{**figures(*each, self.bed.cpus), "read_locality": locality} for each in both]
        raise AssertionError

    @contextlib.contextmanager
    def _asking(self, rate: float, window_ms: int) -> Iterator[Child]:
        """A client that asks seldom, until it is signalled. `rate`: of CPUs that execute one
        instruction a ns."""
        bed = self.bed
        clients = ",".join(map(str, bed.spare))
        asked, ports = SERVERS[self.server].asked, SERVERS[self.server].ports
        words = (asked.means, bed.address, PORT, ports, self.connections, clients, len(bed.cpus))
        count, longer = _count(bed), max(1, self.connections // 200)  # each is asked in a window
        spans = (each * count // 8 * longer for each in (WARM_MS, window_ms))
        times = (rate / count, *spans, WINDOWS)
        said = (asked.times, asked.request.hex(), asked.prologue.hex())
        command = (COPIED / "load", "ask", *words, *times, COPIED / "spinidle.ko", *said)
        self._pin()  # before a flow has a place
        with child(*map(str, command), netns=bed.peer, cpus=bed.spare) as client:
            client.said("connected")
            self._pin()  # some servers have a worker for each connection
            yield client

    def _pin(self) -> None:
        """A worker a CPU, in turn."""
        if self.places:
            pin_workers(self.process, SERVERS[self.server].workers, self.places)

    def _locality(self) -> float | None:
        """Of bytes read: the share that was read on the CPU that had processed them. None: they
        would be read elsewhere under load."""
        if not self.places:
            return None
        before = self.meter.totals()
        self.meter.start()
        time.sleep(METERED_S)
        self.meter.stop()
        return self.meter.totals().since(before).read_locality

    def _settle(self, daemon: Daemon) -> None:
        """All flows of a thread that stays are where they belong, as at the last look. Or nothing
        has changed for STILL looks, more than the daemon is between two audits here: strict order
        puts moves off, and of short connections only their port has a place."""
        before, still, end = [""], 0, time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            time.sleep(LOOK_S)
            states = sorted(row["state"] for row in daemon.flows())
            still = still + 1 if states == before else 0
            placed = states and not (self.places and "wanted" in states)
            if still >= (1 if placed else STILL):
                return
            before = states
        raise OperatorError(f"atfnd did not settle: {sorted(set(states))}", exit_code=1)


def figures(said: dict[str, Any], window: Window, cpus: Sequence[int]) -> dict[str, Any]:
    """A request, over these CPUs, of which the daemon has the last; time as on CPUs that execute
    one instruction a ns."""
    of, here = said["requests"], [window[cpu] for cpu in cpus]
    busiest, slowed = max(here, key=lambda cpu: cpu.busy), len(window)
    return {
        "requests": of,
        "instructions": {m: sum(cpu.instructions[m] for cpu in here) / of for m in MODES},
        "busiest_instructions": busiest.busy / of,
        "daemons_instructions": here[-1].busy / of,
        "lines": {kind: sum(cpu.found(kind) for cpu in here) / of for kind in KINDS},
        "ns": {name: sum(cpu.ns(name) for cpu in here) / of for name in LATENCIES_NS},
        "busiest_ns": {name: busiest.ns(name) / of for name in LATENCIES_NS},
        "runs": [sum(each) for each in zip(*(cpu.runs for cpu in here), strict=True)],
        "within": [sum(each) for each in zip(*(cpu.within for cpu in here), strict=True)],
        "ipis": said["ipis"] / of,
        "interrupts": said["interrupts"] / of,
        "requests_per_s": of / said["ns"] * 1e9 * slowed,
        "took_us": [round(ns / 1000 / slowed, 2) for ns in said["took_ns"]],
    }
