# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon spends of a CPU on one migration, one queue that follows, one filter that moves.

Servers are pinned and migrate one by one, under a light load. From before a migration until all
that follows from it is over, the daemon's CPU time is read (schedstat, all its threads, so spinners
count); as much of it as a window without a migration takes is subtracted. `follow`: one server, and
its queue goes along. `strict`: eight servers on two queues, so nobody owns a queue, and flows move
one by one, under holds. `immediate`: one server, a filter for each connection, written at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from bench.bed import Bed, lab_bed
from bench.children import Child, pin
from bench.contenders import atfnd
from bench.cost import cpu_ns
from bench.daemon import follow_tcp
from bench.report import Report, Target
from bench.stats import median
from bench.unpinned import WRITES, Case, loaded

__all__ = ["CASES", "run"]

MIGRATIONS = 24  # of a case in a round
WINDOW_S = 0.12  # a guest's flows wait for 40 ms, and a write is watched for some more
SETTLE_S = 4.0
MIGRATION_NS, FOLLOW_NS, MOVE_NS = 400_000, 150_000, 300_000


class Kind(NamedTuple):
    """One way to migrate."""

    case: Case
    order: str
    every_s: float  # a queue rests for a second before it follows again, a flow for 100 ms


CASES = {
    "follow": Kind(Case(1, 16, 2000.0, True), "strict", 1.3),
    "strict": Kind(Case(8, 4, 2000.0, True), "strict", 0.2),
    "immediate": Kind(Case(1, 4, 1000.0, True), "immediate", 0.2),
}


class Run(NamedTuple):
    """One case in one round: the daemon's CPU time of each window, and its writes in it."""

    case: str
    idle_ns: list[int]
    spent_ns: list[int]
    writes: list[dict[str, int]]

    @property
    def each_ns(self) -> list[float]:
        """Of each migration that was followed, without what an idle window takes."""
        idle_ns = median(self.idle_ns).value
        pairs = zip(self.spent_ns, self.writes, strict=True)
        return [spent - idle_ns for spent, writes in pairs if writes]

    @property
    def written(self) -> int:
        return sum(sum(each.values()) for each in self.writes)


def measured(bed: Bed, name: str, migrations: int = MIGRATIONS) -> Run:
    """One case."""
    kind = CASES[name]
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(atfnd(bed, follow_tcp(kind.order, "stay")))
        servers, _ = stack.enter_context(loaded(bed, kind.case))
        time.sleep(SETTLE_S)
        at = [number % len(bed.cpus) for number in range(len(servers))]
        spent_ns = partial(cpu_ns, daemon.process.pid)
        idle = [_window(spent_ns, lambda: None)[2] for _ in range(migrations)]
        windows = []
        for turn in range(migrations):
            number = turn % len(servers)
            at[number] = (at[number] + 1) % len(bed.cpus)
            windows.append(_window(spent_ns, partial(_to, servers[number], bed.cpus[at[number]])))
            time.sleep(max(0.0, kind.every_s - WINDOW_S))
        events = daemon.events()
    writes = [_written(events, began_ns, ended_ns) for began_ns, ended_ns, _ in windows]
    return Run(name, idle, [spent for *_, spent in windows], writes)


def _to(server: Child, cpu: int) -> None:
    pin(server.pid, [cpu])


def _window(spent_ns: Callable[[], int], act: Callable[[], None]) -> tuple[int, int, int]:
    """When it began and ended (CLOCK_MONOTONIC), and what was spent in it."""
    began_ns, before_ns = time.monotonic_ns(), spent_ns()
    act()
    time.sleep(WINDOW_S)
    return began_ns, time.monotonic_ns(), spent_ns() - before_ns


def _written(events: Sequence[dict[str, Any]], began_ns: int, ended_ns: int) -> dict[str, int]:
    """The daemon's writes in a window, by kind."""
    found: dict[str, int] = {}
    for each in events:
        if each["kind"] in WRITES and began_ns <= each["at_ns"] <= ended_ns:
            found[each["kind"]] = found.get(each["kind"], 0) + 1
    return found


def run(rounds: int) -> Report:
    """`rounds` rounds of every case."""
    runs = []
    with lab_bed() as bed:
        for _ in range(rounds):
            runs += [measured(bed, name) for name in CASES]
    return report(runs)


def report(runs: Sequence[Run]) -> Report:
    """Over all migrations of all rounds."""
    report = Report("spending", "the daemon's CPU time for a migration, a follow, a move")
    report.samples["runs"] = [each._asdict() for each in runs]
    for name in dict.fromkeys(each.case for each in runs):
        own = [each for each in runs if each.case == name]
        each_ns = [spent for run in own for spent in run.each_ns]
        writes = sum(run.written for run in own)
        if not each_ns:
            report.notes.append(f"{name}: nothing was followed")
            continue
        migration = report.add(f"{name}: a migration", "atfnd", "ns", median(each_ns))
        write_ns = sum(each_ns) / max(1, writes)
        report.add(f"{name}: a write, mean", "atfnd", "ns", median([write_ns]))
        report.add(f"{name}: writes a migration", "atfnd", "", median([writes / len(each_ns)]))
        bound = FOLLOW_NS if name == "follow" else MIGRATION_NS
        report.targets.append(Target(f"{name}: a migration", migration.value, bound, False, "ns"))
        if name != "follow":
            report.targets.append(Target(f"{name}: a write", write_ns, MOVE_NS, False, "ns"))
    return report
