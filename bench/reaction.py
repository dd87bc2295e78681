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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from atfnd.errors import OperatorError
from bench import children
from bench.bed import Bed, lab_bed
from bench.children import Child, child, pin
from bench.contenders import atfnd, in_turn, rfs
from bench.daemon import DWELL_MS
from bench.meter import Meter, Reaction
from bench.report import Report
from bench.stats import median, quantile, ratios
from bench.traffic import requests
from bench.traffic.requests import Asked

__all__ = ["report", "run"]

PORT = 7001
CONNECTIONS = 8
MOVES = 20
LONG_S = 600.0
SETTLE_S, MOVE_EVERY_S = 1.0, 0.4
P50_MS, P99_MS = 2.0, 10.0  # that are asked of atfnd past its dwell


@contextlib.contextmanager
def _moving_server(program: Path, bed: Bed) -> Iterator[Child]:
    """The server with its connections busy."""
    command = children.program("rr", bed.address, PORT)
    with child(*command, netns=bed.host, cpus=[bed.cpus[0]]) as server:
        server.said("ready")
        asked = Asked("tcp", bytes(64))
        with requests.asking(program, bed, PORT, asked, CONNECTIONS, None, 0.0, LONG_S):
            yield server


def _reactions(program: Path, bed: Bed, meter: Meter) -> list[Reaction]:
    """Move the server MOVES times and return every reaction."""
    with _moving_server(program, bed) as server:
        time.sleep(SETTLE_S)
        meter.reactions()  # those of the start
        for move in range(MOVES):
            pin(server.pid, [bed.cpus[(move + 1) % len(bed.cpus)]])
            time.sleep(MOVE_EVERY_S)
        server.check()
        return [reaction for reaction in meter.reactions() if reaction.key.local_port == PORT]


def run(rounds: int) -> Report:
    """`rounds` rounds of MOVES moves on a lab NIC, under RFS and atfnd in turn."""
    past_dwell_ms: dict[str, list[list[float]]] = {"rfs": [], "atfnd": []}
    gaps_ms: list[float] = []
    with tempfile.TemporaryDirectory() as folder, lab_bed() as bed, bed.meter() as meter:
        program = requests.built(Path(folder))
        if len(bed.cpus) < 2:
            raise OperatorError("reaction needs two CPUs to move between")
        for turn in range(rounds):
            for name in in_turn(past_dwell_ms, turn):
                with (atfnd if name == "atfnd" else rfs)(bed):
                    reactions = _reactions(program, bed, meter)
                dwell_ms = DWELL_MS if name == "atfnd" else 0
                past_dwell_ms[name].append(
                    [(r.first_local_ns - r.changed_ns) / 1e6 - dwell_ms for r in reactions]
                )
                gaps_ms += [
                    (r.first_local_ns - r.last_remote_ns) / 1e6
                    for r in reactions
                    if name == "atfnd" and r.last_remote_ns is not None
                ]
    return report(past_dwell_ms, gaps_ms)


def report(past_dwell_ms: dict[str, list[list[float]]], gaps_ms: list[float]) -> Report:
    """Times of each contender, by round."""
    report = Report("reaction", "application's move to first packet on its new core, past dwell")
    report.samples = {"past_dwell_ms": past_dwell_ms, "gaps_ms": gaps_ms, "dwell_ms": DWELL_MS}
    pooled = {name: [ms for one in runs for ms in one] for name, runs in past_dwell_ms.items()}
    for name, values in pooled.items():
        expected = MOVES * CONNECTIONS * len(past_dwell_ms[name])
        report.notes.append(f"{name}: {len(values)} of {expected} moves of a flow were followed")
        for what, q, bound in (("p50", 0.5, P50_MS), ("p99", 0.99, P99_MS)) if values else ():
            found = report.add(what, name, "ms", quantile(values, q))
            if name == "atfnd":
                report.at_most(f"atfnd {what} past dwell", found.value, bound, "ms")
    if gaps_ms:
        report.add("gap, last elsewhere to first here", "atfnd", "ms", median(gaps_ms))
    if all(all(runs) for runs in past_dwell_ms.values()):
        ours, theirs = (
            [median(one).value for one in past_dwell_ms[each]] for each in ("atfnd", "rfs")
        )
        report.add("p50", "atfnd / rfs", "×", ratios(ours, theirs))
    return report
