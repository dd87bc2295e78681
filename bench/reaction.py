# SPDX-License-Identifier: GPL-2.0-or-later
"""From an application's move to the first packet delivered on its new core.

One server thread answers requests on a few connections and is moved between two cores. The meter
takes the time of the first socket call on the new core and of the first delivery there. atfnd waits
its dwell on purpose, so its time is counted from the end of the dwell; RFS has none. Flows of one
move are counted each. What cannot be seen is how long a flow had no packet: the gap between its
last delivery elsewhere and its first on the new core is reported. Request/response in a closed loop
keeps packets coming, where TCP's own pacing sends a millisecond's worth at a time.

On simnic, in a guest without KVM, times are an emulated machine's: no target is held against them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from atfnd.errors import OperatorError
from bench import plot
from bench.bed import Bed, BedMaker, lab_bed
from bench.children import Child, child, pin, program
from bench.contenders import contenders
from bench.daemon import DWELL_MS
from bench.meter import Meter, Reaction
from bench.report import Report, Target
from bench.stats import median, quantile, ratios

__all__ = ["LAB", "SIMNIC", "Pace", "measure", "report", "run"]

PORT = 7001
CONNECTIONS = 8
MOVES = 20


class Pace(NamedTuple):
    """How fast moves follow each other, and what is asked of atfnd past its dwell."""

    name: str  # of the report
    settle_s: float
    move_every_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None


LAB = Pace("reaction", 1.0, 0.4, 2.0, 10.0)
SIMNIC = Pace("reaction-simnic", 5.0, 1.5)


@contextlib.contextmanager
def moving_server(bed: Bed) -> Iterator[Child]:
    """The server with its connections busy."""
    serve = program("rr", "serve", bed.address, PORT)
    drive = program("rr", "drive", bed.address, PORT, "--connections", CONNECTIONS)
    with child(*serve, netns=bed.host, cpus=[bed.cpus[0]]) as server:
        server.said("ready")
        with child(*drive, netns=bed.peer) as driver:
            driver.said("connected")
            yield server


def _reactions(bed: Bed, meter: Meter, pace: Pace) -> list[Reaction]:
    """Move the server MOVES times and return every reaction."""
    with moving_server(bed) as server:
        time.sleep(pace.settle_s)
        meter.reactions()  # those of the start
        for move in range(MOVES):
            pin(server.pid, [bed.cpus[(move + 1) % len(bed.cpus)]])
            time.sleep(pace.move_every_s)
        server.check()
        return [reaction for reaction in meter.reactions() if reaction.key.local_port == PORT]


def measure(rounds: int, make_bed: BedMaker, pace: Pace) -> dict[str, Any]:
    """`rounds` rounds of MOVES moves under each contender that follows an application."""
    by_round: dict[str, list[list[float]]] = {}
    gaps: list[float] = []
    with make_bed() as bed, bed.meter() as meter:
        if len(bed.cpus) < 2:
            raise OperatorError("reaction needs two CPUs to move between")
        rivals = {name: each for name, each in contenders(bed).items() if name != "rss"}
        for turn in range(rounds):
            for name in list(rivals)[:: 1 if turn % 2 else -1]:
                with rivals[name](bed):
                    reactions = _reactions(bed, meter, pace)
                dwell_ms = DWELL_MS if name == "atfnd" else 0
                by_round.setdefault(name, []).append(
                    [(r.first_local_ns - r.changed_ns) / 1e6 - dwell_ms for r in reactions]
                )
                gaps += [
                    (r.first_local_ns - r.last_remote_ns) / 1e6
                    for r in reactions
                    if name == "atfnd" and r.last_remote_ns is not None
                ]
    return {"past_dwell_ms": by_round, "gaps_ms": gaps, "dwell_ms": DWELL_MS}


def run(rounds: int) -> Report:
    """On a lab NIC."""
    return report(measure(rounds, lab_bed, LAB), LAB)


def report(measured: dict[str, Any], pace: Pace) -> Report:
    """From what `measure` found, which may have been JSON in between."""
    about = "application's move to first packet on its new core, past dwell"
    report = Report(pace.name, about, samples=measured)
    by_round: dict[str, list[list[float]]] = measured["past_dwell_ms"]
    pooled = {name: [ms for one in runs for ms in one] for name, runs in by_round.items()}
    for name, values in pooled.items():
        expected = MOVES * CONNECTIONS * len(by_round[name])
        report.notes.append(f"{name}: {len(values)} of {expected} moves of a flow were followed")
        if not values:
            continue
        p50 = report.add("p50", name, "ms", median(values))
        p99 = report.add("p99", name, "ms", quantile(values, 0.99))
        if name == "atfnd":
            for what, found, bound in (("p50", p50, pace.p50_ms), ("p99", p99, pace.p99_ms)):
                if bound is not None:
                    target = Target(f"atfnd {what} past dwell", found.value, bound, False, "ms")
                    report.targets.append(target)
    if measured["gaps_ms"]:
        gap = median(measured["gaps_ms"])
        report.add("gap, last elsewhere to first here", "atfnd", "ms", gap)
    medians = {
        name: [median(one).value for one in runs] for name, runs in by_round.items() if all(runs)
    }
    ours = medians.pop("atfnd", [])
    for name, theirs in medians.items() if ours else ():
        report.add("p50", f"atfnd / {name}", "×", ratios(ours, theirs))
    positive = {name: [max(ms, 1e-3) for ms in values] for name, values in pooled.items() if values}
    plot.distributions(pace.name, "First packet on the new core", "ms past dwell", positive)
    return report
