# SPDX-License-Identifier: GPL-2.0-or-later
"""Which signal a NIC should steer by: the CPU of socket calls, or that of transmitted packets.

The paper (section 3.2) takes the CPU of each packet that a flow transmits, as Intel's ATR does:
here by BPF in the lab NIC's own filter table (bench/sent.py), at once, as with T_timer 0. `atfnd`
is the daemon: the CPU of socket calls, strict order. RSS alone beside. Two servers on two CPUs, n
TCP streams each, 50 MB/s in all; `pinned`: one on each CPU; `migrating`: they change places once a
second; `free`: the scheduler places them, as in the paper's experiment 3. The CPU of queue 0 is
taken for 3 of every 7.3 ms, so that a flow which leaves it too early shows.

A server that reads transmits window updates from its own CPU; ACKs come from the softirq of
whatever CPU received. So the signal moves a flow more often than its thread moves. Packets out of
order are TCP's own count (TCPOFOQueue) on the host, as a share of the segments delivered: the unit
of the paper's Table 6. RSS beside shows what comes out of order without any move.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.system.netns import path_of
from bench.bed import Bed, lab_bed
from bench.children import Child, pin
from bench.connections import streams
from bench.contenders import atfnd, in_turn
from bench.meter import Meter
from bench.ordering import PERIOD_MS, STALL_MS
from bench.report import Report
from bench.sent import by_transmitted
from bench.stats import median
from bench.tcp_reordering import TcpReordering
from bench.traffic import messages
from bench.traffic.sequence import stalled

__all__ = ["RIVALS", "Run", "measured", "report", "run"]

COUNTS = (40, 200)
OFFERED_BYTES_PER_S = 50_000_000
MODES = ("pinned", "migrating", "free")
RIVALS = ("rss", "transmitted", "atfnd")
SETTLE_S, EVERY_S, SWAPS = 1.5, 1.0, 5

Moves = Callable[[], int]


class Run(NamedTuple):
    """One contender for one window."""

    mode: str
    streams: int
    contender: str
    local: float  # share of bytes read on the CPU that had processed them, 0 to 1
    moves: int  # filters written
    seconds: float
    segments: int  # delivered
    out_of_order: int  # of them
    ring_drops: int


def run(rounds: int) -> Report:
    """`rounds` rounds; in each, every count and mode is given to every contender in turn."""
    runs = []
    with (
        tempfile.TemporaryDirectory() as folder,
        lab_bed() as bed,
        bed.meter() as meter,
        contextlib.closing(TcpReordering(path_of(bed.host or ""))) as order,
    ):
        program = messages.built(Path(folder))
        for turn in range(rounds):
            for mode in MODES:
                for count in COUNTS:
                    for name in in_turn(RIVALS, turn):
                        runs.append(measured(program, bed, meter, order, mode, count, name))
    return report(runs)


@contextlib.contextmanager
def _contending(
    program: Path, bed: Bed, name: str, count: int
) -> Iterator[tuple[tuple[Child, ...], Moves]]:
    """The servers under a contender, and how many filters it has written."""
    with contextlib.ExitStack() as stack:
        moves: Moves = int
        if name == "atfnd":
            daemon = stack.enter_context(atfnd(bed))
            moves = lambda: int(daemon.status()["actions_applied"])  # noqa: E731
        servers = stack.enter_context(streams(program, bed, count, OFFERED_BYTES_PER_S))
        if name == "transmitted":
            totals = stack.enter_context(by_transmitted(bed))
            moves = lambda: totals().moves  # noqa: E731
        yield servers, moves


def measured(
    program: Path, bed: Bed, meter: Meter, order: TcpReordering, mode: str, count: int, name: str
) -> Run:
    dropped = bed.ring_drops() or 0
    bed.clear_filters()
    with (
        _contending(program, bed, name, count) as (servers, moves),
        stalled(bed.cpus[0], STALL_MS, PERIOD_MS),
    ):
        if mode == "free":
            for server in servers:
                pin(server.pid, list(bed.cpus))
        time.sleep(SETTLE_S)
        began_s, moved, ofo = time.monotonic(), moves(), order.counters().TCPOFOQueue
        before = meter.totals()
        for swap in range(1, SWAPS + 1):
            if mode == "migrating":
                for number, server in enumerate(servers):
                    pin(server.pid, [bed.cpus[(number + swap) % len(bed.cpus)]])
            time.sleep(EVERY_S)
        found = meter.totals().since(before)
        for server in servers:
            server.check()
        return Run(
            mode,
            count,
            name,
            found.read_locality or 0.0,
            moves() - moved,
            time.monotonic() - began_s,
            found.local_segments + found.remote_segments + found.unknown_segments,
            order.counters().TCPOFOQueue - ofo,
            (bed.ring_drops() or 0) - dropped,
        )


def report(runs: list[Run]) -> Report:
    report = Report("transmitted", "steering by transmitted packets, and by socket calls")
    report.samples["runs"] = [each._asdict() for each in runs]
    groups: dict[tuple[str, int, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.mode, each.streams, each.contender), []).append(each)
    for (mode, count, name), found in groups.items():
        what = f"{mode}, 2n = {count}"
        report.add(f"{what}, read locally", name, "share", median(each.local for each in found))
        moved = median(each.moves / each.seconds for each in found)
        report.add(f"{what}, filters written", name, "/s", moved)
        share = median(each.out_of_order / max(1, each.segments) for each in found)
        report.add(f"{what}, segments out of order", name, "share", share)
    for name in RIVALS:
        own = [each for each in runs if each.contender == name]
        total, late = sum(each.segments for each in own), sum(each.out_of_order for each in own)
        drops = sum(each.ring_drops for each in own)
        report.notes.append(
            f"{name}: {late:,} of {total:,} segments out of order, {drops} lost to full rings"
        )
        if name == "atfnd":
            what = "atfnd, segments out of order"
            report.at_most(what, late, 0, "segments")
    return report
