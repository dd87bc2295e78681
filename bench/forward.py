# SPDX-License-Identifier: GPL-2.0-or-later
"""A forwarding host under load, after the second paper (Salah and Hamawi, Figs. 5 to 13).

Which CPUs the three NAPI threads of a forwarder have (bench/forwarder.py) is its affinity mode:
`I` has both receivers on one CPU and the sender on the other, `II` the sender beside one of the
receivers, and `0`, which the paper could not have, all of them on one CPU. `default` confines none,
`rps` has RPS in addition, and `atfnd` begins with `default` and has a rule for what is forwarded.
Reception: `DE` is a NAPI thread at a real-time priority, which polls until its ring is empty;
`deferred` and `dedicated` are today's, of the two receivers. Each mode's capacity is found first,
with DE: the most that comes out while the load grows by steps, until a tenth is lost. Loads are
shares of it: rates of modes differ, and shapes can be compared.

One CPU has the generator too, at a priority above all NAPI threads: in mode I it takes time from
the sender, in II from a receiver, in 0 from nobody. One package cannot show the paper's caches.

Delay is from the generator to the sink (stamps in the frames). CPU time is what BPF saw
(bench/pollers.py). Wakes are voluntary_ctxt_switches of NAPI threads; they stand for interrupts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from atfnd.errors import OperatorError
from bench import plot
from bench.children import prompt, until
from bench.daemon import daemon
from bench.forwarder import (
    EGRESS,
    RECEIVERS,
    SENDER,
    Forwarder,
    Frames,
    built,
    forwarder,
    offered,
    sent,
)
from bench.markdown import Section, write_sections
from bench.pollers import Pollers, PollerTotals, thread_use
from bench.polling import INTERRUPT, Polling, dedicated, deferred, polled_as
from bench.report import Report, Target
from bench.stats import Estimate, median

__all__ = ["LAB", "Load", "Run", "Subject", "measure", "report", "run", "subjects"]

SIZES = ("64", "mix")
STATIC = ("0", "I", "II")
LEAST_PPS, MOST_PPS, STEP, LOST = 100_000, 2_000_000, 1.3, 0.1
SETTLE_S = 0.1
DRAINED_S = 0.02


class Load(NamedTuple):
    """Shares of the capacity that are offered, and for how long."""

    shares: tuple[float, ...]
    window_s: float


LAB = Load((0.02, 0.1, 0.2, 0.5, 0.8, 1.0, 1.2), 0.4)

Placement = Callable[[Forwarder], AbstractContextManager[None]]


class Subject(NamedTuple):
    """Who places the NAPI threads, and how they are polled."""

    placement: str
    reception: Polling

    @property
    def name(self) -> str:
        return f"{self.placement}, {'DE' if self.reception == INTERRUPT else self.reception.name}"


class Run(NamedTuple):
    """One subject at one load."""

    sizes: str
    placement: str
    reception: str
    load: float  # of the capacity
    capacity_pps: float
    offered_pps: float
    out_pps: float
    out_bytes_per_s: float
    loss: float  # 0 to 1
    unexplained: float  # lost, and counted by no ring: share of what was offered
    skipped: float  # share of what the generator was asked for
    p50_ns: float
    p99_ns: float
    rx_wakes_per_s: float  # of both receivers
    tx_wakes_per_s: float
    rx_share: float  # of a CPU, both receivers
    tx_share: float
    ring_waits: float  # for the producers' lock of the Tx ring, per 1000 frames
    rx1_rx2: float  # frames that came in by e0, to those by e1

    @property
    def subject(self) -> str:
        return f"{self.placement}, {self.reception}"


@contextlib.contextmanager
def _static(bed: Forwarder, rx1: int, rx2: int, tx: int) -> Iterator[None]:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    names = (*RECEIVERS, SENDER)
    bed.place({name: [cpus[at]] for name, at in zip(names, (rx1, rx2, tx), strict=True)})
    yield


@contextlib.contextmanager
def _default(bed: Forwarder) -> Iterator[None]:
    bed.place(dict.fromkeys((*RECEIVERS, SENDER), os.sched_getaffinity(0)))
    yield


@contextlib.contextmanager
def _rps(bed: Forwarder) -> Iterator[None]:
    with _default(bed):
        bed.rps(os.sched_getaffinity(0))
        try:
            yield
        finally:
            bed.rps(())


POLICY = f"""\
version: 1
about: What is forwarded has its channels together.
interfaces: [{{ match: {{ name: "*" }}, armed: true }}]
forwarding:
  - name: gateway
    match: {{ in: "{"|".join(RECEIVERS)}", out: "{EGRESS}" }}
    placement: {{ pair: core }}
"""
LED_PPS, LED_S = 200_000, 90.0


@contextlib.contextmanager
def _atfnd(bed: Forwarder) -> Iterator[None]:
    """Nothing is confined, and atfnd places what it sees forwarded. A veth has no interrupt for
    what was sent: the thread that takes it back goes to the CPU of the channel that it left by."""
    names = (*RECEIVERS, EGRESS)
    with _default(bed):
        bed.place({EGRESS: os.sched_getaffinity(0)})
        with daemon(names[0], POLICY, more=names[1:], netns=bed.fwd):
            with offered(bed, LED_PPS, LED_S, "64", _generators_cpu()):
                until(lambda: _together(bed, names), "atfnd has placed the channels", LED_S)
            bed.place({SENDER: os.sched_getaffinity(bed.thread(EGRESS))})
            yield


def _together(bed: Forwarder, names: Sequence[str]) -> bool:
    """Their threads are on one CPU."""
    cpus = [os.sched_getaffinity(bed.thread(name)) for name in names]
    return len(frozenset[int]().union(*cpus)) == 1


PLACEMENTS: dict[str, Placement] = {
    "0": lambda bed: _static(bed, 0, 0, 0),
    "I": lambda bed: _static(bed, 0, 0, 1),
    "II": lambda bed: _static(bed, 0, 1, 0),
    "default": _default,
    "rps": _rps,
    "atfnd": _atfnd,
}


def subjects() -> list[Subject]:
    """Each placement with DE, and the static ones with the other receptions after it."""
    others = (deferred(50), dedicated(100))
    found = []
    for placement in PLACEMENTS:
        receptions = (INTERRUPT, *(others if placement in STATIC else ()))
        found += [Subject(placement, each) for each in receptions]
    return found


def measure(rounds: int, load: Load = LAB, asked: Sequence[Subject] | None = None) -> list[Run]:
    """`rounds` rounds, forwards and backwards in turn, of every subject at every load."""
    if len(os.sched_getaffinity(0)) < 2:
        raise OperatorError("forward needs two CPUs: with one, there is nothing to place")
    chosen = list(asked or subjects())
    placements = list(dict.fromkeys(each.placement for each in chosen))
    runs = []
    with (
        prompt(),
        tempfile.TemporaryDirectory() as folder,
        forwarder(built(Path(folder))) as bed,
    ):
        threads = [bed.thread(name) for name in (*RECEIVERS, SENDER)]
        with Pollers(threads) as pollers:
            for turn in range(rounds):
                for placement in placements[:: -1 if turn % 2 else 1]:
                    receptions = [s.reception for s in chosen if s.placement == placement]
                    with PLACEMENTS[placement](bed):
                        for sizes in SIZES:
                            runs += _placed(bed, pollers, placement, receptions, sizes, load)
    return runs


def _placed(
    bed: Forwarder,
    pollers: Pollers,
    placement: str,
    receptions: Sequence[Polling],
    sizes: str,
    load: Load,
) -> list[Run]:
    """A placement's capacity, and all its receptions at shares of it."""
    capacity_pps = _capacity_pps(bed, sizes, load.window_s)
    runs = []
    for reception in receptions:
        with polled_as(reception, [bed.napis[name] for name in RECEIVERS]):
            subject = Subject(placement, reception)
            for share in load.shares:
                runs.append(_one(bed, pollers, subject, sizes, share, capacity_pps, load.window_s))
    return runs


def _capacity_pps(bed: Forwarder, sizes: str, window_s: float) -> float:
    best_pps, rate_pps = 0.0, float(LEAST_PPS)
    while rate_pps < MOST_PPS:
        tries = [_out_pps(bed, rate_pps, sizes, window_s)]
        if tries[0] < (1 - LOST) * rate_pps:  # or something else has had the CPU
            tries.append(_out_pps(bed, rate_pps, sizes, window_s))
        best_pps = max(best_pps, *tries)
        if max(tries) < (1 - LOST) * rate_pps:
            break
        rate_pps *= STEP
    return best_pps


def _out_pps(bed: Forwarder, rate_pps: float, sizes: str, window_s: float) -> float:
    before = bed.arrived()
    with offered(bed, rate_pps, window_s, sizes, _generators_cpu()) as generator:
        given = sent(generator, 60)
    return _drained(bed).since(before).frames / given.seconds


def _generators_cpu() -> int:
    """The last of two: mode 0 leaves it alone."""
    return sorted(os.sched_getaffinity(0))[1]


def _drained(bed: Forwarder) -> Frames:
    """What has arrived, once nothing more does."""
    last = [bed.arrived()]

    def quiet() -> bool:
        time.sleep(DRAINED_S)
        last.append(bed.arrived())
        return last[-1].frames == last[-2].frames

    until(quiet, "the rings are empty", 30)
    return last[-1]


class _Reading(NamedTuple):
    at_ns: int
    wakes: dict[str, float]
    of: dict[str, PollerTotals]


def _read(bed: Forwarder, pollers: Pollers) -> _Reading:
    threads = {name: bed.thread(name) for name in (*RECEIVERS, SENDER)}
    return _Reading(
        time.monotonic_ns(),
        {name: thread_use(pid).wakes for name, pid in threads.items()},
        {name: pollers.totals(pid) for name, pid in threads.items()},
    )


def _one(
    bed: Forwarder,
    pollers: Pollers,
    subject: Subject,
    sizes: str,
    share: float,
    capacity_pps: float,
    window_s: float,
) -> Run:
    rate_pps = share * capacity_pps
    before, dropped = bed.arrived(), bed.dropped()
    with offered(bed, rate_pps, window_s + 2 * SETTLE_S, sizes, _generators_cpu()) as generator:
        time.sleep(SETTLE_S)
        began = _read(bed, pollers)
        time.sleep(window_s)
        ended = _read(bed, pollers)
        given = sent(generator, 60)
    out, lost = _drained(bed).since(before), bed.dropped() - dropped
    if not out.frames or not given.frames:
        raise OperatorError("nothing was forwarded", exit_code=1)
    elapsed_ns = ended.at_ns - began.at_ns
    wakes = {n: (ended.wakes[n] - began.wakes[n]) * 1e9 / elapsed_ns for n in ended.wakes}
    used = {name: ended.of[name].since(began.of[name]) for name in ended.of}
    shares = {
        n: (each.work_ns + each.empty_ns + each.other_ns) / elapsed_ns for n, each in used.items()
    }
    waits = sum(used[name].ring_waits for name in RECEIVERS)
    received = sum(used[name].packets for name in RECEIVERS)
    return Run(
        sizes=sizes,
        placement=subject.placement,
        reception=subject.name.removeprefix(f"{subject.placement}, "),
        load=share,
        capacity_pps=capacity_pps,
        offered_pps=given.frames / given.seconds,
        out_pps=out.frames / given.seconds,
        out_bytes_per_s=out.bytes / given.seconds,
        loss=1 - out.frames / given.frames,
        unexplained=(given.frames - given.refused - lost - out.frames) / given.frames,
        skipped=given.skipped / (given.frames + given.skipped),
        p50_ns=out.delay_ns(0.5) or 0.0,
        p99_ns=out.delay_ns(0.99) or 0.0,
        rx_wakes_per_s=sum(wakes[name] for name in RECEIVERS),
        tx_wakes_per_s=wakes[SENDER],
        rx_share=sum(shares[name] for name in RECEIVERS),
        tx_share=shares[SENDER],
        ring_waits=1000 * waits / max(1, received),
        rx1_rx2=out.of_ports[0] / max(1, out.of_ports[1]),
    )


def run(rounds: int) -> Report:
    """On three veths of its own."""
    return report(measure(rounds))


Cells = dict[tuple[str, str, float], list[Run]]  # sizes, subject, load


def report(runs: Sequence[Run]) -> Report:
    """The capacities and the acceptance lines as rows, the paper's figures in forward.md beside."""
    report = Report("forward", "a forwarding host: affinity, reception and load, after S2")
    report.samples["runs"] = [each._asdict() for each in runs]
    cells: Cells = {}
    for each in runs:
        cells.setdefault((each.sizes, each.subject, each.load), []).append(each)
    for sizes in dict.fromkeys(each.sizes for each in runs):
        _capacities(report, [each for each in runs if each.sizes == sizes], sizes)
    _identities(report, runs, cells)
    _delays(report, cells)
    _drawn(cells)
    write_sections("forward", _figures(cells))
    return report


def _of(cells: Cells, field: str, key: tuple[str, str, float]) -> Estimate:
    return median(float(getattr(each, field)) for each in cells[key])


def _capacities(report: Report, runs: Sequence[Run], sizes: str) -> None:
    """Of each placement; beside the best static one by what both had in a round."""
    found: dict[str, list[float]] = {}
    for each in runs:
        if each.reception == "DE" and each.load == runs[0].load:
            found.setdefault(each.placement, []).append(each.capacity_pps)
    for placement, rates in found.items():
        report.add(f"{sizes}: capacity", f"{placement}, DE", "kpps", median(r / 1e3 for r in rates))
    static = {name: found[name] for name in STATIC if name in found}
    if not static:
        return
    best = max(static, key=lambda name: median(static[name]).value)
    for placement, rates in found.items():
        ratio = median(a / b for a, b in zip(rates, static[best], strict=True))
        report.add(f"{sizes}: capacity", f"{placement} / {best}", "×", ratio)
        if placement == "atfnd":
            what = f"{sizes}: atfnd beside the best static mode, {best}"
            report.targets.append(Target(what, ratio.value, 0.95, True, "×"))


def _identities(report: Report, runs: Sequence[Run], cells: Cells) -> None:
    worst = max(abs(each.unexplained) for each in runs)
    report.targets.append(Target("loss that no ring counted, worst run", worst, 0.01, False, ""))
    skipped = max(each.skipped for each in runs)
    report.notes.append(f"the generator sent less than asked for, worst run: {skipped:.1%}")
    loads = sorted({load for _, _, load in cells})
    waits = {
        name: [_of(cells, "ring_waits", ("64", f"{name}, DE", load)).value for load in loads]
        for name in STATIC
        if ("64", f"{name}, DE", loads[0]) in cells
    }
    for name, each in waits.items():
        report.add(
            "64: waits for the Tx ring, any load", f"{name}, DE", "/1000", median([max(each)])
        )
    if "0" in waits:
        what = "64: mode 0 waits for the Tx ring"
        report.targets.append(Target(what, max(waits["0"]), 0.0, False, "/1000"))
    if {"I", "II"} <= waits.keys():
        more = max(waits["II"]) - max(waits["I"])
        report.targets.append(Target("64: II waits more than I by", more, 1e-6, True, "/1000"))
    if "I" in waits:
        beyond = [load for load in loads if load >= 0.2]
        least = min(
            _of(cells, "rx_share", ("64", "I, DE", load)).value
            / _of(cells, "tx_share", ("64", "I, DE", load)).value
            for load in beyond
        )
        what = "64: I, the receivers' CPU / the sender's, least of the loads from 20 %"
        report.targets.append(Target(what, least, 1.0, True, "×"))


def _delays(report: Report, cells: Cells) -> None:
    """How wakes and delay change with load, of each static mode with DE."""
    loads = sorted({load for _, _, load in cells})
    for sizes in SIZES:
        for name in STATIC:
            if (sizes, f"{name}, DE", loads[0]) not in cells:
                continue

            def value(
                field: str, load: float, key: tuple[str, str] = (sizes, f"{name}, DE")
            ) -> float:
                return _of(cells, field, (*key, load)).value

            wakes = [value("rx_wakes_per_s", load) for load in loads]
            title = f"{sizes}: {name}, DE"
            most = wakes.index(max(wakes))
            report.targets.append(
                Target(
                    f"{title}: Rx wakes, most / at the least load",
                    wakes[most] / wakes[0],
                    1.0,
                    True,
                    "×",
                )
            )
            report.targets.append(
                Target(
                    f"{title}: Rx wakes, at the end / most",
                    wakes[-1] / wakes[most],
                    0.05,
                    False,
                    "×",
                )
            )
            middle = min(loads, key=lambda load: abs(load - 0.5))
            grown = value("p50_ns", loads[-1]) / value("p50_ns", middle)
            report.targets.append(Target(f"{title}: delay, 120 % / 50 %", grown, 5.0, True, "×"))
            even = max(abs(value("rx1_rx2", load) - 1) for load in loads if load <= 1)
            report.targets.append(
                Target(f"{title}: Rx1 / Rx2 - 1, to 100 %", even, 0.05, False, "")
            )


def _drawn(cells: Cells) -> None:
    """Throughput and delay by load."""
    loads = sorted({load for _, _, load in cells})
    names = dict.fromkeys((sizes, subject) for sizes, subject, _ in cells)
    for field, title, unit, scale in (
        ("out_pps", "forwarded", "kpps", 1e-3),
        ("p50_ns", "delay, p50", "us", 1e-3),
        ("rx_wakes_per_s", "wakes of the receivers", "1000/s", 1e-3),
    ):
        for sizes in dict.fromkeys(sizes for sizes, _ in names):
            series = {
                subject: [scale * _of(cells, field, (sizes, subject, load)).value for load in loads]
                for kind, subject in names
                if kind == sizes
            }
            name = f"forward-{field.removesuffix('_ns').replace('_', '-')}-{sizes}"
            plot.curves(name, f"{title}, {sizes}", "offered, % of capacity", unit,
                        [100 * load for load in loads], series)  # fmt: skip


FIGURES = (
    ("5, 11: out", "kpps", ("out_pps",), 1e-3),
    ("5, 11: loss", "%", ("loss",), 100.0),
    ("6, 12: delay, p50", "us", ("p50_ns",), 1e-3),
    ("6, 12: delay, p99", "us", ("p99_ns",), 1e-3),
    ("7, 9: Rx1 / Rx2", "×", ("rx1_rx2",), 1.0),
    ("8: CPU of Rx1 + Rx2 | Tx", "% of a CPU", ("rx_share", "tx_share"), 100.0),
    ("10, 13: wakes of Rx | Tx", "1000/s", ("rx_wakes_per_s", "tx_wakes_per_s"), 1e-3),
    ("waits for the Tx ring", "per 1000 frames", ("ring_waits",), 1.0),
)


def _figures(cells: Cells) -> list[Section]:
    """A table for each of the paper's figures: a row a subject, a column a load."""
    loads = sorted({load for _, _, load in cells})
    found = []
    for sizes in dict.fromkeys(sizes for sizes, _, _ in cells):
        names = list(dict.fromkeys(subject for kind, subject, _ in cells if kind == sizes))
        for title, unit, fields, scale in FIGURES:
            rows = [
                [
                    name,
                    *(
                        " \\| ".join(
                            f"{scale * _of(cells, field, (sizes, name, load)).value:.3g}"
                            for field in fields
                        )
                        for load in loads
                    ),
                ]
                for name in names
            ]
            head = ["", *(f"{load:.0%}" for load in loads)]
            found.append(Section(f"{sizes} B, Fig. {title} ({unit})", head, rows))
    return found
