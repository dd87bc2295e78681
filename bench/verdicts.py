# SPDX-License-Identifier: GPL-2.0-or-later
"""What a run of a real server found, and whether atfnd is worse there than the kernel alone. Pure.

atfnd is compared with the better of RSS and RFS in each measure, by the ratios within the rounds. A
cell is lost if the whole interval of a ratio is beyond its bound, and open if the median is but the
interval reaches the bound. It is better if the whole interval of CPU or p99 is below 1. Losses are
reported first. Saturated, p99 is not judged: there a request waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from bench.stats import Estimate, median, ratios

__all__ = ["ENOUGH", "LOAD", "MEASURES", "OURS", "Judged", "Run", "Verdict", "judged", "quiet"]

OURS, RIVALS = "atfnd", ("rss", "rfs")
LOAD = 0.5  # of a CPU: what else may run
ENOUGH = 6  # rounds for a median's 95 % interval


class Run(NamedTuple):
    """One contender in one cell. An operation is a request."""

    turn: int
    cell: str
    contender: str
    per_s: float
    p50_ns: float
    p99_ns: float
    cpu_ns: float  # of an operation
    daemon: float  # of a core
    handoffs: float  # of an operation
    read_locality: float | None  # 0 to 1; None: the sockets are not connected
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


class Judged(NamedTuple):
    """One cell: by measure, against which rival, and the ratio to it."""

    cell: str
    verdict: Verdict
    ratios: dict[str, tuple[str, Estimate]]


def quiet(runs: Sequence[Run], of_all: Iterable[Run]) -> list[Run]:
    """Without the rounds in which others kept CPUs busy, in any run of all."""
    loud = {run.turn for run in of_all if run.others > LOAD}
    return [run for run in runs if run.turn not in loud]


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
