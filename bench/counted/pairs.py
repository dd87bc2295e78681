# SPDX-License-Identifier: GPL-2.0-or-later
"""The papers' rows that need two sockets, on the counted machine (cells.py): a request for each
pair of the CPU that receives its packets and its server's (the third paper's matrix); and two
servers that share two CPUs, of one socket or of both, pinned or not (the first paper's experiments
1 to 4). Each request carries 4000 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from bench import plot
from bench.counted import cells, costs
from bench.daemon import Daemon
from bench.report import Report
from bench.servers import threads_of

__all__ = ["CPUS", "SHARED", "matrix", "matrix_report", "shared"]

CPUS = min(cells.CLIENTS)


class Shared(NamedTuple):
    """Two CPUs that two servers share: each has one, or the scheduler places them there."""

    cpus: tuple[int, int]
    pinned: bool = True
    streams: tuple[int, ...] = (40, 200)


SHARED = {
    "one-socket": Shared((2, 3)),
    "two-sockets": Shared((2, 4), streams=(40, 200, 1000)),
    "one-socket-free": Shared((2, 3), pinned=False),
    "two-sockets-free": Shared((2, 4), pinned=False),
}
PICTURES: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "throughput": ("requests a ms of the model", lambda cell: cell["requests_per_s"] / 1000),
    "instructions": ("instructions", lambda cell: cell["instructions_per_request"]),
    "lines": ("lines moved", lambda cell: cell["lines_per_request"]),
    "estimate": ("estimate for EPYC, µs", lambda cell: cell["estimate_ns"]["EPYC"] / 1000),
}
Cells = Iterator[dict[str, Any]]


def matrix(rounds: int, cpus: int = CPUS) -> dict[str, Any]:
    """As `cells.measure`. A filter leads the server's port to one queue after the other, and the
    server is pinned to one CPU after the other."""

    def found() -> Cells:
        with cells.serving("redis-set", cpus) as bench:
            cells.start(cpus)
            for app in bench.bed.cpus:
                here = replace(bench, places=(app,))
                for queue, cpu in enumerate(bench.bed.cpus):
                    with cells.filtered(bench.bed, "tcp", queue=queue):
                        yield _cell(here, f"{cpu} to {app}", rounds)

    return cells.collected({"pinned": True, "cpus": cpus, "server": "redis-set"}, found())


def shared(rounds: int, where: str) -> dict[str, Any]:
    """As `cells.measure`. RSS has the queues of two CPUs, which two servers share."""
    cpus, pinned, numbers = SHARED[where]

    def found() -> Cells:
        with cells.serving("redis-set-2", CPUS, pinned=pinned) as bench:
            bench.bed.deliver_all_to(*map(bench.bed.cpus.index, cpus))
            if not pinned:
                for tids in threads_of(bench.process).values():
                    for tid in tids:
                        os.sched_setaffinity(tid, cpus)
            for name, contender in cells.CONTENDERS.items():
                if name in cells.STATIC:
                    continue
                with contender(bench.bed, "tcp") as daemon:
                    if daemon:
                        cells.start(CPUS)
                    for streams in numbers:
                        here = replace(bench, places=cpus if pinned else None, connections=streams)
                        yield _cell(here, f"{where}: {name}, {streams}", rounds, daemon)

    return cells.collected({"pinned": pinned, "cpus": CPUS, "server": "redis-set-2"}, found())


def matrix_report(measured: dict[str, Any]) -> Report:
    """From what `matrix` found: with a picture for each of some figures."""
    several = "" if measured["cpus"] == CPUS else f"-{measured['cpus']}"
    found = costs.report(measured)
    pairs = {each["contender"]: each for each in found.samples["cells"]}
    cpus = list(dict.fromkeys(name.split(" to ")[1] for name in pairs))
    for name, (what, of) in PICTURES.items():
        values = [[of(pairs[f"{flow} to {app}"]) for app in cpus] for flow in cpus]
        axes = ("the server's CPU", "the CPU that receives")
        plot.heat(
            f"counted-pairs{several}-{name}", f"a request of 4000 bytes: {what}", axes, cpus, values
        )
    return found


def _cell(
    bench: cells.Counting, name: str, rounds: int, daemon: Daemon | None = None
) -> dict[str, Any]:
    windows = [each for _ in range(rounds) for each in bench.measured("saturated", 0, daemon)]
    connections = bench.connections
    return {
        "load": "saturated", "contender": name, "connections": connections, "windows": windows
    }  # fmt: skip
