# SPDX-License-Identifier: GPL-2.0-or-later
"""Share of packets delivered on their application's core, for the paper's stream counts.

The paper's experiment 1 (section 4): two servers, ports 5001 and 6001, n TCP streams each, one
server a core, 2n = 40, 200, 1000, 2000. Here every count carries the same offered load, paced, so
that the contenders are given the same packets. `pinned`: the servers stay. `migrating`: they swap
cores every MOVE_EVERY_S. `settled` leaves out the first SETTLE_S after the start or a swap.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

from atfnd.errors import OperatorError
from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import Child, child, pin, program
from bench.contenders import CONTENDERS
from bench.meter import Meter, Totals
from bench.report import Report, Target
from bench.stats import Estimate, median, ratios

__all__ = ["run"]

COUNTS = (40, 200, 1000, 2000)
MODES = ("pinned", "migrating")
PORTS = (5001, 6001)
OFFERED_BYTES_PER_S = 50_000_000
SETTLE_S = 1.0
MOVE_EVERY_S = 2.0
SWAPS = 3
TARGET = 0.99


class Shares(NamedTuple):
    """Locality of one run, 0 to 1."""

    whole: float
    settled: float


@contextlib.contextmanager
def streams(bed: Bed, count: int) -> Iterator[tuple[Child, ...]]:
    """The two servers, with `count` streams in all running into them."""
    with contextlib.ExitStack() as stack:
        servers = []
        for port, cpu in zip(PORTS, bed.cpus, strict=False):
            command = program("streams", "receive", bed.address, port)
            servers.append(stack.enter_context(child(*command, netns=bed.host, cpus=[cpu])))
            servers[-1].said("ready")
        rate = OFFERED_BYTES_PER_S // count
        for port in PORTS:
            command = program("streams", "send", bed.address, port)
            command += ("--streams", str(count // len(PORTS)), "--rate", str(rate))
            stack.enter_context(child(*command, netns=bed.peer)).said("connected")
        yield tuple(servers)


def _share(counts: Totals) -> float:
    locality = counts.locality
    if locality is None:
        raise OperatorError("no packet reached the metered NIC", exit_code=1)
    return locality


def measure(bed: Bed, meter: Meter, servers: tuple[Child, ...], mode: str) -> Shares:
    """Run one mode over streams that are already flowing."""
    settled = [0, 0]
    time.sleep(SETTLE_S)
    start = meter.totals()
    for swap in range(SWAPS):
        if mode == "migrating":
            for number, server in enumerate(servers):
                pin(server.pid, [bed.cpus[(number + swap + 1) % len(servers)]])
            time.sleep(SETTLE_S)
        calm = meter.totals()
        time.sleep(MOVE_EVERY_S - SETTLE_S)
        found = meter.totals().since(calm)
        settled[0] += found.local_segments
        settled[1] += found.remote_segments
    for server in servers:
        server.check()
    whole = meter.totals().since(start)
    calm_counts = whole._replace(local_segments=settled[0], remote_segments=settled[1])
    return Shares(_share(whole), _share(calm_counts))


def run(rounds: int) -> Report:
    """`rounds` rounds; in each, every count and mode is given to every contender in turn."""
    report = Report("locality", "share of packets delivered on the application's core")
    found: dict[tuple[str, int, str], list[Shares]] = {}
    with lab_bed() as bed, bed.meter() as meter:
        if len(bed.cpus) < len(PORTS):
            raise OperatorError("locality needs two CPUs: with one, every packet is local")
        received = bed.received()
        for turn in range(rounds):
            order = list(CONTENDERS)[turn % 3 :] + list(CONTENDERS)[: turn % 3]
            for mode in MODES:
                for count in COUNTS:
                    for name in order:
                        with CONTENDERS[name](bed), streams(bed, count) as servers:
                            shares = measure(bed, meter, servers, mode)
                        found.setdefault((mode, count, name), []).append(shares)
        totals, received = meter.totals(), bed.received() - received
        metered = sum(totals[:3]) + totals.other_skbs
        report.notes.append(f"the meter saw {metered:,} of {received:,} packets the NIC received")
        report.notes.append(f"packets lost to full rings: {bed.ring_drops()}")
    _report(report, found)
    return report


def _report(report: Report, found: dict[tuple[str, int, str], list[Shares]]) -> None:
    pictures: dict[str, dict[str, list[Estimate]]] = {mode: {} for mode in MODES}
    for (mode, count, name), shares in found.items():
        settled = [share.settled for share in shares]
        estimate = report.add(f"{mode}, 2n = {count}, settled", name, "share", median(settled))
        pictures[mode].setdefault(name, []).append(estimate)
        if mode == "migrating":
            whole = [share.whole for share in shares]
            report.add(f"{mode}, 2n = {count}, all of it", name, "share", median(whole))
        if name == "atfnd":
            what = f"atfnd, {mode}, 2n = {count}, settled"
            report.targets.append(Target(what, estimate.value, TARGET, True, "share"))
        else:
            ours = [share.settled for share in found[mode, count, "atfnd"]]
            report.add(
                f"{mode}, 2n = {count}, settled", f"atfnd / {name}", "×", ratios(ours, settled)
            )
        report.samples[f"{mode} {count} {name}"] = [share._asdict() for share in shares]
    for mode, series in pictures.items():
        groups = [str(count) for count in COUNTS]
        ordered = {name: series[name] for name in CONTENDERS}
        title = f"Packets on the application's core, {mode} (settled)"
        plot.bars(f"locality-{mode}", title, "share", groups, ordered, TARGET)
