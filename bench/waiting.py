# SPDX-License-Identifier: GPL-2.0-or-later
"""Waits for the locks of the receiver's sockets, and what it carries: the paper's Tables 3 and 4.

The paper's experiment 1: two servers, each pinned to the core of a queue, n TCP streams each,
2n = 40, 200, 1000, 2000, as fast as TCP lets, and a thread for each stream that waits in recv(2),
as iperf 2 has. (A thread that waits in epoll(7) comes to the socket some microseconds after the
packet that woke it, and hardly ever meets the softirq there.)

The paper adds up what lockstat counts of all kernel locks (WAITTIME-TOTAL); here the spinlocks of
sockets are distinguished from others by their address (bench/waits.py). Per GB read, because the
contenders carry different amounts. A softirq that finds a socket owned by its thread does not wait:
it leaves the segment to that thread. The share of what TCP processed so stands beside (the paper's
section 2.3; the prequeue, which it counts too, is gone since Linux 4.14).

CPU time is that of the servers, the NAPI threads and the daemon (schedstat). What RFS hands to
another CPU runs there in whatever it interrupts, in part the sender, and is then not counted.

On simnic, in a guest without KVM, waits for spinlocks are not reported; shares are valid.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

from atfnd.errors import OperatorError
from bench import plot
from bench.bed import Bed, BedMaker, lab_bed
from bench.contenders import contenders
from bench.cost import cpu_ns
from bench.locality import PORTS, streams
from bench.netns import inode
from bench.report import Report, Target
from bench.stats import Estimate, median, ratios
from bench.waits import Waits, WaitTotals

__all__ = ["LAB", "SIMNIC", "Load", "Run", "measure", "report", "run"]

GB = 1e9
FLOOR_NS = 1000.0  # per GB: a ratio of less says nothing
FEW_STREAMS = 200  # up to there the paper's gain is 99 %
TARGET = 0.2  # of RSS's wait


class Load(NamedTuple):
    """How many streams, and for how long."""

    name: str  # of the report
    counts: tuple[int, ...]
    settle_s: float
    window_s: float


LAB = Load("waiting", (40, 200, 1000, 2000), 1.5, 3.0)
SIMNIC = Load("waiting-simnic", (40, 200), 5.0, 10.0)


class Run(NamedTuple):
    """One contender for one window."""

    streams: int
    contender: str
    seconds: float
    cpu_ns: int  # of the servers, the NAPI threads and the daemon
    counted: WaitTotals


def measure(rounds: int, make_bed: BedMaker, load: Load) -> dict[str, Any]:
    """`rounds` rounds; in each, every count is given to every contender in turn."""
    runs = []
    with make_bed() as bed, contextlib.closing(Waits(inode(bed.host))) as waits:
        if len(bed.cpus) < len(PORTS):
            raise OperatorError("waiting needs two CPUs: with one, nobody waits")
        rivals = contenders(bed)
        for turn in range(rounds):
            first = turn % len(rivals)
            for count in load.counts:
                for name in [*list(rivals)[first:], *list(rivals)[:first]]:
                    runs.append(_one(bed, waits, name, count, load))
        drops = bed.ring_drops()
    return {"runs": runs, "notes": [f"packets lost to full rings: {drops}"]}


def _one(bed: Bed, waits: Waits, name: str, count: int, load: Load) -> Run:
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(contenders(bed)[name](bed))
        nic = stack.enter_context(bed.open())
        servers = stack.enter_context(streams(bed, count, None, threads=True))
        time.sleep(load.settle_s)
        pids = [server.pid for server in servers]
        pids += [queue.pid for queue in nic.queues() if queue.pid]
        pids += [daemon.process.pid] if daemon else []
        before, spent_ns, began = waits.totals(), sum(map(cpu_ns, pids)), time.monotonic()
        time.sleep(load.window_s)
        counted, seconds = waits.totals().since(before), time.monotonic() - began
        spent_ns = sum(map(cpu_ns, pids)) - spent_ns
    if not counted.bytes:
        raise OperatorError("nothing was read", exit_code=1)
    return Run(count, name, seconds, spent_ns, counted)


def run(rounds: int) -> Report:
    """On a lab NIC."""
    return report(measure(rounds, lab_bed, LAB), LAB)


def _per_gb(found: list[Run], field: str) -> list[float]:
    return [getattr(each.counted, field) / each.counted.bytes * GB for each in found]


def report(measured: dict[str, Any], load: Load) -> Report:
    """From what `measure` found, which may have been JSON in between."""
    report = Report(load.name, "waits for the spinlocks of the receiver's sockets")
    report.notes += measured["notes"]
    runs = [Run(*each)._replace(counted=WaitTotals(*each[-1])) for each in measured["runs"]]
    report.samples["runs"] = [{**r._asdict(), "counted": r.counted._asdict()} for r in runs]
    found: dict[int, dict[str, list[Run]]] = {}
    for each in runs:
        found.setdefault(each.streams, {}).setdefault(each.contender, []).append(each)
    reported = any(each.counted.socket_waits + each.counted.other_waits for each in runs)
    if not reported:
        report.notes.append("this kernel reports no waits for spinlocks: they are left out")
    picture: dict[str, list[Estimate]] = {}
    for count, by_name in found.items():
        for name, some in by_name.items():
            _rows(report, f"2n = {count}", name, some, reported)
            if reported:
                waited = median(ns / 1e6 for ns in _per_gb(some, "socket_ns"))
                picture.setdefault(name, []).append(waited)
        if reported:
            _waited(report, count, by_name)
        _carried(report, count, by_name)
    if picture:
        title = "Waiting for the spinlocks of the receiver's sockets"
        groups = [str(count) for count in found]
        plot.bars(load.name, title, "ms per GB", groups, picture, floor=0.001)
    lost = sum(each.counted.untracked + each.counted.unfinished for each in runs)
    report.notes.append(f"sockets untracked and waits without an end: {lost}")
    return report


def _rows(report: Report, what: str, name: str, some: list[Run], reported: bool) -> None:
    if reported:
        for label, field in (("socket locks", "socket"), ("other spinlocks", "other")):
            waits = median(_per_gb(some, f"{field}_waits"))
            report.add(f"{what}, waits for {label}", name, "per GB", waits)
            waited = median(ns / 1e3 for ns in _per_gb(some, f"{field}_ns"))
            report.add(f"{what}, waited for {label}", name, "us per GB", waited)
    shares = [
        each.counted.backlog_skbs / (each.counted.backlog_skbs + each.counted.softirq_skbs)
        for each in some
    ]
    report.add(f"{what}, processed by the thread", name, "of skbs", median(shares))
    local = median(each.counted.local_bytes / each.counted.bytes for each in some)
    report.add(f"{what}, read locally", name, "of bytes", local)
    report.add(f"{what}, read", name, "MB/s", median(map(_mb_per_s, some)))
    report.add(f"{what}, CPU", name, "s per GB", median(map(_cpu_s_per_gb, some)))


def _mb_per_s(one: Run) -> float:
    return one.counted.bytes / one.seconds / 1e6


def _cpu_s_per_gb(one: Run) -> float:
    return one.cpu_ns / 1e9 / one.counted.bytes * GB


def _waited(report: Report, count: int, by_name: dict[str, list[Run]]) -> None:
    """atfnd beside each rival; less than the floor counts as the floor."""
    ours, *theirs = (
        (name, [max(ns, FLOOR_NS) for ns in _per_gb(by_name[name], "socket_ns")])
        for name in ("atfnd", *(name for name in by_name if name != "atfnd"))
    )
    for name, waited in theirs:
        ratio = ratios(ours[1], waited)
        what = f"2n = {count}, waited for socket locks"
        report.add(what, f"atfnd / {name}", "×", ratio)
        bound = TARGET if name == "rss" and count <= FEW_STREAMS else 1.0
        report.targets.append(Target(f"{what}, atfnd / {name}", ratio.value, bound, False, "×"))


def _carried(report: Report, count: int, by_name: dict[str, list[Run]]) -> None:
    """What atfnd carries beside RSS, and for how much CPU."""
    for what, of, at_least in (("read", _mb_per_s, True), ("CPU", _cpu_s_per_gb, False)):
        ours, theirs = (list(map(of, by_name[name])) for name in ("atfnd", "rss"))
        ratio = ratios(ours, theirs)
        title = f"2n = {count}, {what}"
        report.add(title, "atfnd / rss", "×", ratio)
        report.targets.append(Target(f"{title}, atfnd / rss", ratio.value, 1.0, at_least, "×"))
