# SPDX-License-Identifier: GPL-2.0-or-later
"""What a forwarding host's runs say: capacities and acceptance lines as rows, the second paper's
figures as tables in NAME.md, curves by load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bench import plot
from bench.forward_load import SIZES, Load, Run
from bench.markdown import Section, write_sections
from bench.report import Report, Target
from bench.stats import Estimate, median

__all__ = ["STATIC", "report"]

STATIC = ("0", "I", "II")

Cells = dict[tuple[str, str, float], list[Run]]  # sizes, subject, load


def report(runs: Sequence[Run], load: Load) -> Report:
    """The capacities and the acceptance lines as rows, the paper's figures in NAME.md beside. The
    reception of the first run is the one that every placement has."""
    report = Report(load.name, "a forwarding host: affinity, reception and load, after S2")
    usual = runs[0].reception
    report.samples["runs"] = [each._asdict() for each in runs]
    cells: Cells = {}
    for each in runs:
        cells.setdefault((each.sizes, each.subject, each.load), []).append(each)
    for sizes in dict.fromkeys(each.sizes for each in runs):
        _capacities(report, [each for each in runs if each.sizes == sizes], sizes, usual)
    _identities(report, runs, cells, usual)
    _delays(report, cells, usual)
    _receptions(report, cells)
    _drawn(load.name, cells)
    write_sections(load.name, _figures(cells))
    return report


def _of(cells: Cells, field: str, key: tuple[str, str, float]) -> Estimate:
    return median(float(getattr(each, field)) for each in cells[key])


def _known(cells: Cells, *fields: str) -> bool:
    """A bed knows them, or does not."""
    return all(getattr(runs[0], field) is not None for runs in cells.values() for field in fields)


def _capacities(report: Report, runs: Sequence[Run], sizes: str, usual: str) -> None:
    """Of each placement; beside the best static one by what both had in a round."""
    found: dict[str, list[float]] = {}
    for each in runs:
        if each.reception == usual and each.load == runs[0].load:
            found.setdefault(each.placement, []).append(each.capacity_pps)
    for placement, rates in found.items():
        name = f"{placement}, {usual}"
        report.add(f"{sizes}: capacity", name, "kpps", median(r / 1e3 for r in rates))
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


def _identities(report: Report, runs: Sequence[Run], cells: Cells, usual: str) -> None:
    worst = max(abs(each.unexplained) for each in runs)
    report.targets.append(Target("loss that no ring counted, worst run", worst, 0.01, False, ""))
    skipped = max(each.skipped for each in runs)
    report.notes.append(f"the generator sent less than asked for, worst run: {skipped:.1%}")
    for placement in dict.fromkeys(each.placement for each in runs if each.cpus is not None):
        seen = Counter(each.cpus for each in runs if each.placement == placement)
        where = "; ".join(f"{cpus} in {times} runs" for cpus, times in seen.most_common())
        report.notes.append(f"{placement}: interrupts of e0, e1, s2 were on the CPUs {where}")
    loads = sorted({load for _, _, load in cells})
    static = [name for name in STATIC if ("64", f"{name}, {usual}", loads[0]) in cells]
    if _known(cells, "ring_waits"):
        _waits(report, cells, {name: f"{name}, {usual}" for name in static}, loads)
    beyond = [("64", f"I, {usual}", load) for load in loads if load >= 0.2]
    if "I" in static and beyond and _known(cells, "rx_share", "tx_share"):
        least = min(
            _of(cells, "rx_share", key).value / _of(cells, "tx_share", key).value for key in beyond
        )
        what = "64: I, the receivers' CPU / the sender's, least of the loads from 20 %"
        report.targets.append(Target(what, least, 1.0, True, "×"))
    if "I" in static and beyond and _known(cells, "rx_idle", "tx_idle"):
        most = max(
            _of(cells, "rx_idle", key).value - _of(cells, "tx_idle", key).value for key in beyond
        )
        what = "64: I, idle of the receivers' CPUs - the sender's, most of the loads from 20 %"
        report.targets.append(Target(what, most, 0.0, False, ""))


def _waits(
    report: Report, cells: Cells, subjects: Mapping[str, str], loads: Sequence[float]
) -> None:
    """For the lock of the Tx ring, at the load that has most."""
    most = {
        name: max(_of(cells, "ring_waits", ("64", subject, load)).value for load in loads)
        for name, subject in subjects.items()
    }
    for name, waits in most.items():
        what = "64: waits for the Tx ring, any load"
        report.add(what, subjects[name], "/1000", median([waits]))
    if "0" in most:
        what = "64: mode 0 waits for the Tx ring"
        report.targets.append(Target(what, most["0"], 0.0, False, "/1000"))
    if {"I", "II"} <= most.keys():
        more = most["II"] - most["I"]
        report.targets.append(Target("64: II waits more than I by", more, 1e-6, True, "/1000"))


def _receptions(report: Report, cells: Cells) -> None:
    """Softirqs with the one budget and the other, and threads beside them, in each static mode."""
    loads = sorted({load for _, _, load in cells})
    if not _known(cells, "squeezes_per_s"):
        return
    for sizes in SIZES:
        for name in STATIC:
            title = f"{sizes}: {name}"
            large, small, thread = (f"{name}, {each}" for each in ("NAPI(300)", "NAPI(2)", "DE"))

            def all_of(field: str, subject: str, kind: str = sizes) -> list[float]:
                return [_of(cells, field, (kind, subject, load)).value for load in loads]

            if (sizes, large, loads[0]) not in cells:
                continue
            if (sizes, small, loads[0]) in cells:
                few, many = (sum(all_of("squeezes_per_s", each)) for each in (large, small))
                what = f"{title}: squeezes, NAPI(2) / NAPI(300), all loads"
                report.targets.append(Target(what, many / max(few, 1.0), 10.0, True, "×"))
            if (sizes, thread, loads[0]) in cells:
                ours, theirs = (all_of("out_pps", each)[-1] for each in (thread, large))
                what = f"{title}: forwarded at {loads[-1]:.0%}, DE / NAPI(300)"
                report.targets.append(Target(what, ours / theirs, 1.0, True, "×"))
                ours, theirs = (all_of("p50_ns", each)[0] for each in (thread, large))
                what = f"{title}: delay at {loads[0]:.0%}, DE / NAPI(300)"
                report.targets.append(Target(what, ours / theirs, 1.0, False, "×"))


def _delays(report: Report, cells: Cells, usual: str) -> None:
    """How wakes and delay change with load, of each static mode."""
    loads = sorted({load for _, _, load in cells})
    for sizes in SIZES:
        for name in STATIC:
            if (sizes, f"{name}, {usual}", loads[0]) not in cells:
                continue

            def value(
                field: str, load: float, key: tuple[str, str] = (sizes, f"{name}, {usual}")
            ) -> float:
                return _of(cells, field, (*key, load)).value

            wakes = [value("rx_wakes_per_s", load) for load in loads]
            title = f"{sizes}: {name}, {usual}"
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


def _drawn(name: str, cells: Cells) -> None:
    """Throughput, delay and wakes by load."""
    loads = sorted({load for _, _, load in cells})
    names = dict.fromkeys((sizes, subject) for sizes, subject, _ in cells)
    for field, title, unit, scale in (
        ("out_pps", "forwarded", "kpps", 1e-3),
        ("p50_ns", "delay, p50", "us", 1e-3),
        ("rx_wakes_per_s", "wakes or interrupts of the receivers", "1000/s", 1e-3),
    ):
        for sizes in dict.fromkeys(sizes for sizes, _ in names):
            series = {
                subject: [scale * _of(cells, field, (sizes, subject, load)).value for load in loads]
                for kind, subject in names
                if kind == sizes
            }
            file = f"{name}-{field.removesuffix('_ns').replace('_', '-')}-{sizes}"
            plot.curves(file, f"{title}, {sizes}", "offered, % of capacity", unit,
                        [100 * load for load in loads], series)  # fmt: skip


FIGURES = (
    ("Fig. 5, 11: out", "kpps", ("out_pps",), 1e-3),
    ("Fig. 5, 11: loss", "%", ("loss",), 100.0),
    ("Fig. 6, 12: delay, p50", "us", ("p50_ns",), 1e-3),
    ("Fig. 6, 12: delay, p99", "us", ("p99_ns",), 1e-3),
    ("Fig. 7, 9: Rx1 / Rx2", "×", ("rx1_rx2",), 1.0),
    ("Fig. 8: CPU of Rx1 + Rx2 | Tx", "% of a CPU", ("rx_share", "tx_share"), 100.0),
    ("Fig. 8: idle of the CPUs of Rx | Tx", "%", ("rx_idle", "tx_idle"), 100.0),
    ("Fig. 10, 13: wakes of Rx | Tx", "1000/s", ("rx_wakes_per_s", "tx_wakes_per_s"), 1e-3),
    ("waits for the Tx ring", "per 1000 frames", ("ring_waits",), 1.0),
    ("squeezes", "/s", ("squeezes_per_s",), 1.0),
)


def _figures(cells: Cells) -> list[Section]:
    """A table for each of the paper's figures: a row a subject, a column a load."""
    loads = sorted({load for _, _, load in cells})
    found = []
    for sizes in dict.fromkeys(sizes for sizes, _, _ in cells):
        names = list(dict.fromkeys(subject for kind, subject, _ in cells if kind == sizes))
        for title, unit, fields, scale in FIGURES:
            if not _known(cells, *fields):
                continue
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
            found.append(Section(f"{sizes} B, {title} ({unit})", head, rows))
    return found
