# SPDX-License-Identifier: GPL-2.0-or-later
"""One queue under each way of polling it, from idle to capacity: requests and a stream.

A server on the second of two CPUs, where its queue is polled too, and clients on the first. It
works WORK_NS for each request, so that its CPU is what is short. Requests come at times that do not
wait for answers; at 100 % each connection asks again as soon as it is answered. The stream is
16 KiB messages, offered at a rate; at 100 % as fast as TCP takes them. The capacity is that of
`interrupt` in the same round. Modes are set by atfnd, whose policy asks for them; it leaves flows
alone. With `auto` the server's CPU is dedicated to the flows, so that its queue may have any mode,
and the time in which one is chosen is not measured.

`interrupt` is a NAPI thread that sleeps once its ring is empty: its wakes stand for interrupts
(docs/lab.md). Servers and clients have a real-time priority below its, so that what else the
machine does is not measured. CPU time is what BPF saw (bench/pollers.py), of the thread and of the
server; where the server's epoll polls the queue itself (`suspended`), that is the server's.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.interrupts.napi import make_realtime
from bench.bed import Bed
from bench.children import Child, prompt, until
from bench.contenders import in_turn
from bench.daemon import Daemon, daemon
from bench.grid import Figure, Grid
from bench.polling import (
    AUTO,
    INTERRUPT,
    Polled,
    Polling,
    dedicated,
    deferred,
    refusal_of_busy,
    suspended,
)
from bench.queues import napi_of, two_cpus, watched
from bench.report import Report
from bench.stats import median
from bench.traffic import messages, requests
from bench.traffic.requests import Asked

__all__ = ["LAB", "MODES", "Load", "Measured", "Run", "measure", "report", "run"]

QUEUE = 1
PORT = 5500
WORK_NS = 15_000
REQUEST_BYTES, MESSAGE_BYTES = 64, 16384
ASKING, STREAMS = 64, 8
FLAT_OUT = 20e9  # bytes/s: more than any CPU takes
IDLE_AFTER_S = 0.2
PATIENCE_S = 60.0  # until the clients have begun
BEFORE_END_S = 0.05
PRIORITY = 2  # below NAPI threads and the wire
IDLE_PER_S = 0.001  # one, while nothing is measured yet
IDLE_WAKES_PER_S = 5.0  # a timer of TCP may send something
KINDS = ("requests", "stream")
MODES = (
    INTERRUPT,
    deferred(20),
    deferred(200),
    dedicated(100, IDLE_AFTER_S),
    suspended(20),
    suspended(200),
    AUTO,
)
NEAR_BEST = 0.95  # of what the best fixed mode carries


class Load(NamedTuple):
    """Shares of the capacity, 0 for idle, and for how long."""

    shares: tuple[float, ...]
    warm_s: float
    window_s: float


LAB = Load((0.0, 0.2, 0.5, 0.8, 1.0), 0.3, 1.0)
IDLE_WARM_S = 10 * IDLE_AFTER_S  # timers are late: polls 100 us apart take 225


class Run(NamedTuple):
    """One mode at one load."""

    kind: str
    mode: str
    load: float  # of the capacity
    per_s: float  # answers, or bytes
    p50_ns: int | None  # from request to answer; None: there are none
    p99_ns: int | None
    wakes_per_s: float  # of the NAPI thread
    napi_share: float  # of a CPU
    server_share: float
    empty_polls: float  # of all polls
    by_server: float  # of the packets: polled by the server itself

    @property
    def cpu(self) -> float:
        return self.napi_share + self.server_share

    @property
    def wakes_per_answer(self) -> float:
        return self.wakes_per_s / self.per_s


class Measured(NamedTuple):
    """What all rounds found."""

    runs: list[Run]
    undone: bool  # each value of the NAPI is as it was before
    no_busy: str | None  # why threads that poll without end are left out


def measure(
    rounds: int, load: Load = LAB, modes: Sequence[Polling] = MODES, kinds: Sequence[str] = KINDS
) -> Measured:
    """`rounds` rounds of every mode at every load; modes take turns."""
    runs = []
    with tempfile.TemporaryDirectory() as name, two_cpus() as bed, prompt():
        folder = Path(name)
        programs = _Programs(messages.built(folder), requests.built(folder))
        bed.deliver_all_to(QUEUE)
        napi = napi_of(bed, QUEUE)
        before = napi.read()
        no_busy = refusal_of_busy(napi)
        cpu = bed.cpus[QUEUE]
        with daemon(bed.nic, _policy(INTERRUPT, cpu)) as atfnd:

            def measured(kind: str, mode: Polling, share: float, capacity: float) -> Run:
                _have_set(atfnd, napi, mode, cpu)
                return _one(programs, bed, napi, kind, mode, share, capacity, load)

            for turn in range(rounds):
                for kind in kinds:
                    capacity = measured(kind, INTERRUPT, 1.0, 0.0).per_s
                    for share in load.shares:
                        for mode in in_turn(modes, turn):
                            runs.append(measured(kind, mode, share, capacity))
        return Measured(runs, napi.read() == before, no_busy)


def _policy(mode: Polling, cpu: int) -> str:
    chosen = f"{{ dedicated: [{cpu}] }}\n    reception: {mode.reception}"
    return f"""\
version: 1
about: Every queue is polled in one way.
interfaces: [{{ match: {{ name: "*" }}, armed: true, reception: {mode.reception} }}]
flows:
  - name: rest
    replaces_built_in: true
    match: {{ protocol: [tcp, udp] }}
    placement: {chosen if mode.chooses_s else "leave"}
"""


def _have_set(atfnd: Daemon, napi: Polled, mode: Polling, cpu: int) -> None:
    """Have the daemon set this mode. OperatorError: it does not."""
    atfnd.reload(_policy(mode, cpu))
    if mode.chooses_s:
        return
    wanted = (mode.polls, mode.timeout_ns, mode.suspend_ns)

    def is_set() -> bool:
        now = napi.read()
        values = now.defer_hard_irqs, now.gro_flush_timeout_ns, now.irq_suspend_timeout_ns
        return values == wanted

    until(is_set, f"{mode.name} is set", 30)


class _Programs(NamedTuple):
    messages: Path
    requests: Path


def _one(
    programs: _Programs,
    bed: Bed,
    napi: Polled,
    kind: str,
    mode: Polling,
    share: float,
    capacity: float,
    load: Load,
) -> Run:
    what, size = ("answer", REQUEST_BYTES) if kind == "requests" else ("copy", MESSAGE_BYTES)
    work_ns = WORK_NS if kind == "requests" else 0
    with (
        messages.serving(
            programs.messages, bed.host, bed.address, PORT, size, what, [bed.cpus[QUEUE]],
            work_ns=work_ns, prefers=mode.prefers,
        ) as server,
        watched(bed, napi, server.pid) as read,
    ):  # fmt: skip
        make_realtime(server.pid, None, PRIORITY)

        warm_s = max(mode.chooses_s, load.warm_s if share else max(load.warm_s, IDLE_WARM_S))
        answers = None
        if kind == "requests":
            with _asked(programs.requests, bed, share, capacity, warm_s, load.window_s) as client:
                began = read()
                time.sleep(load.window_s - BEFORE_END_S)  # closing connections wakes somebody
                used = read().since(began)
                answers = requests.answers(client, 30)
        else:
            with _streamed(programs.messages, bed, share, capacity):
                time.sleep(warm_s)
                began = read()
                time.sleep(load.window_s)
                used = read().since(began)
    seconds, thread, own = used.ns / 1e9, used.thread, used.application
    polls = thread.polls + thread.empty_polls + own.polls + own.empty_polls
    packets = thread.packets + own.packets
    per_s = answers.per_s if answers else used.bytes / seconds
    return Run(
        kind=kind,
        mode=mode.name,
        load=share,
        per_s=per_s,
        p50_ns=answers.p50_ns if answers and share else None,
        p99_ns=answers.p99_ns if answers and share else None,
        wakes_per_s=used.wakes / seconds,
        napi_share=thread.ran_ns / 1e9 / seconds,
        server_share=own.ran_ns / 1e9 / seconds,
        empty_polls=(thread.empty_polls + own.empty_polls) / max(1, polls),
        by_server=own.packets / max(1, packets),
    )


@contextlib.contextmanager
def _asked(
    program: Path, bed: Bed, share: float, capacity: float, warm_s: float, window_s: float
) -> Iterator[Child]:
    """Clients whose window has begun. Idle: one request, before that."""
    rate = None if share >= 1 else share * capacity or IDLE_PER_S
    asked = Asked("tcp", bytes(REQUEST_BYTES))
    with requests.asking(program, bed, PORT, asked, ASKING, rate, warm_s, window_s) as client:
        make_realtime(client.pid, None, PRIORITY)
        client.said("measuring", warm_s + PATIENCE_S)
        yield client


@contextlib.contextmanager
def _streamed(program: Path, bed: Bed, share: float, capacity: float) -> Iterator[None]:
    """Senders at work."""
    rate = FLAT_OUT if share >= 1 else share * capacity or IDLE_PER_S * MESSAGE_BYTES
    with messages.sending(
        program, bed.peer, bed.address, PORT, MESSAGE_BYTES, STREAMS, rate, bed.spare
    ) as sender:
        make_realtime(sender.pid, None, PRIORITY)
        yield


def run(rounds: int) -> Report:
    """On a lab NIC."""
    return report(measure(rounds))


WAKES = Figure("wakes/s", ("wakes_per_s",))
CPU = Figure("CPU of the NAPI thread and of the server, %", ("cpu",), 100)
FIGURES = (
    Figure("answers/s", ("per_s",), group="requests"),
    Figure("MB/s", ("per_s",), 1e-6, "stream"),
    Figure("p50, us", ("p50_ns",), 1e-3, "requests"),
    Figure("p99, us", ("p99_ns",), 1e-3, "requests"),
    WAKES,
    CPU,
    Figure("CPU of the NAPI thread | of the server, %", ("napi_share", "server_share"), 100),
    Figure("empty polls, % of all", ("empty_polls",), 100),
    Figure("packets polled by the server, %", ("by_server",), 100),
)


def report(measured: Measured) -> Report:
    """The acceptance lines (docs/internals/bench.md) as targets; all figures in reception.md."""
    report = Report("reception", "one queue under each way of polling it")
    report.samples["runs"] = [each._asdict() for each in measured.runs]
    grid = Grid((each.kind, each.mode, each.load, each) for each in measured.runs)
    for kind in grid.groups:
        unit, scale = ("/s", 1.0) if kind == "requests" else ("MB/s", 1e-6)
        full = grid.columns(kind)[-1]
        for mode in grid.rows(kind):
            carried = median(scale * each for each in grid.values("per_s", kind, mode, full))
            report.add(f"{kind}, at capacity", mode, unit, carried)
        _idle(report, grid, kind)
        _deferred(report, grid, kind)
        _dedicated(report, grid, kind)
        _auto(report, grid, kind)
    _suspended(report, grid)
    report.at_least("5: values of the NAPI as before", float(measured.undone), 1.0, "")
    if measured.no_busy is not None:
        report.notes.append(f"busy: left out, this kernel says: {measured.no_busy}")
    report.notes.append("6, moves in each mode: bench ordering; not measured here")
    for file, title, figure in (("wakes", "wakes", WAKES), ("cpu", "CPU", CPU)):
        grid.draw(f"reception-{file}", title, "load, % of capacity", figure)
    grid.write("reception", FIGURES)
    return report


def _loads(grid: Grid[Run], kind: str) -> list[float]:
    return [load for load in grid.columns(kind) if load]


def _modes(grid: Grid[Run], kind: str, *words: str) -> list[Polling]:
    return [each for each in MODES if each.name.startswith(words) and grid.has(kind, each.name)]


def _idle(report: Report, grid: Grid[Run], kind: str) -> None:
    """Line 1: nobody is woken for nothing."""
    for mode in _modes(grid, kind, "interrupt", "suspended", "dedicated"):
        if wakes := grid.values("wakes_per_s", kind, mode.name, 0.0):
            what = f"1: {kind}, idle, wakes, {mode.name}"
            report.at_most(what, median(wakes).value, IDLE_WAKES_PER_S, "/s")


def _deferred(report: Report, grid: Grid[Run], kind: str) -> None:
    """Line 2: a poll each timeout at most, and not more delay than that."""
    for mode in _modes(grid, kind, "deferred"):
        most = max(grid.line("wakes_per_s", kind, mode.name))
        report.at_most(f"2: {kind}, most wakes, {mode.name}", most, 1e9 / mode.timeout_ns, "/s")
        for load in _loads(grid, kind)[:-1] if kind == "requests" else ():
            ours, theirs = (
                grid.value("p50_ns", kind, each.name, load) for each in (mode, INTERRUPT)
            )
            what = f"2: requests at {load:.0%}, p50 beside interrupt's, {mode.name}"
            report.at_most(what, (ours - theirs) / 1e3, mode.timeout_ns / 1e3, "us")


def _suspended(report: Report, grid: Grid[Run]) -> None:
    """Line 3: at saturation less of everything than interrupts, at little load hardly more CPU."""
    for mode in _modes(grid, "requests", "suspended"):
        least, *_, top = _loads(grid, "requests")
        for title, field, load, bound, hold in (
            ("wakes a request", "wakes_per_answer", top, 0.2, report.at_most),
            ("answers", "per_s", top, 1.0, report.at_least),
            ("p99", "p99_ns", top, 1.0, report.at_most),
            ("CPU", "cpu", least, 1.2, report.at_most),
        ):
            what = f"3: {title} at {load:.0%}"
            ratio = grid.ratio(field, "requests", mode.name, INTERRUPT.name, load)
            report.add(what, f"{mode.name} / interrupt", "×", ratio)
            hold(f"{what}, {mode.name} / interrupt", ratio.value, bound)


def _dedicated(report: Report, grid: Grid[Run], kind: str) -> None:
    """Line 4: the polls do not depend on the load; what is not polling falls with it."""
    for mode in _modes(grid, kind, "dedicated"):
        calm = [load for load in _loads(grid, kind) if load <= 0.5]
        low, high = calm[0], calm[-1]
        wakes = [grid.value("wakes_per_s", kind, mode.name, load) for load in (low, high)]
        what = f"4: {kind}, wakes at {high:.0%} / at {low:.0%}, {mode.name}"
        report.at_most(what, max(wakes) / min(wakes), 1.1)
        app = grid.ratio("server_share", kind, mode.name, INTERRUPT.name, high)
        what = f"4: {kind}, the server's CPU at {high:.0%}"
        report.add(what, f"{mode.name} / interrupt", "×", app)
        report.at_most(f"{what}, {mode.name} / interrupt", app.value, 1.0)
        shares = [grid.value("napi_share", kind, mode.name, load) for load in _loads(grid, kind)]
        grows = min(b / a for a, b in itertools.pairwise(shares))
        what = f"4: {kind}, CPU of the thread, a load / the next smaller one, {mode.name}"
        report.at_least(what, grows, 1.0)


def _auto(report: Report, grid: Grid[Run], kind: str) -> None:
    """Line 8: at every load it carries what the best fixed mode carries, to within 5 %."""
    fixed = [mode for mode in grid.rows(kind) if mode != AUTO.name]
    for load in _loads(grid, kind) if grid.has(kind, AUTO.name) else ():
        best = max(fixed, key=lambda mode: grid.value("per_s", kind, mode, load))
        ratio = grid.ratio("per_s", kind, AUTO.name, best, load)
        what = f"8: {kind} at {load:.0%}"
        report.add(what, f"auto / {best}", "×", ratio)
        report.at_least(f"{what}, auto / best", ratio.value, NEAR_BEST)
