# SPDX-License-Identifier: GPL-2.0-or-later
"""What a run of a real server found, and whether atfnd is worse there than the kernel alone. Pure.

atfnd is compared with the better of RSS and RFS in each measure, by the ratios within the rounds. A
cell is lost if the whole interval of a ratio is beyond its bound, and open if the median is but the
interval reaches the bound. It is better if the whole interval of CPU or p99 is below 1. Losses are
reported first, then the medians over all cells of a kind of load. Saturated, p99 is not judged:
there a request waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from itertools import product
from typing import Any, NamedTuple

from bench.report import Report, Target
from bench.stats import Estimate, median, ratios

__all__ = ["Judged", "Run", "Verdict", "judged", "report"]

OURS, RIVALS = "atfnd", ("rss", "rfs")
BETTER_SHARE = 1 / 3  # of the cells
LOAD = 0.5  # of a CPU: what else may run
ENOUGH = 6  # rounds for a median's 95 % interval


class Run(NamedTuple):
    """One contender in one cell. Of an operation: a request, for iperf3 a megabyte."""

    turn: int
    cell: str
    contender: str
    per_s: float
    p50_ns: float | None  # None: nothing is asked
    p99_ns: float | None  # the same
    cpu_ns: float  # of an operation
    daemon: float  # of a core
    handoffs: float  # of an operation
    switches: float  # of an operation
    read_locality: float | None  # 0 to 1; None: the sockets are not connected
    lost: int  # requests
    others: float  # CPUs that others kept busy just before


class Verdict(IntEnum):
    """Of a cell, the worst first."""

    LOST = 0
    OPEN = 1
    KEPT = 2
    BETTER = 3


class _Measure(NamedTuple):
    """One that is judged; `worst` is the ratio to the better rival that is allowed."""

    name: str
    of: Callable[[Run], float | None]
    more_is_better: bool
    worst: float


MEASURES = (
    _Measure("operations", lambda run: run.per_s, True, 0.98),
    _Measure("p99", lambda run: run.p99_ns, False, 1.05),
    _Measure("CPU an operation", lambda run: run.cpu_ns, False, 1.02),
)
SHOWN: tuple[tuple[str, str, Callable[[Run], float | None], float], ...] = (
    ("operations", "/s", lambda run: run.per_s, 1),
    ("p50", "us", lambda run: run.p50_ns, 1e-3),
    ("p99", "us", lambda run: run.p99_ns, 1e-3),
    ("CPU an operation", "us", lambda run: run.cpu_ns, 1e-3),
    ("read locally", "share", lambda run: run.read_locality, 1),
    ("handoffs", "/1000 operations", lambda run: run.handoffs, 1000),
    ("context switches", "/operation", lambda run: run.switches, 1),
)


class Judged(NamedTuple):
    """One cell: by measure, against which rival, and the ratio to it."""

    cell: str
    verdict: Verdict
    ratios: dict[str, tuple[str, Estimate]]


def judged(cell: str, runs: Sequence[Run]) -> Judged:
    """From the runs of one cell; one of RIVALS may be missing. ValueError: others are."""
    by_name = {name: [run for run in runs if run.contender == name] for name in (*RIVALS, OURS)}
    rivals = [name for name in RIVALS if by_name[name]]
    found, verdicts = dict[str, tuple[str, Estimate]](), list[Verdict]()
    for measure in MEASURES:
        if measure.name == "p99" and "saturated" in cell:
            continue
        values = {name: _values(by_name[name], measure.of) for name in (*rivals, OURS)}
        if not rivals or not all(values.values()):
            continue
        middle = {name: median(values[name]).value for name in rivals}
        best = (max if measure.more_is_better else min)(middle, key=middle.__getitem__)
        ratio = ratios(values[OURS], values[best])
        found[measure.name] = best, ratio
        verdicts.append(_verdict(measure, ratio))
    if not verdicts:
        raise ValueError(f"no run of {cell}")
    worst = min(verdicts)
    better = Verdict.BETTER in verdicts and worst is not Verdict.LOST
    return Judged(cell, Verdict.BETTER if better and worst is Verdict.KEPT else worst, found)


def _values(runs: Sequence[Run], of: Callable[[Run], float | None]) -> list[float]:
    """In the order of the rounds; none, if a run has none."""
    values = [of(run) for run in sorted(runs, key=lambda run: run.turn)]
    return [value for value in values if value is not None and value > 0]


def _verdict(measure: _Measure, ratio: Estimate) -> Verdict:
    if measure.more_is_better:
        beyond, whole = ratio.value < measure.worst, ratio.high < measure.worst
    else:
        beyond, whole = ratio.value > measure.worst, ratio.low > measure.worst
        if ratio.high < 1:
            return Verdict.BETTER
    return Verdict.LOST if whole else Verdict.OPEN if beyond else Verdict.KEPT


def report(measured: dict[str, Any]) -> Report:
    """From what `applications.measure` found, which may have been JSON in between."""
    report = Report(measured["name"], "real servers: atfnd against the better of RSS and RFS")
    report.notes += measured["notes"]
    runs = [Run(*each) for each in measured["runs"]]
    report.samples["runs"] = [each._asdict() for each in runs]
    by_cell: dict[str, list[Run]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, []).append(run)
    verdicts = sorted(
        (judged(cell, of) for cell, of in by_cell.items()), key=lambda each: each.verdict
    )
    for each in verdicts:
        word = each.verdict.name.lower()
        for name, (rival, ratio) in each.ratios.items():
            report.add(f"{word}: {each.cell}: {name}", f"{OURS} / {rival}", "×", ratio)
    _over_cells(report, by_cell)
    for each in verdicts:
        _show(report, each.cell, by_cell[each.cell])
    count = {verdict: sum(v.verdict is verdict for v in verdicts) for verdict in Verdict}
    report.notes.append(", ".join(f"{n} {verdict.name.lower()}" for verdict, n in count.items()))
    rounds = len({run.turn for run in runs})
    if rounds < ENOUGH:
        report.notes.append(f"{rounds} rounds: an interval is no 95 % interval, nor is a verdict")
    lost = count[Verdict.LOST]
    report.targets.append(Target("cells lost", lost, 0, False, f"of {len(verdicts)}"))
    share = count[Verdict.BETTER] / len(verdicts)
    report.targets.append(Target("better than both", share, BETTER_SHARE, True, "of the cells"))
    return report


def _over_cells(report: Report, by_cell: Mapping[str, Sequence[Run]]) -> None:
    """The median over the cells of a kind of load, against each rival. In one round a single cell
    says little (RSS loses half of the cells against itself), all of a kind say more."""
    kinds = dict.fromkeys(cell.partition(", ")[2] for cell in by_cell)
    for kind, rival, measure in product(kinds, RIVALS, MEASURES):
        found = list[float]()
        for cell, runs in by_cell.items():
            ours, theirs = (
                _values([run for run in runs if run.contender == name], measure.of)
                for name in (OURS, rival)
            )
            if cell.endswith(f", {kind}") and ours and theirs:
                found.append(median(ours).value / median(theirs).value)
        if found:
            what = f"{len(found)} cells, {kind}: {measure.name}"
            report.add(what, f"{OURS} / {rival}", "×", median(found))


def _show(report: Report, cell: str, runs: Sequence[Run]) -> None:
    for name in dict.fromkeys(run.contender for run in runs):
        of = [run for run in runs if run.contender == name]
        for what, unit, value, scale in SHOWN:
            values = [found for run in of if (found := value(run)) is not None]
            if values:
                report.add(f"{cell}: {what}", name, unit, median(scale * v for v in values))
        if name == OURS:
            report.add(f"{cell}: daemon", name, "of a core", median(run.daemon for run in of))
        if lost := sum(run.lost for run in of):
            report.notes.append(f"{cell}, {name}: {lost} requests were not answered")
