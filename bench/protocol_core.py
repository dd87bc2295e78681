# SPDX-License-Identifier: GPL-2.0-or-later
"""A CPU that does nothing but protocol processing, after the fourth paper (Figs. 3 to 6).

The paper's TCE is a thread on a CPU of its own: it polls, stops for 100 us when there is nothing,
and works for an application on another CPU. Here it is the NAPI thread of the application's queue,
on the first CPU, polled with a pause of 100 us (`dedicated`), or by interrupts. `same core`: thread
and application share the second CPU. Messages of 2 to 32 KiB over 8 connections, at one rate in
bytes. `receive`: the application copies each message, or discards it in the kernel, which is what
the paper's NIC leaves to do. `transmit`: the application sends, and what the thread processes are
acknowledgements.

CPU time is what BPF saw (bench/pollers.py). Shares of the thread's time: polls that found packets,
polls that found none with what it takes to sleep and wake, and the rest, which it yields.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.interrupts.napi import make_realtime
from bench.bed import Bed
from bench.children import prompt
from bench.contenders import in_turn
from bench.grid import Figure, Grid
from bench.polling import INTERRUPT, Polling, dedicated, polled_as
from bench.queues import napi_of, two_cpus, watched
from bench.report import Report
from bench.stats import median, ratios
from bench.traffic import messages

__all__ = ["CASES", "LAB", "Case", "Load", "Run", "measure", "report", "run"]

PORT = 5600
APPLICATION = 1  # number of its CPU, and of the queue there
CONNECTIONS = 8
PRIORITY = 2  # of both ends, below NAPI threads and the wire
SETTLE_S = 0.3


class Case(NamedTuple):
    """What the application does, and where its packets are processed."""

    what: str  # copy, discard: it receives; transmit
    queue: int  # 1: on the application's own CPU
    polling: Polling

    @property
    def name(self) -> str:
        place = "same core" if self.queue == APPLICATION else "core"
        return f"{self.what}, {place}, {self.polling.name}"


SAME = Case("copy", APPLICATION, INTERRUPT)
CORE = Case("copy", 0, dedicated(100))
CASES = (
    SAME,
    Case("copy", 0, INTERRUPT),
    CORE,
    Case("copy", 0, dedicated(400)),
    Case("discard", APPLICATION, INTERRUPT),
    Case("discard", 0, dedicated(100)),
    Case("transmit", APPLICATION, INTERRUPT),
    Case("transmit", 0, dedicated(100)),
)


class Load(NamedTuple):
    """Message sizes, all at `bytes_per_s`; for one of them, other rates."""

    sizes: tuple[int, ...]
    bytes_per_s: float
    of_rates: int
    rates: tuple[float, ...]
    window_s: float


LAB = Load((2048, 4096, 8192, 16384, 32768), 100e6, 8192, (25e6, 50e6, 200e6), 0.6)


class Run(NamedTuple):
    """One case with messages of one size."""

    case: str
    message_bytes: int
    asked_bytes_per_s: float
    bytes_per_s: float
    app_share: float  # of a CPU
    thread_share: float
    work_share: float  # of the thread's time: polls that found packets
    empty_share: float  # polls that found none, and what is around them
    yielded_share: float  # off its CPU
    packets_per_poll: float
    polls_per_s: float
    empty_per_s: float
    sum_of_shares: float  # with the time off its CPU as BPF saw it: 1 if nothing was missed


def measure(rounds: int, load: Load = LAB, cases: Sequence[Case] = CASES) -> list[Run]:
    """`rounds` rounds of every case with every size; cases take turns."""
    points = [(size, load.bytes_per_s) for size in load.sizes]
    points += [(load.of_rates, rate) for rate in load.rates]
    runs = []
    with tempfile.TemporaryDirectory() as folder, two_cpus() as bed, prompt():
        program = messages.built(Path(folder))
        for turn in range(rounds):
            for size, rate in points:
                for case in in_turn(cases, turn):
                    runs.append(_one(program, bed, case, size, rate, load.window_s))
    return runs


def _one(
    program: Path, bed: Bed, case: Case, size: int, bytes_per_s: float, window_s: float
) -> Run:
    bed.deliver_all_to(case.queue)
    napi = napi_of(bed, case.queue)
    with ExitStack() as stack:
        stack.enter_context(polled_as(case.polling, [napi]))
        application = _application(program, bed, case, size, bytes_per_s, stack)
        read = stack.enter_context(watched(bed, napi, application))
        time.sleep(SETTLE_S)
        began = read()
        time.sleep(window_s)
        used = read().since(began)
    own, elapsed_ns, seconds = used.thread, used.ns, used.ns / 1e9
    empty_ns = own.empty_ns + own.other_ns
    return Run(
        case=case.name,
        message_bytes=size,
        asked_bytes_per_s=bytes_per_s,
        bytes_per_s=used.bytes / seconds,
        app_share=used.application.ran_ns / elapsed_ns,
        thread_share=own.ran_ns / elapsed_ns,
        work_share=own.work_ns / elapsed_ns,
        empty_share=empty_ns / elapsed_ns,
        yielded_share=own.off_ns / elapsed_ns,
        packets_per_poll=own.packets / max(1, own.polls),
        polls_per_s=own.polls / seconds,
        empty_per_s=own.empty_polls / seconds,
        sum_of_shares=(own.ran_ns + own.off_ns) / elapsed_ns,
    )


def _application(
    program: Path, bed: Bed, case: Case, size: int, bytes_per_s: float, stack: ExitStack
) -> int:
    """Both ends at work; the pid of the one on the host."""
    sends = case.what == "transmit"
    ours, theirs = (bed.host, [bed.cpus[APPLICATION]]), (bed.peer, bed.spare)
    server, sender = (theirs, ours) if sends else (ours, theirs)
    address = bed.peer_address if sends else bed.address
    what = "copy" if sends else case.what
    serving = stack.enter_context(
        messages.serving(program, server[0], address, PORT, size, what, server[1])
    )
    sending = stack.enter_context(
        messages.sending(
            program, sender[0], address, PORT, size, CONNECTIONS, bytes_per_s, sender[1]
        )
    )
    for end in (serving, sending):
        make_realtime(end.pid, None, PRIORITY)
    return sending.pid if sends else serving.pid


def run(rounds: int) -> Report:
    """On a lab NIC."""
    return report(measure(rounds), LAB)


APPLICATION_CPU = Figure("Figs. 3, 5: CPU of the application, %", ("app_share",), 100)
THREAD_CPU = Figure("Figs. 3, 5: CPU of the NAPI thread, %", ("thread_share",), 100)
FIGURES = (
    APPLICATION_CPU,
    THREAD_CPU,
    Figure("Figs. 4, 6: polls that found packets, % of the time", ("work_share",), 100),
    Figure("Figs. 4, 6: empty polls, sleeping, waking, % of the time", ("empty_share",), 100),
    Figure("Figs. 4, 6: yielded, % of the time", ("yielded_share",), 100),
    Figure("packets a poll", ("packets_per_poll",)),
    Figure("empty polls/s", ("empty_per_s",)),
    Figure("MB/s", ("bytes_per_s",), 1e-6),
)
SIZES, RATES = "by-size", "by-rate"  # columns: KiB, MB/s


def report(runs: Sequence[Run], load: Load) -> Report:
    """The acceptance lines as rows and targets; all figures in protocol-core.md."""
    report = Report("protocol-core", "a CPU for protocol processing alone, after S4")
    report.samples["runs"] = [each._asdict() for each in runs]
    sized = (
        (SIZES, each.case, each.message_bytes / 1024, each)
        for each in runs
        if each.asked_bytes_per_s == load.bytes_per_s
    )
    rated = (
        (RATES, each.case, each.asked_bytes_per_s / 1e6, each)
        for each in runs
        if each.message_bytes == load.of_rates
    )
    grid = Grid((*sized, *rated))
    for name in grid.rows(SIZES):
        _by_size(report, grid, name)
    for what in dict.fromkeys(name.partition(",")[0] for name in grid.rows(SIZES)):
        _beside_same_core(report, grid, what)
    _by_rate(report, grid)
    apart = [abs(each.sum_of_shares - 1) for each in runs]
    report.notes.append(f"shares of the thread's time, sum - 1: {max(apart):.1%} at worst")
    report.at_most("shares of the thread's time, sum - 1", median(apart).value, 0.02, "")
    short = min(each.bytes_per_s / each.asked_bytes_per_s for each in runs)
    report.notes.append(f"the least of what was asked for that was carried: {short:.0%}")
    for file, figure in (("app", APPLICATION_CPU), ("thread", THREAD_CPU)):
        grid.draw(f"protocol-core-{file}", figure.title, "message, KiB, or MB/s", figure, 1)
    grid.write("protocol-core", FIGURES, "{:g}".format)
    return report


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the straight line through the logarithms."""
    x, y = ([math.log(max(value, 1e-9)) for value in each] for each in (xs, ys))
    return statistics.linear_regression(x, y).slope


def _by_size(report: Report, grid: Grid[Run], name: str) -> None:
    """Figs. 3, 5: the application's CPU falls with the size of messages, the thread's does not."""
    app, thread = (grid.line(field, SIZES, name) for field in ("app_share", "thread_share"))
    slope, changed = _slope(grid.columns(SIZES), app), max(thread) / min(thread) - 1
    report.add("slope of the application's CPU by size", name, "log-log", median([slope]))
    report.add("change of the thread's CPU over sizes", name, "", median([changed]))
    if ", core, dedicated 100" in name:
        report.at_most(f"{name}: slope of the application's CPU", slope, -0.7, "log-log")
        report.at_most(f"{name}: change of the thread's CPU", changed, 0.25, "")


def _beside_same_core(report: Report, grid: Grid[Run], what: str) -> None:
    """The application's CPU with a protocol core, beside that of one core for both."""
    same, core = (Case(what, 1, INTERRUPT).name, Case(what, 0, dedicated(100)).name)
    for size in grid.columns(SIZES) if grid.has(SIZES, same, core) else ():
        ratio = grid.ratio("app_share", SIZES, core, same, size)
        title = f"{what}, {size:g} KiB, the application's CPU"
        report.add(title, "core, dedicated 100 us / same core", "×", ratio)
        report.at_most(f"{title}, core / same core", ratio.value, 1.0)


def _by_rate(report: Report, grid: Grid[Run]) -> None:
    """Fig. 4: what the core yields falls with load, empty polls fall with a longer pause."""
    name, longer = CORE.name, Case("copy", 0, dedicated(400)).name
    if grid.has(RATES, name):
        pairs = itertools.pairwise(grid.line("yielded_share", RATES, name))
        what = f"{name}: yielded, a rate / the next smaller one"
        report.at_most(what, max(b / a for a, b in pairs), 1.0)
    if grid.has(RATES, name, longer):
        least = grid.columns(RATES)[0]
        ours, theirs = (grid.values("empty_per_s", RATES, each, least) for each in (longer, name))
        ratio = ratios(ours, [max(1.0, each) for each in theirs])
        report.at_most("empty polls, pause 400 us / 100 us", ratio.value, 1.0)
