# SPDX-License-Identifier: GPL-2.0-or-later
"""The third paper's matrix: a flow's packets on one CPU, its application on another, for all pairs.

As its Figs. 2 and 3: for each pair of a CPU that polls the flow's queue and one that its receiver
is confined to, one TCP stream as fast as it goes, and one connection of requests and answers. No
daemon: one exact rule leads the flow to its queue. The sender, the wire and the peer's acks run
wherever the scheduler puts them, on the same CPUs: on a small machine they are part of what is
measured. `busy` is the time all CPUs were not idle (/proc/stat), everything included.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import psutil

from atfnd.model import Match
from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import Child, child, program
from bench.connections import connections
from bench.report import Report
from bench.stats import median

__all__ = ["Cell", "measured", "report", "run"]

STREAM_PORT, ASK_PORT = 5301, 5302
SETTLE_S, SECONDS = 0.5, 2.0


class Cell(NamedTuple):
    """One pair in one round."""

    flow_cpu: int
    app_cpu: int
    bytes_per_s: float
    bytes_per_busy_s: float
    p50_ns: int  # from request to answer
    p99_ns: int


def run(rounds: int) -> Report:
    """`rounds` rounds of every pair, forwards and backwards in turn."""
    cells = []
    with lab_bed() as bed:
        pairs = [(flow, app) for flow in range(len(bed.cpus)) for app in range(len(bed.cpus))]
        for turn in range(rounds):
            for queue, app in pairs[:: -1 if turn % 2 else 1]:
                cells.append(measured(bed, queue, bed.cpus[app]))
    return report(cells)


def measured(bed: Bed, queue: int, app_cpu: int) -> Cell:
    """One pair: the stream, then the requests."""
    with _led(bed, "streams", ("receive", "send"), STREAM_PORT, queue, app_cpu):
        time.sleep(SETTLE_S)
        before, busy_s, began = _bytes(bed), _busy_s(), time.monotonic()
        time.sleep(SECONDS)
        carried, seconds = _bytes(bed) - before, time.monotonic() - began
        busy_s = _busy_s() - busy_s
    with _led(bed, "rr", ("serve", "drive"), ASK_PORT, queue, app_cpu) as asking:
        time.sleep(SECONDS)
        p50_ns, p99_ns = json.loads(asking.stop().splitlines()[-1])["took_ns"]
    return Cell(
        bed.cpus[queue], app_cpu, carried / seconds, carried / max(busy_s, 0.01), p50_ns, p99_ns
    )


@contextlib.contextmanager
def _led(
    bed: Bed, name: str, roles: tuple[str, str], port: int, queue: int, app_cpu: int
) -> Iterator[Child]:
    """One connection to a receiver on `app_cpu`, whose packets a rule leads to `queue`; yields its
    other end."""
    receive, send = (program(name, role, bed.address, port) for role in roles)
    with child(*receive, netns=bed.host, cpus=[app_cpu]) as receiver, bed.open() as nic:
        receiver.said("ready")
        with child(*send, netns=bed.peer) as sender:
            sender.said("connected")
            [key] = connections(bed)
            location = nic.insert(Match.of(key), queue)
            try:
                yield sender
            finally:
                nic.delete(location)


def _bytes(bed: Bed) -> int:
    return sum(each.bytes for each in connections(bed).values())


def _busy_s() -> float:
    """Time that CPUs were not idle, all together, in steps of a tick."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait)


def report(cells: Sequence[Cell]) -> Report:
    """A row and a picture's cell for each pair: the median of its rounds."""
    report = Report("matrix", "a flow's CPU against its application's, after the third paper")
    report.samples["cells"] = [each._asdict() for each in cells]
    pairs: dict[tuple[int, int], list[Cell]] = {}
    for each in cells:
        pairs.setdefault((each.flow_cpu, each.app_cpu), []).append(each)
    cpus = sorted({flow for flow, _ in pairs})
    for field, what, unit, scale in (
        ("bytes_per_s", "throughput", "MB/s", 1e-6),
        ("bytes_per_busy_s", "carried in a busy second", "MB", 1e-6),
        ("p50_ns", "request to answer, p50", "us", 1e-3),
        ("p99_ns", "request to answer, p99", "us", 1e-3),
    ):
        values = {}
        for (flow, app), found in sorted(pairs.items()):
            at = f"packets on CPU {flow}, application on CPU {app}"
            estimate = median(getattr(each, field) * scale for each in found)
            values[flow, app] = report.add(what, at, unit, estimate).value
        plot.heat(
            f"matrix-{field.removesuffix('_ns').replace('_', '-')}",
            f"{what} ({unit})",
            ("the application's CPU", "the flow's CPU"),
            [str(cpu) for cpu in cpus],
            [[values[flow, app] for app in cpus] for flow in cpus],
        )
    return report
