# SPDX-License-Identifier: GPL-2.0-or-later
"""From an application's move to the first packet delivered on its new core.

One server thread answers requests on a few connections and is moved between two cores. The meter
takes the time of the first socket call on the new core and of the first delivery there. atfnd waits
its dwell on purpose, so its time is counted from the end of the dwell; RFS has none. Flows of one
move are counted each. What cannot be seen is how long a flow had no packet: the gap between its
last delivery elsewhere and its first on the new core is reported. Request/response in a closed loop
keeps packets coming, where TCP's own pacing sends a millisecond's worth at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from atfnd.errors import OperatorError
from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import Child, child, pin, program
from bench.contenders import CONTENDERS
from bench.daemon import DWELL_MS
from bench.meter import Meter, Reaction
from bench.report import Report, Target
from bench.stats import median, quantile, ratios

__all__ = ["run"]

RIVALS = ("rfs", "atfnd")
PORT = 7001
CONNECTIONS = 8
MOVES = 20
MOVE_EVERY_S = 0.4
SETTLE_S = 1.0
P50_MS, P99_MS = 2.0, 10.0


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


def measure(bed: Bed, meter: Meter) -> list[Reaction]:
    """Move the server MOVES times and return every reaction."""
    with moving_server(bed) as server:
        time.sleep(SETTLE_S)
        meter.reactions()  # those of the start
        for move in range(MOVES):
            pin(server.pid, [bed.cpus[(move + 1) % 2]])
            time.sleep(MOVE_EVERY_S)
        server.check()
        return [reaction for reaction in meter.reactions() if reaction.key.local_port == PORT]


def run(rounds: int) -> Report:
    """`rounds` rounds of MOVES moves under each contender."""
    report = Report("reaction", "application's move to first packet on its new core, past dwell")
    by_round: dict[str, list[list[float]]] = {name: [] for name in RIVALS}
    gaps: list[float] = []
    with lab_bed() as bed, bed.meter() as meter:
        if len(bed.cpus) < 2:
            raise OperatorError("reaction needs two CPUs to move between")
        for turn in range(rounds):
            for name in RIVALS[:: 1 if turn % 2 else -1]:
                with CONTENDERS[name](bed):
                    reactions = measure(bed, meter)
                dwell_ms = DWELL_MS if name == "atfnd" else 0
                by_round[name].append(
                    [(r.first_local_ns - r.changed_ns) / 1e6 - dwell_ms for r in reactions]
                )
                gaps += [
                    (r.first_local_ns - r.last_remote_ns) / 1e6
                    for r in reactions
                    if name == "atfnd" and r.last_remote_ns is not None
                ]
    _report(report, by_round, gaps)
    return report


def _report(report: Report, by_round: dict[str, list[list[float]]], gaps: list[float]) -> None:
    report.samples = {"past_dwell_ms": by_round, "dwell_ms": DWELL_MS}
    pooled = {name: [ms for one in runs for ms in one] for name, runs in by_round.items()}
    for name, values in pooled.items():
        expected = MOVES * CONNECTIONS * len(by_round[name])
        report.notes.append(f"{name}: {len(values)} of {expected} moves of a flow were followed")
        if not values:
            continue
        p50 = report.add("p50", name, "ms", median(values))
        p99 = report.add("p99", name, "ms", quantile(values, 0.99))
        if name == "atfnd":
            report.targets.append(Target("atfnd p50 past dwell", p50.value, P50_MS, False, "ms"))
            report.targets.append(Target("atfnd p99 past dwell", p99.value, P99_MS, False, "ms"))
    if gaps:
        report.add("gap, last elsewhere to first here", "atfnd", "ms", median(gaps))
    medians = {
        name: [median(one).value for one in runs] for name, runs in by_round.items() if all(runs)
    }
    if len(medians) == len(RIVALS):
        report.add("p50", "atfnd / rfs", "×", ratios(medians["atfnd"], medians["rfs"]))
    positive = {name: [max(ms, 1e-3) for ms in values] for name, values in pooled.items() if values}
    plot.distributions("reaction", "First packet on the new core", "ms past dwell", positive)
