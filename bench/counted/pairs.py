# SPDX-License-Identifier: GPL-2.0-or-later
"""The papers' rows that need two sockets, on the counted machine (cells.py): a request for each
pair of the CPU that receives its packets and its server's (the third paper's matrix); and two
servers that share two CPUs, of one socket or of both (the first paper's experiments 1 and 2). Each
request carries 4000 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from bench import plot
from bench.counted import cells, costs
from bench.daemon import Daemon
from bench.report import Report

__all__ = ["SHARED", "matrix", "matrix_report", "shared"]

CPUS = min(cells.CLIENTS)
SHARED = {"one-socket": (2, 3), "two-sockets": (2, 4)}  # CPUs
STREAMS = (40, 200)
PICTURES: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "throughput": ("requests a ms of the model", lambda cell: cell["requests_per_s"] / 1000),
    "instructions": ("instructions", lambda cell: cell["instructions_per_request"]),
    "lines": ("lines moved", lambda cell: cell["lines_per_request"]),
    "estimate": ("estimate for EPYC, µs", lambda cell: cell["estimate_ns"]["EPYC"] / 1000),
}
ABOUT = {"pinned": True, "cpus": CPUS}
Cells = Iterator[dict[str, Any]]


def matrix(rounds: int) -> dict[str, Any]:
    """As `cells.measure`. A filter leads the server's port to one queue after the other, and the
    server is pinned to one CPU after the other."""

    def found() -> Cells:
        with cells.serving("redis-set", CPUS) as bench:
            cells.start(CPUS)
            for app in bench.bed.cpus:
                here = replace(bench, places=(app,))
                for queue, cpu in enumerate(bench.bed.cpus):
                    with cells.filtered(bench.bed, "tcp", queue=queue):
                        yield _cell(here, f"{cpu} to {app}", rounds)

    return cells.collected({**ABOUT, "server": "redis-set"}, found())


def shared(rounds: int, where: str) -> dict[str, Any]:
    """As `cells.measure`. RSS has the queues of two CPUs, and each of two servers is pinned to one
    of them."""

    def found() -> Cells:
        with cells.serving("redis-set-2", CPUS) as bench:
            bench.bed.deliver_all_to(*map(bench.bed.cpus.index, SHARED[where]))
            for name, contender in cells.CONTENDERS.items():
                if name in cells.STATIC:
                    continue
                with contender(bench.bed, "tcp") as daemon:
                    if daemon:
                        cells.start(CPUS)
                    for streams in STREAMS:
                        here = replace(bench, places=SHARED[where], connections=streams)
                        yield _cell(here, f"{where}: {name}, {streams}", rounds, daemon)

    return cells.collected({**ABOUT, "server": "redis-set-2"}, found())


def matrix_report(measured: dict[str, Any]) -> Report:
    """From what `matrix` found: with a picture for each of some figures."""
    found = costs.report(measured)
    pairs = {each["contender"]: each for each in found.samples["cells"]}
    cpus = list(dict.fromkeys(name.split(" to ")[1] for name in pairs))
    for name, (what, of) in PICTURES.items():
        values = [[of(pairs[f"{flow} to {app}"]) for app in cpus] for flow in cpus]
        axes = ("the server's CPU", "the CPU that receives")
        plot.heat(f"counted-pairs-{name}", f"a request of 4000 bytes: {what}", axes, cpus, values)
    return found


def _cell(
    bench: cells.Counting, name: str, rounds: int, daemon: Daemon | None = None
) -> dict[str, Any]:
    windows = [each for _ in range(rounds) for each in bench.measured("saturated", 0, daemon)]
    connections = bench.connections
    return {
        "load": "saturated", "contender": name, "connections": connections, "windows": windows
    }  # fmt: skip
