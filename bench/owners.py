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

import time
from collections.abc import Sequence
from typing import NamedTuple

from atfnd.model import FlowKey, Match, Protocol
from atfnd.nic import Nic
from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import pin
from bench.connections import PORTS, connections, streams
from bench.meter import Meter
from bench.report import Report, Target
from bench.stats import Estimate, median

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


def run(rounds: int) -> Report:
    """`rounds` rounds of all."""
    runs = []
    for _ in range(rounds):
        for table, counts in TABLES.items():
            with lab_bed(rules=table, queues=len(PORTS)) as bed, bed.meter() as meter:
                for count in counts:
                    runs += [measured(bed, meter, table, count, method) for method in METHODS]
    return report(runs)


def measured(bed: Bed, meter: Meter, table: int, count: int, method: str) -> Run:
    """One run; the table and the queues' CPUs are as they were afterwards."""
    with streams(bed, count, OFFERED_BYTES_PER_S) as servers, bed.open() as nic:
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
    pictures: dict[str, list[Estimate]] = {}
    for (table, count, method), found in groups.items():
        what, who = f"table of {table}, 2n = {count}", f"{method}"
        share = report.add(f"{what}, placed", who, "share", median(r.placed for r in found))
        after = median(each.placed_after for each in found)
        report.add(f"{what}, placed after a move", who, "share", after)
        writes = median(each.writes / len(PORTS) for each in found)
        report.add(f"{what}, writes an owner's move", who, "writes", writes)
        took = median(each.took_ns / len(PORTS) / 1000 for each in found)
        report.add(f"{what}, time an owner's move", who, "us", took)
        pictures.setdefault(f"{method}, {table}", []).append(share)
        if method == "follow":
            report.targets += [
                Target(f"follow, {what}, writes", writes.value, 1, False, "writes"),
                Target(f"follow, {what}, placed", after.value, 1, True, "share"),
            ]
    shown = {name: each for name, each in pictures.items() if not name.endswith("4096")}
    counts = [str(count) for count in PAPER]
    plot.bars("owners", "Flows on their owner's core", "share", counts, shown)
    return report
