# SPDX-License-Identifier: GPL-2.0-or-later
"""From an application's move to the first packet delivered on its new core.

One server thread answers requests on a few connections and is moved between two cores. It notes
itself when it first reads each connection on the new core, and when it first reads there what was
processed there, too (bench/traffic/rr.py). atfnd waits its dwell on purpose, so its time is counted
from the end of the dwell; RFS has none. Flows of one move are counted each. Request/response in a
closed loop keeps packets coming, where TCP's own pacing sends a millisecond's worth at a time.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from atfnd.errors import OperatorError
from bench.bed import Bed, lab_bed
from bench.children import child, pin, program
from bench.contenders import Contender, atfnd, in_turn, rfs
from bench.daemon import DWELL_MS, follow_tcp
from bench.report import Report
from bench.servers import PORT, SERVERS
from bench.stats import median, quantile, ratios
from bench.traffic import requests

__all__ = ["followed_ms", "report", "run"]

CONNECTIONS = 8
MOVES = 20
LONG_S = 600.0
# Its core is full: it answers as fast as it can, and is to be followed none the less.
POLICY = follow_tcp(full_core="stay")
CONTENDERS: dict[str, Contender] = {"rfs": rfs, "atfnd": lambda bed: atfnd(bed, POLICY)}
SETTLE_S, MOVE_EVERY_S = 1.0, 0.4
P50_MS, P99_MS = 2.0, 10.0  # that are asked of atfnd past its dwell


def followed_ms(asker: Path, bed: Bed, moves: int) -> list[float]:
    """How long the packets of each connection took to follow each move of the server."""
    serve, asked = program("rr", bed.address, PORT, "notes"), SERVERS["rr"].asked
    with child(*serve, netns=bed.host, cpus=[bed.cpus[0]]) as server:
        server.said("ready")
        with requests.asking(asker, bed, PORT, asked, CONNECTIONS, None, 0.0, LONG_S):
            time.sleep(SETTLE_S)
            for move in range(moves):
                pin(server.pid, [bed.cpus[(move + 1) % len(bed.cpus)]])
                time.sleep(MOVE_EVERY_S)
            return [ns / 1e6 for ns in server.result()]


def run(rounds: int) -> Report:
    """`rounds` rounds of MOVES moves on a lab NIC, under RFS and atfnd in turn."""
    past_dwell_ms: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder, lab_bed() as bed:
        asker = requests.built(Path(folder))
        if len(bed.cpus) < 2:
            raise OperatorError("reaction needs two CPUs to move between")
        for turn in range(rounds):
            for name in in_turn(past_dwell_ms, turn):
                with CONTENDERS[name](bed):
                    found = followed_ms(asker, bed, MOVES)
                dwell_ms = DWELL_MS if name == "atfnd" else 0
                past_dwell_ms[name].append([ms - dwell_ms for ms in found])
    return report(past_dwell_ms)


def report(past_dwell_ms: dict[str, list[list[float]]]) -> Report:
    """Times of each contender, by round."""
    report = Report("reaction", "application's move to first packet on its new core, past dwell")
    report.samples = {"past_dwell_ms": past_dwell_ms, "dwell_ms": DWELL_MS}
    for name, runs in past_dwell_ms.items():
        values = [ms for one in runs for ms in one]
        expected = MOVES * CONNECTIONS * len(runs)
        report.notes.append(f"{name}: {len(values)} of {expected} moves of a flow were followed")
        for what, q, bound in (("p50", 0.5, P50_MS), ("p99", 0.99, P99_MS)) if values else ():
            found = report.add(what, name, "ms", quantile(values, q))
            if name == "atfnd":
                report.at_most(f"atfnd {what} past dwell", found.value, bound, "ms")
    if all(all(runs) for runs in past_dwell_ms.values()):
        ours, theirs = (
            [median(one).value for one in past_dwell_ms[each]] for each in ("atfnd", "rfs")
        )
        report.add("p50", "atfnd / rfs", "×", ratios(ours, theirs))
    return report
