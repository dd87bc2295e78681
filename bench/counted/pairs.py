# SPDX-License-Identifier: GPL-2.0-or-later
"""The papers' rows that need two sockets, on the counted machine (cells.py): a request for each
pair of the CPU that receives its packets and its server's (the third paper's matrix); and two
servers that share two CPUs, of one socket or of both, pinned or not (the first paper's experiments
1 to 4). Each request carries 4000 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from bench.counted import cells
from bench.daemon import Daemon
from bench.servers import threads_of

__all__ = ["CPUS", "SHARED", "matrix", "shared"]

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


def _cell(
    bench: cells.Counting, name: str, rounds: int, daemon: Daemon | None = None
) -> dict[str, Any]:
    windows = [each for _ in range(rounds) for each in bench.measured("saturated", 0, daemon)]
    connections = bench.connections
    return {
        "load": "saturated", "contender": name, "connections": connections, "windows": windows
    }  # fmt: skip
