# SPDX-License-Identifier: GPL-2.0-or-later
"""Share of bytes read on the core that had processed them, for the paper's stream counts.

The paper's experiment 1 (section 4): two servers, ports 5001 and 6001, n TCP streams each, one
server a core, 2n = 40, 200, 1000, 2000. Here every count carries the same offered load, paced, so
that the contenders are given the same packets. `pinned`: the servers stay. `migrating`: each goes
to the next core at every move. `settled` leaves out the first `settle_s` after the start or a move.
`core to core` counts the interrupts by which RFS hands packets over: locality that the NIC reaches
by itself is without them.

On simnic, in a guest without KVM, the load is a twelfth, the counts end at 200 and moves come half
as often: an emulated core does in a second what a real one does in some 50 ms.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from atfnd.errors import OperatorError
from atfnd.observe.machine.busy import handoffs
from bench import plot
from bench.bed import Bed, BedMaker, lab_bed
from bench.children import Child, child, pin, program
from bench.contenders import contenders
from bench.meter import Meter, Totals
from bench.report import Report, Target
from bench.stats import Estimate, median, ratios

__all__ = ["LAB", "PORTS", "SIMNIC", "Load", "measure", "report", "run", "streams"]

MODES = ("pinned", "migrating")
PORTS = (5001, 6001)
TARGET = 0.99


class Load(NamedTuple):
    """What is offered, and in which steps."""

    name: str  # of the report
    counts: tuple[int, ...]
    offered_bytes_per_s: int
    settle_s: float
    move_every_s: float
    moves: int


LAB = Load("locality", (40, 200, 1000, 2000), 50_000_000, 1.0, 2.0, 3)
SIMNIC = Load("locality-simnic", (40, 200), 4_000_000, 2.0, 4.0, 3)


class Run(NamedTuple):
    """Locality of one run, 0 to 1."""

    mode: str
    streams: int
    contender: str
    whole: float
    settled: float
    handovers: float  # interrupts from core to core, per 1000 packets delivered


@contextlib.contextmanager
def streams(
    bed: Bed, count: int, bytes_per_s: int | None, threads: bool = False
) -> Iterator[tuple[Child, ...]]:
    """The two servers, with `count` streams in all running into them; None: as fast as TCP lets.
    `threads`: a server has a thread for each."""
    with contextlib.ExitStack() as stack:
        servers = []
        for port, cpu in zip(PORTS, bed.cpus, strict=False):
            command = program("streams", "receive", bed.address, port)
            command += ("--threads",) if threads else ()
            servers.append(stack.enter_context(child(*command, netns=bed.host, cpus=[cpu])))
            servers[-1].said("ready")
        for port in PORTS:
            command = program("streams", "send", bed.address, port)
            command += ("--streams", str(count // len(PORTS)))
            if bytes_per_s is not None:
                command += ("--rate", str(bytes_per_s // count))
            stack.enter_context(child(*command, netns=bed.peer)).said("connected")
        yield tuple(servers)


def _share(counts: Totals) -> float:
    locality = counts.read_locality
    if locality is None:
        raise OperatorError("nothing was read", exit_code=1)
    return locality


def _shares(
    bed: Bed, meter: Meter, servers: tuple[Child, ...], mode: str, load: Load
) -> tuple[float, float, float]:
    """Run one mode over streams that are already flowing; the last three fields of `Run`."""
    settled = [0, 0]
    time.sleep(load.settle_s)
    start, interrupts = meter.totals(), handoffs() or 0
    for move in range(load.moves):
        if mode == "migrating":
            for number, server in enumerate(servers):
                pin(server.pid, [bed.cpus[(number + move + 1) % len(bed.cpus)]])
            time.sleep(load.settle_s)
        calm = meter.totals()
        time.sleep(load.move_every_s - load.settle_s)
        found = meter.totals().since(calm)
        settled[0] += found.local_bytes
        settled[1] += found.remote_bytes
    for server in servers:
        server.check()
    whole = meter.totals().since(start)
    interrupts = (handoffs() or 0) - interrupts
    skbs = whole.local_skbs + whole.remote_skbs + whole.unknown_skbs
    calm_counts = whole._replace(local_bytes=settled[0], remote_bytes=settled[1])
    return _share(whole), _share(calm_counts), 1000 * interrupts / skbs


def measure(rounds: int, make_bed: BedMaker, load: Load) -> dict[str, Any]:
    """`rounds` rounds; in each, every count and mode is given to every contender in turn."""
    runs = []
    with make_bed() as bed, bed.meter() as meter:
        if len(bed.cpus) < len(PORTS):
            raise OperatorError("locality needs two CPUs: with one, every byte is local")
        received, rivals = bed.received(), contenders(bed)
        for turn in range(rounds):
            first = turn % len(rivals)
            order = [*list(rivals)[first:], *list(rivals)[:first]]
            for mode in MODES:
                for count in load.counts:
                    for name in order:
                        with (
                            rivals[name](bed),
                            streams(bed, count, load.offered_bytes_per_s) as servers,
                        ):
                            shares = _shares(bed, meter, servers, mode, load)
                        runs.append(Run(mode, count, name, *shares))
        totals, received = meter.totals(), bed.received() - received
        metered = sum(totals[:3]) + totals.other_skbs
        notes = [
            f"the meter saw {metered:,} of {received:,} packets the NIC received",
            f"packets lost to full rings: {bed.ring_drops()}",
        ]
    return {"runs": runs, "notes": notes}


def run(rounds: int) -> Report:
    """On a lab NIC."""
    return report(measure(rounds, lab_bed, LAB), LAB)


def report(measured: dict[str, Any], load: Load) -> Report:
    """From what `measure` found, which may have been JSON in between."""
    report = Report(load.name, "share of bytes read on the core that had processed them")
    report.notes += measured["notes"]
    runs = [Run(*each) for each in measured["runs"]]
    report.samples["runs"] = [each._asdict() for each in runs]
    found: dict[tuple[str, int, str], list[Run]] = {}
    for each in runs:
        found.setdefault((each.mode, each.streams, each.contender), []).append(each)
    pictures: dict[str, dict[str, list[Estimate]]] = {mode: {} for mode in MODES}
    for (mode, count, name), shares in found.items():
        settled = [share.settled for share in shares]
        what = f"{mode}, 2n = {count}, settled"
        estimate = report.add(what, name, "share", median(settled))
        pictures[mode].setdefault(name, []).append(estimate)
        if mode == "migrating":
            whole = [share.whole for share in shares]
            report.add(f"{mode}, 2n = {count}, all of it", name, "share", median(whole))
        interrupts = median(share.handovers for share in shares)
        report.add(f"{mode}, 2n = {count}, core to core", name, "IPIs/1000 skbs", interrupts)
        if name == "atfnd":
            target = Target(f"atfnd, {what}", estimate.value, TARGET, True, "share")
            report.targets.append(target)
        else:
            ours = [share.settled for share in found[mode, count, "atfnd"]]
            report.add(what, f"atfnd / {name}", "×", ratios(ours, settled))
    for mode, series in pictures.items():
        groups = [str(count) for count in load.counts]
        title = f"Bytes read on the core that had processed them, {mode} (settled)"
        plot.bars(f"{load.name}-{mode}", title, "share", groups, series, TARGET)
    return report
