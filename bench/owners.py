# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows on their owner's core, by the size of the filter table; and what an owner's move writes.

As the paper's Table 5: 2n TCP streams into two servers, one a core, of a NIC with 10, 100 or 1000
filters (and 4096, the lab's own). `exact` is a filter a flow, for as many as the table takes; the
others stay where RSS puts them. `follow` is one filter an owner, for its port, to a queue of its
own. Then the servers change places: `exact` writes each filter anew, `follow` moves two queues to
the other CPUs. A flow is on its owner's core if all that came of it for a while was delivered there
(bench/meter.py); nothing here waits for old rings, which `bench ordering` is about.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from atfnd.model import FlowKey, Match, Protocol
from atfnd.nic import Nic
from bench.bed import Bed, lab_bed
from bench.children import pin
from bench.connections import PORTS, connections, streams
from bench.contenders import in_turn
from bench.meter import Meter
from bench.report import Report
from bench.stats import median
from bench.traffic import messages

__all__ = ["TABLES", "run"]

PAPER = (40, 200, 1000, 2000)
TABLES = {10: PAPER, 100: PAPER, 1000: PAPER, 4096: (2, 20, 200, 2000)}
METHODS = ("exact", "follow")
OFFERED_BYTES_PER_S = 30_000_000
EACH_COMES_S = 0.6  # and in this time three times


class Run(NamedTuple):
    """One table, count and means. Shares are of flows, 0 to 1."""

    table: int
    streams: int
    method: str
    rules: int
    placed: float
    placed_after: float  # its owner's move
    writes: int  # for both owners' moves
    took_ns: int


WRITES, AFTER = "writes an owner's move", "placed after a move"
SHOWN: tuple[tuple[str, str, Callable[[Run], float]], ...] = (
    ("placed", "share", lambda run: run.placed),
    (AFTER, "share", lambda run: run.placed_after),
    (WRITES, "writes", lambda run: run.writes / len(PORTS)),
    ("time an owner's move", "us", lambda run: run.took_ns / len(PORTS) / 1000),
)


def run(rounds: int) -> Report:
    """`rounds` rounds of all."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        program = messages.built(Path(folder))
        for table, counts in TABLES.items():
            with lab_bed(rules=table, queues=len(PORTS)) as bed, bed.meter() as meter:
                for turn, count in product(range(rounds), counts):
                    for method in in_turn(METHODS, turn):
                        runs.append(measured(program, bed, meter, table, count, method))
    return report(runs)


def measured(program: Path, bed: Bed, meter: Meter, table: int, count: int, method: str) -> Run:
    """One run; the table and the queues' CPUs are as they were afterwards."""
    with streams(program, bed, count, OFFERED_BYTES_PER_S) as servers, bed.open() as nic:
        flows = list(connections(bed))
        try:
            rules = _exact(nic, flows) if method == "exact" else _of_owners(nic, flows[0])
            placed = _placed(meter, flows)
            for number, server in enumerate(servers):
                pin(server.pid, [bed.cpus[1 - number]])
            began = time.perf_counter_ns()
            writes = _moved(bed, nic, rules, method)
            took_ns = time.perf_counter_ns() - began
            after = _placed(meter, flows)
        finally:
            bed.clear_filters()
            for queue, cpu in enumerate(bed.cpus):
                nic.set_queue_cpu(queue, cpu)
    return Run(table, count, method, len(rules), placed, after, writes, took_ns)


Rules = dict[int, tuple[Match, int]]  # by location: what it matches, and its queue


def _exact(nic: Nic, flows: Sequence[FlowKey]) -> Rules:
    """A filter for each flow, owners in turn, until the table is full."""
    rules: Rules = {}
    own = [[key for key in flows if key.local_port == port] for port in PORTS]
    for pair in zip(*own, strict=True):
        for queue, key in enumerate(pair):
            if len(rules) == nic.caps().filter_slots:
                return rules
            match = Match.of(key)
            rules[nic.insert(match, queue)] = match, queue
    return rules


def _of_owners(nic: Nic, example: FlowKey) -> Rules:
    """A filter for each owner's port, at a location of our choice: the driver itself keeps but a
    part of a table for ports, which of ten filters is one."""
    rules: Rules = {}
    for queue, port in enumerate(PORTS):
        anyone = FlowKey(Protocol.TCP, example.local, port, bytes(4), 0)
        match = Match.of(anyone)
        rules[nic.insert(match, queue, location=queue)] = match, queue
    return rules


def _moved(bed: Bed, nic: Nic, rules: Rules, method: str) -> int:
    """Both owners have changed CPU: how many writes it took to follow."""
    if method == "follow":
        for queue, cpu in enumerate(reversed(bed.cpus)):
            nic.set_queue_cpu(queue, cpu)
        return len(bed.cpus)
    for location, (match, queue) in rules.items():
        nic.insert(match, 1 - queue, location)
    return len(rules)


def _placed(meter: Meter, flows: Sequence[FlowKey]) -> float:
    """Share of the flows that were delivered on their owner's core only."""
    time.sleep(EACH_COMES_S)  # what was on its way, and each server's first call on its core
    before = meter.read()
    time.sleep(EACH_COMES_S)
    found = meter.read().since(before).flows
    return sum(key in found and found[key].locality == 1 for key in flows) / len(flows)


def report(runs: Sequence[Run]) -> Report:
    """Medians over rounds; times for one owner's move."""
    report = Report("owners", "flows on their owner's core, by size of the filter table")
    report.samples["runs"] = [each._asdict() for each in runs]
    groups: dict[tuple[int, int, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.table, each.streams, each.method), []).append(each)
    for (table, count, method), found in groups.items():
        values = {}
        for title, unit, of in SHOWN:
            what = f"table of {table}, 2n = {count}, {title}"
            values[title] = report.add(what, method, unit, median(map(of, found))).value
        if method == "follow":
            what = f"follow, table of {table}, 2n = {count}"
            report.at_most(f"{what}, writes", values[WRITES], 1, "writes")
            report.at_least(f"{what}, placed", values[AFTER], 1, "share")
    return report
