# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications that migrate, the daemon that follows them, and the order of their packets.

`bench ordering` without the workshop: two receivers of numbered datagrams, one a CPU, change places
every two seconds; the daemon notices and moves their flows as its policy says (`order:`), or RFS
does, or nobody. The CPU of queue 0 is taken for 3 of every 7.3 ms. Every flow sends all the time,
together 20,000 datagrams a second.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import pin, until
from bench.contenders import atfnd, rfs, rss
from bench.daemon import DWELL_MS, Daemon
from bench.lateness import Moved, seen
from bench.meter import Meter
from bench.ordering import keep_wire_from
from bench.ordering_pace import PERIOD_MS, STALL_MS
from bench.report import Report, Target
from bench.stats import Estimate, median, proportion
from bench.traffic.datagrams import Load, Traffic, built, received, sent
from bench.traffic.sequence import stalled

__all__ = ["run"]

COUNTS = (40, 200, 1000, 2000)
RATE_PPS = 20_000
SWAPS, EVERY_S, SETTLE_S = 4, 2.0, 1.0
ANSWER_S = 60.0
ORDERS = ("immediate", "bounded", "strict")
POLICY = """\
version: 1
about: Every UDP flow to the core of its application, {order}.
flows:
  - name: udp
    match: {{ protocol: udp }}
    placement: {{ near: core }}
    full_core: stay
    dwell: {dwell_ms}ms
    order: {order}
"""

Contender = Callable[[Bed], AbstractContextManager[Daemon | None]]


class Run(NamedTuple):
    """One contender in one round. Shares are of packets, 0 to 1."""

    contender: str
    streams: int
    local: float | None  # share of bytes read on the core that had processed them
    settled: float | None  # the same, from a second after each migration on
    moves: int  # of flows with their applications
    reordered: int
    late: int
    received: int
    ring_drops: int
    writes: int | None  # None: not a daemon's


def run(rounds: int) -> Report:
    """`rounds` rounds of every count and contender, in turn."""
    runs = []
    with ExitStack() as stack:
        program = built(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        bed = stack.enter_context(lab_bed())
        meter = stack.enter_context(bed.meter())
        rivals = contenders()
        for turn in range(rounds):
            for count in COUNTS:
                for name in list(rivals)[:: -1 if turn % 2 else 1]:
                    runs.append(measured(program, bed, meter, name, count))
    return report(runs)


def contenders() -> dict[str, Contender]:
    """By name."""
    ours = {
        f"atfnd, {order}": partial(atfnd, config=POLICY.format(order=order, dwell_ms=DWELL_MS))
        for order in ORDERS
    }
    return {"rss": rss, "rfs": rfs, **ours}


def measured(
    program: Path, bed: Bed, meter: Meter, name: str, streams: int, swaps: int = SWAPS
) -> Run:
    """One run."""
    dropped, others = bed.ring_drops() or 0, bed.cpus[1:]
    keep_wire_from(bed, set(others))
    with (
        contenders()[name](bed) as daemon,
        received(program, bed, streams, Load(RATE_PPS, streams, 1)) as receivers,
        sent(program, bed, receivers, others) as traffic,
    ):
        _place(bed, traffic, 0)
        time.sleep(SETTLE_S)
        before = _applied(daemon)
        calm = [0, 0]
        start, moves = meter.totals(), []
        with stalled(bed.cpus[0], STALL_MS, PERIOD_MS):
            for swap in range(1, swaps + 1):
                moves.append(_place(bed, traffic, swap))
                time.sleep(SETTLE_S)
                settled = meter.totals()
                time.sleep(EVERY_S - SETTLE_S)
                found = meter.totals().since(settled)
                calm[0] += found.local_bytes
                calm[1] += found.remote_bytes
        whole = meter.totals().since(start)
        tally = traffic.finish()
        writes = None if before is None else (_applied(daemon) or 0) - before
        order = seen(moves, traffic.datagrams(), round(EVERY_S / 2 * 1e9))
    return Run(
        contender=name,
        streams=streams,
        local=whole.read_locality,
        settled=calm[0] / sum(calm) if sum(calm) else None,
        moves=order.moves,
        reordered=order.reordered.total(),
        late=order.late,
        received=tally.received,
        ring_drops=(bed.ring_drops() or 0) - dropped,
        writes=writes,
    )


def _place(bed: Bed, traffic: Traffic, turn: int) -> Moved:
    """Each receiver on its core; all their flows move with them."""
    began_ns = time.time_ns()
    for number, checker in enumerate(traffic.checkers):
        pin(checker.pid, [bed.cpus[(number + turn) % len(bed.cpus)]])
    return Moved(None, began_ns, time.time_ns(), False, None, "migrated")


def _applied(daemon: Daemon | None) -> int | None:
    """Writes the daemon has done. It may be too busy with them to answer at once."""
    if daemon is None:
        return None
    until(daemon.ready, "the daemon answers", ANSWER_S)
    return int(daemon.status()["actions_applied"])


def report(runs: Sequence[Run]) -> Report:
    """Moves of all rounds are added up; shares are medians over rounds."""
    report = Report("migrating", "bytes read on the core that had processed them, and their order")
    report.samples["runs"] = [each._asdict() for each in runs]
    groups: dict[tuple[int, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.streams, each.contender), []).append(each)
    pictures: dict[str, list[Estimate]] = {}
    for (streams, name), found in groups.items():
        what = f"2n = {streams}"
        local = median(each.local for each in found if each.local is not None)
        report.add(f"{what}, read where processed, all of it", name, "share", local)
        settled = median(each.settled for each in found if each.settled is not None)
        report.add(f"{what}, read where processed, settled", name, "share", settled)
        pictures.setdefault(name, []).append(local)
        if moves := sum(each.moves for each in found):
            reordered = proportion(sum(each.reordered for each in found), moves)
            report.add(f"{what}, migrations that reordered a flow", name, "share", reordered)
        late = proportion(sum(each.late for each in found), sum(each.received for each in found))
        report.add(f"{what}, packets reordered", name, "share", late)
        if writes := [each.writes / SWAPS / 2 for each in found if each.writes is not None]:
            report.add(f"{what}, writes an owner's migration", name, "writes", median(writes))
    for name in dict.fromkeys(each.contender for each in runs):
        own = [each for each in runs if each.contender == name]
        overtaken, moves = sum(each.late for each in own), sum(each.moves for each in own)
        drops, flows = sum(each.ring_drops for each in own), sum(each.reordered for each in own)
        report.notes.append(
            f"{name}: {flows} of {moves:,} migrations of flows reordered, {overtaken} packets "
            f"late, {drops} lost to full rings"
        )
        if name == "atfnd, strict":
            what = "atfnd, strict, packets reordered"
            report.targets.append(Target(what, overtaken, 0, False, "packets"))
    counts = [str(count) for count in dict.fromkeys(each.streams for each in runs)]
    plot.bars(
        "migrating",
        "Bytes read on the core that had processed them, migrating",
        "share",
        counts,
        pictures,
    )
    return report
