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
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.interrupts.napi import make_realtime
from bench import plot
from bench.bed import Bed
from bench.children import prompt
from bench.connections import connections
from bench.markdown import Section, write_sections
from bench.pollers import Pollers, PollerTotals
from bench.polling import INTERRUPT, Polling, dedicated, polled_as
from bench.queues import napi_of, two_cpus
from bench.report import Report, Target
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
    """`rounds` rounds, forwards and backwards in turn, of every case with every size."""
    points = [(size, load.bytes_per_s) for size in load.sizes]
    points += [(load.of_rates, rate) for rate in load.rates]
    runs = []
    with tempfile.TemporaryDirectory() as folder, two_cpus() as bed, prompt():
        program = messages.built(Path(folder))
        for turn in range(rounds):
            for size, rate in points:
                for case in cases[:: -1 if turn % 2 else 1]:
                    runs.append(_one(program, bed, case, size, rate, load.window_s))
    return runs


def _one(
    program: Path, bed: Bed, case: Case, size: int, bytes_per_s: float, window_s: float
) -> Run:
    bed.deliver_all_to(case.queue)
    napi = napi_of(bed, case.queue)
    [thread] = napi.threads
    with ExitStack() as stack:
        stack.enter_context(polled_as(case.polling, [napi]))
        application = _application(program, bed, case, size, bytes_per_s, stack)
        pollers = stack.enter_context(closing(Pollers([thread, application])))
        time.sleep(SETTLE_S)
        began = _read(bed, pollers, thread, application)
        time.sleep(window_s)
        ended = _read(bed, pollers, thread, application)
    elapsed_ns = ended.at_ns - began.at_ns
    own = ended.thread.since(began.thread)
    app = ended.application.since(began.application)
    empty_ns = own.empty_ns + own.other_ns
    seconds = elapsed_ns / 1e9
    return Run(
        case=case.name,
        message_bytes=size,
        asked_bytes_per_s=bytes_per_s,
        bytes_per_s=(ended.bytes - began.bytes) / seconds,
        app_share=app.ran_ns / elapsed_ns,
        thread_share=own.ran_ns / elapsed_ns,
        work_share=own.work_ns / elapsed_ns,
        empty_share=empty_ns / elapsed_ns,
        yielded_share=own.off_ns / elapsed_ns,
        packets_per_poll=own.packets / max(1, own.polls),
        polls_per_s=own.polls / seconds,
        empty_per_s=own.empty_polls / seconds,
        sum_of_shares=(own.ran_ns + own.off_ns) / elapsed_ns,
    )


class _Reading(NamedTuple):
    at_ns: int
    bytes: int
    thread: PollerTotals
    application: PollerTotals


def _read(bed: Bed, pollers: Pollers, thread: int, application: int) -> _Reading:
    bytes_ = sum(each.bytes for each in connections(bed).values())
    at_ns = time.monotonic_ns()
    return _Reading(at_ns, bytes_, pollers.totals(thread), pollers.totals(application))


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


Cells = dict[tuple[str, int, float], list[Run]]  # case, message_bytes, asked_bytes_per_s


def report(runs: Sequence[Run], load: Load) -> Report:
    """The acceptance lines as rows and targets; all figures in protocol-core.md."""
    report = Report("protocol-core", "a CPU for protocol processing alone, after S4")
    report.samples["runs"] = [each._asdict() for each in runs]
    cells: Cells = {}
    for each in runs:
        key = each.case, each.message_bytes, each.asked_bytes_per_s
        cells.setdefault(key, []).append(each)
    names = list(dict.fromkeys(each.case for each in runs))
    for name in names:
        _by_size(report, cells, name, load)
    for what in dict.fromkeys(name.partition(",")[0] for name in names):
        _beside_same_core(report, cells, what, load)
    _by_rate(report, cells, load)
    apart = [abs(each.sum_of_shares - 1) for each in runs]
    report.notes.append(f"shares of the thread's time, sum - 1: {max(apart):.1%} at worst")
    what = "shares of the thread's time, sum - 1"
    report.targets.append(Target(what, median(apart).value, 0.02, False, ""))
    short = min(each.bytes_per_s / each.asked_bytes_per_s for each in runs)
    report.notes.append(f"the least of what was asked for that was carried: {short:.0%}")
    _drawn(cells, names, load)
    write_sections("protocol-core", _figures(cells, names, load))
    return report


def _values(cells: Cells, field: str, name: str, size: int, rate: float) -> list[float]:
    return [float(getattr(each, field)) for each in cells[name, size, rate]]


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the straight line through the logarithms."""
    x, y = ([math.log(max(value, 1e-9)) for value in each] for each in (xs, ys))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def _by_size(report: Report, cells: Cells, name: str, load: Load) -> None:
    """Figs. 3, 5: the application's CPU falls with the size of messages, the thread's does not."""
    rate = load.bytes_per_s
    app, thread = (
        [median(_values(cells, field, name, size, rate)).value for size in load.sizes]
        for field in ("app_share", "thread_share")
    )
    slope = _slope(load.sizes, app)
    report.add("slope of the application's CPU by size", name, "log-log", median([slope]))
    changed = max(thread) / min(thread) - 1
    report.add("change of the thread's CPU over sizes", name, "", median([changed]))
    if ", core, dedicated 100" in name:
        report.targets += [
            Target(f"{name}: slope of the application's CPU", slope, -0.7, False, "log-log"),
            Target(f"{name}: change of the thread's CPU", changed, 0.25, False, ""),
        ]


def _beside_same_core(report: Report, cells: Cells, what: str, load: Load) -> None:
    """The application's CPU with a protocol core, beside that of one core for both."""
    same, core = (Case(what, 1, INTERRUPT).name, Case(what, 0, dedicated(100)).name)
    for size in load.sizes:
        if not {(same, size, load.bytes_per_s), (core, size, load.bytes_per_s)} <= cells.keys():
            continue
        ratio = ratios(
            _values(cells, "app_share", core, size, load.bytes_per_s),
            _values(cells, "app_share", same, size, load.bytes_per_s),
        )
        title = f"{what}, {size // 1024} KiB, the application's CPU"
        report.add(title, "core, dedicated 100 us / same core", "×", ratio)
        report.targets.append(Target(f"{title}, core / same core", ratio.value, 1.0, False, "×"))


def _by_rate(report: Report, cells: Cells, load: Load) -> None:
    """Fig. 4: what the core yields falls with load, empty polls fall with a longer pause."""
    rates = sorted({*load.rates, load.bytes_per_s})
    name, longer = CORE.name, Case("copy", 0, dedicated(400)).name
    if (name, load.of_rates, rates[0]) in cells:
        yields = [
            median(_values(cells, "yielded_share", name, load.of_rates, rate)).value
            for rate in rates
        ]
        most = max(b / a for a, b in itertools.pairwise(yields))
        what = f"{name}: yielded, a rate / the next smaller one"
        report.targets.append(Target(what, most, 1.0, False, "×"))
    if {(each, load.of_rates, rates[0]) for each in (name, longer)} <= cells.keys():
        ratio = ratios(
            _values(cells, "empty_per_s", longer, load.of_rates, rates[0]),
            [max(1.0, v) for v in _values(cells, "empty_per_s", name, load.of_rates, rates[0])],
        )
        report.targets.append(
            Target("empty polls, pause 400 us / 100 us", ratio.value, 1.0, False, "×")
        )


def _drawn(cells: Cells, names: Sequence[str], load: Load) -> None:
    for field, title in (
        ("app_share", "CPU of the application"),
        ("thread_share", "CPU of the NAPI thread"),
    ):
        series = {
            name: [
                100 * median(_values(cells, field, name, size, load.bytes_per_s)).value
                for size in load.sizes
            ]
            for name in names
        }
        kib = [size / 1024 for size in load.sizes]
        name = f"protocol-core-{field.partition('_')[0]}"
        plot.curves(name, title, "message, KiB", "% of a CPU", kib, series)


FIGURES = (
    ("Figs. 3, 5: CPU of the application, %", "app_share", 100.0),
    ("Figs. 3, 5: CPU of the NAPI thread, %", "thread_share", 100.0),
    ("Figs. 4, 6: polls that found packets, % of the time", "work_share", 100.0),
    ("Figs. 4, 6: empty polls, sleeping and waking, % of the time", "empty_share", 100.0),
    ("Figs. 4, 6: yielded, % of the time", "yielded_share", 100.0),
    ("packets a poll", "packets_per_poll", 1.0),
    ("empty polls/s", "empty_per_s", 1.0),
    ("MB/s", "bytes_per_s", 1e-6),
)


def _figures(cells: Cells, names: Sequence[str], load: Load) -> list[Section]:
    """Each quantity by size, and by rate; median [lowest, highest]."""
    sizes = [(f"{size // 1024} KiB", size, load.bytes_per_s) for size in load.sizes]
    rates = [
        (f"{rate / 1e6:.0f} MB/s", load.of_rates, rate)
        for rate in sorted({*load.rates, load.bytes_per_s})
    ]
    found = []
    for title, field, scale in FIGURES:
        for columns, by in (
            (sizes, f"{load.bytes_per_s / 1e6:.0f} MB/s"),
            (rates, f"messages of {load.of_rates // 1024} KiB"),
        ):
            rows = [
                [
                    name,
                    *(
                        median(scale * v for v in _values(cells, field, name, size, rate)).text()
                        for _, size, rate in columns
                    ),
                ]
                for name in names
            ]
            found.append(Section(f"{title} ({by})", ["", *(head for head, *_ in columns)], rows))
    return found
