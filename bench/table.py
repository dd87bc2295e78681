# SPDX-License-Identifier: GPL-2.0-or-later
"""Bytes that reach their application's core, by how many filters there are: a simulation.

No kernel and no NIC: flows come in simulated time, and what is decided is decided by the real code
(bench/simulated.py). 8 applications, one a CPU, a queue a CPU; half of them are servers, of whose
ports we learn late, the others connect. What flows carry is Zipf's: the n-th most 1/n of the first.
They come in random order, some at each look, so that any of them may come first. Contenders:

- `rss`: no filter;
- `first come`: the first flow that finds a filter keeps it;
- `worth`: the worthiest have them (engine/filters/budget.py);
- `worth, ports`: and one filter delivers the flows of a port, if that moves none
  (engine/filters/aggregate.py);
- `worth, born`: the servers listen when we are there already: their ports have a rule from then on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Actuator,
    Caps,
    FlowKey,
    FlowRule,
    Listening,
    Migrant,
    Mode,
    NicStats,
    NicView,
    Placement,
    Protocol,
    Queue,
    Rss,
    Thread,
)
from bench import plot
from bench.report import Report, Target
from bench.simulated import Load, Simulated
from bench.stats import Estimate, median

__all__ = ["CONTENDERS", "RULE", "measured", "nic_of", "run"]

APPS = 8
FLOWS = 1000
TABLES = (16, 32, 64, 128, 256, 512, 1024)
CONTENDERS = ("rss", "first come", "worth", "worth, ports", "worth, born")
BYTES_PER_S = 1_000_000_000  # of the busiest
COME_AT_A_LOOK = 50
LOOKS = 60
LOCAL = bytes([10, 0, 0, 1])
RULE = FlowRule(
    name="rest", source="bench:1", protocols=None, ports=None, local=None, remote=None,
    processes=None, min_bytes=0, min_age_ns=0, placement=Placement.CORE, order=Mode.STRICT,
    owner=Migrant.THREAD, dwell_ns=0, t_delete_ns=1 << 60,
)  # fmt: skip


class Run(NamedTuple):
    """One table and contender. `placed` is a share of bytes, 0 to 1."""

    table: int
    contender: str
    placed: float
    rules: int
    writes: int  # of rules, in all


class FirstCome(Simulated):
    """As it was without a budget: filters stay where they are."""

    def spend(self) -> None:
        pass


def run(rounds: int) -> Report:
    """`rounds` rounds, each with other flows."""
    runs = []
    for seed in range(rounds):
        without = measured(0, "rss", seed)
        for table in TABLES:
            runs.append(without._replace(table=table))
            runs += [measured(table, each, seed) for each in CONTENDERS if each != "rss"]
    return report(runs)


def measured(table: int, contender: str, seed: int, flows: int = FLOWS) -> Run:
    """One run, at its end."""
    loads = _flows(random.Random(seed), flows)
    rules = {RULE.name: replace(RULE, t_delete_ns=1 << 60)}
    memory = Memory(FlowTable(2 * flows), RulesInForce(10_000_000, 1 << 60, rules))
    nic = nic_of(0 if contender == "rss" else table)
    kind = FirstCome if contender == "first come" else Simulated
    served = _listeners(loads, known=contender == "worth, born")
    if contender not in ("worth, ports", "worth, born"):
        served = []
    simulated = kind(nic, RULE, memory, [], served=served)
    simulated.look()
    for _ in range(LOOKS):
        some, loads = loads[:COME_AT_A_LOOK], loads[COME_AT_A_LOOK:]
        simulated.arrive(some)
        simulated.look()
    return Run(table, contender, simulated.placed(), len(simulated.held), simulated.writes)


def _flows(chance: random.Random, count: int) -> list[Load]:
    """In the order they come. RSS delivers each anywhere."""
    loads = []
    for rank in range(count):
        app = chance.randrange(APPS)
        remote = bytes([10, 1 + app, rank // 256 % 256, rank % 256])
        serves = app % 2 == 0
        local, port = (80 + app, 1024 + rank) if serves else (1024 + rank, 443)
        key = FlowKey(Protocol.TCP, LOCAL, local, remote, port)
        thread = Thread(1000 + app, 1000 + app, f"app{app}", None)
        rate = BYTES_PER_S // (rank + 1)
        loads.append(Load(key, app, rate, chance.randrange(APPS), thread))
    chance.shuffle(loads)
    return loads


def _listeners(loads: Sequence[Load], *, known: bool) -> list[Listening]:
    """The listener, and its CPU, where that is `known`."""
    found: dict[FlowKey, Listening] = {}
    for load in loads:
        key = load.key._replace(remote=bytes(4), remote_port=0)
        who = (load.thread, load.app_cpu, True) if known else (None, None, False)
        if key.local_port < 1024:
            found[key] = Listening(0, 1_000_000 + key.local_port, key, 1, *who)
    return list(found.values())


def nic_of(filters: int) -> NicView:
    """One queue a CPU, replaced in place, ports' filters behind all others."""
    caps = Caps(
        "simulated", True, None, True, False, True, True, Actuator.IN_PLACE,
        exact_wins=True,
    )  # fmt: skip
    queues = tuple(Queue(i, 100 + i, None, i, True, None) for i in range(APPS))
    return NicView(
        name="simulated", netns=None, ifindex=1, armed=True, budget=filters, up=True, caps=caps,
        queues=queues, filters=(), owned=frozenset(), rss=Rss(bytes(40), tuple(range(APPS)) * 16),
        ring_size=None, stats=NicStats((), None),
    )  # fmt: skip


def report(runs: Sequence[Run]) -> Report:
    """Medians over rounds."""
    report = Report("table", "bytes on their application's core, by filters (a simulation)")
    report.samples["runs"] = [each._asdict() for each in runs]
    groups: dict[tuple[int, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.table, each.contender), []).append(each)
    pictures: dict[str, list[Estimate]] = {}
    for (table, contender), found in groups.items():
        placed = median(each.placed for each in found)
        report.add(f"{table} filters, bytes placed", contender, "share", placed)
        used = median(each.rules for each in found)
        report.add(f"{table} filters, filters used", contender, "filters", used)
        writes = median(each.writes for each in found)
        report.add(f"{table} filters, writes", contender, "writes", writes)
        pictures.setdefault(contender, []).append(placed)
        first = groups.get((table, "first come"))
        if contender.startswith("worth") and first:
            least = min(
                each.placed - other.placed for each, other in zip(found, first, strict=True)
            )
            what = f"{contender}, {table} filters, above first come"
            report.targets.append(Target(what, least, 0, True, "share"))
    report.notes.append(
        "a simulation: the decisions are the product's, NIC and kernel are not there"
    )
    tables = [str(table) for table in dict.fromkeys(each.table for each in runs)]
    plot.bars("table", "Bytes on their application's core (simulated)", "share", tables, pictures)
    return report
