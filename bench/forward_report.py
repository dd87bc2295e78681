# SPDX-License-Identifier: GPL-2.0-or-later
"""What a forwarding host's runs say: capacities and acceptance lines as rows, the second paper's
figures as tables in forward.md, curves by load.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.forward_load import Run
from bench.grid import Figure, Grid
from bench.report import Report
from bench.stats import median, ratios

__all__ = ["STATIC", "report"]

STATIC = ("0", "I", "II")
USUAL = "DE"  # that every placement has
OUT = Figure("Fig. 5, 11: out, kpps", ("out_pps",), 1e-3)
DELAY = Figure("Fig. 6, 12: delay, p50, us", ("p50_ns",), 1e-3)
WAKES = Figure("Fig. 10, 13: wakes of Rx | Tx, 1000/s", ("rx_wakes_per_s", "tx_wakes_per_s"), 1e-3)
FIGURES = (
    OUT,
    Figure("Fig. 5, 11: loss, %", ("loss",), 100),
    DELAY,
    Figure("Fig. 6, 12: delay, p99, us", ("p99_ns",), 1e-3),
    Figure("Fig. 7, 9: Rx1 / Rx2", ("rx1_rx2",)),
    Figure("Fig. 8: CPU of Rx1 + Rx2 | Tx, %", ("rx_share", "tx_share"), 100),
    WAKES,
    Figure("waits for the Tx ring, per 1000 frames", ("ring_waits",)),
)


def report(runs: Sequence[Run]) -> Report:
    """From all runs of all rounds."""
    report = Report("forward", "a forwarding host: affinity, reception and load, after S2")
    report.samples["runs"] = [each._asdict() for each in runs]
    grid = Grid((each.sizes, each.subject, each.load, each) for each in runs)
    for sizes in grid.groups:
        _capacities(report, [each for each in runs if each.sizes == sizes], sizes)
    worst = max(abs(each.unexplained) for each in runs)
    report.at_most("loss that no ring counted, worst run", worst, 0.01, "")
    skipped = max(each.skipped for each in runs)
    report.notes.append(f"the generator sent less than asked for, worst run: {skipped:.1%}")
    _identities(report, grid)
    for sizes in grid.groups:
        for name in STATIC:
            if grid.has(sizes, f"{name}, {USUAL}"):
                _delays(report, grid, sizes, f"{name}, {USUAL}")
    for file, title, figure in (
        ("out", "forwarded", OUT), ("delay", "delay, p50", DELAY),
        ("wakes", "wakes of the receivers", WAKES),
    ):  # fmt: skip
        grid.draw(f"forward-{file}", title, "offered, % of capacity", figure)
    grid.write("forward", FIGURES)
    return report


def _capacities(report: Report, runs: Sequence[Run], sizes: str) -> None:
    """Of each placement; beside the best static one by what both had in a round."""
    found: dict[str, list[float]] = {}
    for each in runs:
        if each.reception == USUAL and each.load == runs[0].load:
            found.setdefault(each.placement, []).append(each.capacity_pps)
    for placement, rates in found.items():
        report.add(f"{sizes}: capacity", placement, "kpps", median(r / 1e3 for r in rates))
    static = [name for name in STATIC if name in found]
    if not static:
        return
    best = max(static, key=lambda name: median(found[name]).value)
    for placement, rates in found.items():
        ratio = ratios(rates, found[best])
        report.add(f"{sizes}: capacity", f"{placement} / {best}", "×", ratio)
        if placement == "atfnd":
            what = f"{sizes}: atfnd beside the best static mode, {best}"
            report.at_least(what, ratio.value, 0.95)


def _identities(report: Report, grid: Grid[Run]) -> None:
    """Of 64 bytes: waits for the Tx ring, and whose CPU is used."""
    subjects = {name: f"{name}, {USUAL}" for name in STATIC if grid.has("64", f"{name}, {USUAL}")}
    most = {name: max(grid.line("ring_waits", "64", row)) for name, row in subjects.items()}
    for name, waits in most.items():
        report.add("64: waits for the Tx ring, any load", name, "/1000", median([waits]))
    if "0" in most:
        report.at_most("64: mode 0 waits for the Tx ring", most["0"], 0.0, "/1000")
    if {"I", "II"} <= most.keys():
        more = most["II"] - most["I"]
        report.at_least("64: II waits more than I by", more, 1e-6, "/1000")
    if "I" in most:
        rx, tx = (grid.line(field, "64", subjects["I"]) for field in ("rx_share", "tx_share"))
        loads = zip(grid.columns("64"), rx, tx, strict=True)
        least = min(ours / theirs for load, ours, theirs in loads if load >= 0.2)
        what = "64: I, the receivers' CPU / the sender's, least of the loads from 20 %"
        report.at_least(what, least, 1.0)


def _delays(report: Report, grid: Grid[Run], sizes: str, row: str) -> None:
    """How wakes and delay change with load."""
    loads, title = grid.columns(sizes), f"{sizes}: {row}"
    wakes = grid.line("rx_wakes_per_s", sizes, row)
    report.at_least(f"{title}: Rx wakes, most / at the least load", max(wakes) / wakes[0], 1.0)
    report.at_most(f"{title}: Rx wakes, at the end / most", wakes[-1] / max(wakes), 0.05)
    delays = grid.line("p50_ns", sizes, row)
    middle = min(range(len(loads)), key=lambda at: abs(loads[at] - 0.5))
    report.at_least(f"{title}: delay, 120 % / 50 %", delays[-1] / delays[middle], 5.0)
    even = zip(loads, grid.line("rx1_rx2", sizes, row), strict=True)
    worst = max(abs(ratio - 1) for load, ratio in even if load <= 1)
    report.at_most(f"{title}: Rx1 / Rx2 - 1, to 100 %", worst, 0.05, "")
