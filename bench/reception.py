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
from bench import plot
from bench.bed import Bed
from bench.children import Child, prompt, until
from bench.connections import connections
from bench.daemon import Daemon, daemon
from bench.markdown import Section, write_sections
from bench.pollers import Pollers, PollerTotals, thread_use
from bench.polling import (
    AUTO,
    INTERRUPT,
    Napis,
    Polling,
    dedicated,
    deferred,
    refusal_of_busy,
    suspended,
)
from bench.queues import napi_of, two_cpus
from bench.report import Report, Target
from bench.stats import Estimate, median, ratios
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
SCALE_OF = {"requests": 1.0, "stream": 1e-6}


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


class Measured(NamedTuple):
    """What all rounds found."""

    runs: list[Run]
    undone: bool  # each value of the NAPI is as it was before
    no_busy: str | None  # why threads that poll without end are left out


def measure(
    rounds: int, load: Load = LAB, modes: Sequence[Polling] = MODES, kinds: Sequence[str] = KINDS
) -> Measured:
    """`rounds` rounds, forwards and backwards in turn, of every mode at every load."""
    runs = []
    with tempfile.TemporaryDirectory() as name, two_cpus() as bed, prompt():
        folder = Path(name)
        programs = _Programs(messages.built(folder), requests.built(folder))
        bed.deliver_all_to(QUEUE)
        napi = napi_of(bed, QUEUE)
        before = napi.values()
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
                        for mode in modes[:: -1 if turn % 2 else 1]:
                            runs.append(measured(kind, mode, share, capacity))
        return Measured(runs, napi.values() == before, no_busy)


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


def _have_set(atfnd: Daemon, napi: Napis, mode: Polling, cpu: int) -> None:
    """Have the daemon set this mode. OperatorError: it does not."""
    atfnd.reload(_policy(mode, cpu))
    if mode.chooses_s:
        return
    wanted = (mode.polls, mode.timeout_ns, mode.suspend_ns)
    until(lambda: all(each[:3] == wanted for each in napi.values()), f"{mode.name} is set", 30)


class _Programs(NamedTuple):
    messages: Path
    requests: Path


class _Reading(NamedTuple):
    at_ns: int
    wakes: int
    thread: PollerTotals
    server: PollerTotals
    bytes: int


def _one(
    programs: _Programs,
    bed: Bed,
    napi: Napis,
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
        contextlib.closing(Pollers([*napi.threads, server.pid])) as pollers,
    ):  # fmt: skip
        make_realtime(server.pid, None, PRIORITY)

        def read() -> _Reading:
            [thread] = napi.threads
            bytes_ = sum(each.bytes for each in connections(bed).values())
            wakes, at_ns = thread_use(thread).wakes, time.monotonic_ns()
            return _Reading(
                at_ns, wakes, pollers.totals(thread), pollers.totals(server.pid), bytes_
            )

        warm_s = max(mode.chooses_s, load.warm_s if share else max(load.warm_s, IDLE_WARM_S))
        answers = None
        if kind == "requests":
            with _asked(programs.requests, bed, share, capacity, warm_s, load.window_s) as client:
                began = read()
                time.sleep(load.window_s - BEFORE_END_S)  # closing connections wakes somebody
                ended = read()
                answers = requests.answers(client, 30)
        else:
            with _streamed(programs.messages, bed, share, capacity):
                time.sleep(warm_s)
                began = read()
                time.sleep(load.window_s)
                ended = read()
    seconds = (ended.at_ns - began.at_ns) / 1e9
    thread, own = ended.thread.since(began.thread), ended.server.since(began.server)
    polls = thread.polls + thread.empty_polls + own.polls + own.empty_polls
    packets = thread.packets + own.packets
    per_s = answers.per_s if answers else (ended.bytes - began.bytes) / seconds
    return Run(
        kind=kind,
        mode=mode.name,
        load=share,
        per_s=per_s,
        p50_ns=answers.p50_ns if answers and share else None,
        p99_ns=answers.p99_ns if answers and share else None,
        wakes_per_s=(ended.wakes - began.wakes) / seconds,
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


Cells = dict[tuple[str, str, float], list[Run]]  # kind, mode, load


def report(measured: Measured) -> Report:
    """The acceptance lines (docs/internals/bench.md) as targets; all figures in reception.md."""
    report = Report("reception", "one queue under each way of polling it")
    report.samples["runs"] = [each._asdict() for each in measured.runs]
    cells: Cells = {}
    for each in measured.runs:
        cells.setdefault((each.kind, each.mode, each.load), []).append(each)
    for (kind, mode, load), found in cells.items():
        if load == max(each.load for each in measured.runs):
            unit = "/s" if kind == "requests" else "MB/s"
            scale = SCALE_OF[kind]
            report.add(f"{kind}, at capacity", mode, unit, median(scale * r.per_s for r in found))
    for kind in dict.fromkeys(kind for kind, _, _ in cells):
        _idle(report, cells, kind)
        _deferred(report, cells, kind)
        _dedicated(report, cells, kind)
        _auto(report, cells, kind)
    _suspended(report, cells)
    report.targets.append(
        Target("5: values of the NAPI as before", float(measured.undone), 1.0, True, "")
    )
    if measured.no_busy is not None:
        report.notes.append(f"busy: left out, this kernel says: {measured.no_busy}")
    report.notes.append("6, moves in each mode: bench ordering; not measured here")
    _drawn(cells)
    write_sections("reception", _figures(cells))
    return report


def _of(cells: Cells, field: str, *key: object) -> Estimate:
    found = cells[key]  # type: ignore[index]
    return median(float(getattr(each, field)) for each in found)


def _ratio(cells: Cells, field: str, kind: str, ours: str, rival: str, load: float) -> Estimate:
    """Of what both took in a round."""
    one, other = (
        [float(getattr(each, field)) for each in cells[kind, mode, load]] for mode in (ours, rival)
    )
    return ratios(one, other)


def _loads(cells: Cells) -> list[float]:
    return sorted({load for _, _, load in cells if load})


def _modes(cells: Cells, word: str) -> list[Polling]:
    known = {mode for _, mode, _ in cells}
    return [each for each in MODES if each.name.startswith(word) and each.name in known]


def _idle(report: Report, cells: Cells, kind: str) -> None:
    """Line 1: nobody is woken for nothing."""
    for mode in (*_modes(cells, "interrupt"), *_modes(cells, "susp"), *_modes(cells, "dedic")):
        if (kind, mode.name, 0.0) in cells:
            wakes = _of(cells, "wakes_per_s", kind, mode.name, 0.0).value
            what = f"1: {kind}, idle, wakes, {mode.name}"
            report.targets.append(Target(what, wakes, IDLE_WAKES_PER_S, False, "/s"))


def _deferred(report: Report, cells: Cells, kind: str) -> None:
    """Line 2: a poll each timeout at most, and not more delay than that."""
    for mode in _modes(cells, "deferred"):
        loads = _loads(cells)
        most = max(_of(cells, "wakes_per_s", kind, mode.name, load).value for load in loads)
        what = f"2: {kind}, most wakes, {mode.name}"
        report.targets.append(Target(what, most, 1e9 / mode.timeout_ns, False, "/s"))
        if kind != "requests":
            continue
        for load in (load for load in loads if load < 1):
            p50_ns = _of(cells, "p50_ns", kind, mode.name, load).value
            grown = p50_ns - _of(cells, "p50_ns", kind, INTERRUPT.name, load).value
            what = f"2: requests at {load:.0%}, p50 beside interrupt's, {mode.name}"
            report.targets.append(Target(what, grown / 1e3, mode.timeout_ns / 1e3, False, "us"))


def _suspended(report: Report, cells: Cells) -> None:
    """Line 3: at saturation less of everything than interrupts, at little load hardly more CPU."""
    for mode in _modes(cells, "suspended"):
        top, least = _loads(cells)[-1], _loads(cells)[0]
        if ("requests", mode.name, top) not in cells:
            continue
        per_request = [
            [each.wakes_per_s / each.per_s for each in cells["requests", name, top]]
            for name in (mode.name, INTERRUPT.name)
        ]
        wakes = ratios(per_request[0], per_request[1])
        answered = _ratio(cells, "per_s", "requests", mode.name, INTERRUPT.name, top)
        p99 = _ratio(cells, "p99_ns", "requests", mode.name, INTERRUPT.name, top)
        cpu = _ratio(cells, "cpu", "requests", mode.name, INTERRUPT.name, least)
        for what, ratio, bound, at_least in (
            (f"wakes a request at {top:.0%}", wakes, 0.2, False),
            (f"answers at {top:.0%}", answered, 1.0, True),
            (f"p99 at {top:.0%}", p99, 1.0, False),
            (f"CPU at {least:.0%}", cpu, 1.2, False),
        ):
            report.add(f"3: {what}", f"{mode.name} / interrupt", "×", ratio)
            title = f"3: {what}, {mode.name} / interrupt"
            report.targets.append(Target(title, ratio.value, bound, at_least, "×"))


def _dedicated(report: Report, cells: Cells, kind: str) -> None:
    """Line 4: the polls do not depend on the load; what is not polling falls with it."""
    for mode in _modes(cells, "dedicated"):
        low, high = ([load for load in _loads(cells) if load <= 0.5][end] for end in (0, -1))
        wakes = [_of(cells, "wakes_per_s", kind, mode.name, load).value for load in (low, high)]
        what = f"4: {kind}, wakes at {high:.0%} / at {low:.0%}, {mode.name}"
        apart = max(wakes) / min(wakes)
        report.targets.append(Target(what, apart, 1.1, False, "×"))
        app = _ratio(cells, "server_share", kind, mode.name, INTERRUPT.name, high)
        what = f"4: {kind}, the server's CPU at {high:.0%}"
        report.add(what, f"{mode.name} / interrupt", "×", app)
        title = f"{what}, {mode.name} / interrupt"
        report.targets.append(Target(title, app.value, 1.0, False, "×"))
        shares = [_of(cells, "napi_share", kind, mode.name, load).value for load in _loads(cells)]
        grows = min(b / a for a, b in itertools.pairwise(shares))
        what = f"4: {kind}, CPU of the thread, a load / the next smaller one, {mode.name}"
        report.targets.append(Target(what, grows, 1.0, True, "×"))


def _auto(report: Report, cells: Cells, kind: str) -> None:
    """Line 8: at every load it carries what the best fixed mode carries, to within 5 %."""
    loads = [load for load in _loads(cells) if (kind, AUTO.name, load) in cells]
    for load in loads:
        fixed = [mode for k, mode, at in cells if (k, at) == (kind, load) and mode != AUTO.name]
        best = max(fixed, key=lambda mode: _of(cells, "per_s", kind, mode, load).value)
        ratio = _ratio(cells, "per_s", kind, AUTO.name, best, load)
        what = f"8: {kind} at {load:.0%}"
        report.add(what, f"auto / {best}", "×", ratio)
        report.targets.append(Target(f"{what}, auto / best", ratio.value, NEAR_BEST, True, "×"))


def _drawn(cells: Cells) -> None:
    loads = sorted({load for _, _, load in cells})
    for kind in dict.fromkeys(kind for kind, _, _ in cells):
        modes = list(dict.fromkeys(mode for k, mode, _ in cells if k == kind))
        for field, title, unit, scale in (
            ("wakes_per_s", "wakes of the NAPI thread", "1000/s", 1e-3),
            ("cpu", "CPU of thread and server", "% of a CPU", 100.0),
        ):
            series = {
                mode: [scale * _of(cells, field, kind, mode, load).value for load in loads]
                for mode in modes
            }
            plot.curves(f"reception-{field.partition('_')[0]}-{kind}", f"{title}, {kind}",
                        "load, % of capacity", unit, [100 * load for load in loads],
                        series)  # fmt: skip


FIGURES = (
    ("answers/s", "requests", "per_s", 1.0),
    ("MB/s", "stream", "per_s", 1e-6),
    ("p50, us", "requests", "p50_ns", 1e-3),
    ("p99, us", "requests", "p99_ns", 1e-3),
    ("wakes/s", "", "wakes_per_s", 1.0),
    ("CPU of the NAPI thread, %", "", "napi_share", 100.0),
    ("CPU of the server, %", "", "server_share", 100.0),
    ("empty polls, % of all", "", "empty_polls", 100.0),
    ("packets polled by the server, %", "", "by_server", 100.0),
)


def _figures(cells: Cells) -> list[Section]:
    """A table for each quantity: a row a mode, a column a load; median [lowest, highest]."""
    loads = sorted({load for _, _, load in cells})
    found = []
    for kind in dict.fromkeys(kind for kind, _, _ in cells):
        modes = list(dict.fromkeys(mode for k, mode, _ in cells if k == kind))
        for title, only, field, scale in FIGURES:
            if only in ("", kind):
                rows = [
                    [mode, *(_cell(cells[kind, mode, load], field, scale) for load in loads)]
                    for mode in modes
                ]
                head = ["", *(f"{load:.0%}" if load else "idle" for load in loads)]
                found.append(Section(f"{kind}: {title}", head, rows))
    return found


def _cell(found: Sequence[Run], field: str, scale: float) -> str:
    values = [getattr(each, field) for each in found]
    if None in values:
        return ""
    return median(scale * value for value in values).text()
