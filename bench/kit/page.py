# SPDX-License-Identifier: GPL-2.0-or-later
"""The report of the kit: one HTML file with its picture and samples inside, losses first. Pure.

Every ratio is the median of the ratios within the rounds, with its interval. Verdicts are those of
bench/verdicts.py, against the better of RSS and RFS, over the rounds in which other
programs kept no CPU busy. With too few of them there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from atfnd.model.topology import cpu_list
from bench.kit.measuring import Measured
from bench.kit.picture import drawn
from bench.stats import Estimate, median, ratios
from bench.verdicts import ENOUGH, LOAD, MEASURES, OURS, Judged, Run, Verdict, judged, quiet

__all__ = ["answered", "page", "said"]

WORDS = {
    Verdict.LOST: "worse",
    Verdict.OPEN: "maybe worse",
    Verdict.KEPT: "no worse",
    Verdict.BETTER: "better",
}
STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 80em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .2em .6em; text-align: right }
td { white-space: nowrap; font-size: 90% }
th { border-bottom: 1px solid } td:first-child, th:first-child { text-align: left }
.worse { color: #b00; font-weight: bold } .better { color: #070; font-weight: bold }
svg { width: 100%; height: auto } .note { background: #fec; color: #000; padding: .6em 1em }
"""
NOT_A_NIC = (
    "This is the lab NIC: virtual interfaces whose queues and filters software plays. It is not a "
    "NIC of this machine. It shows what this processor and this kernel gain or lose by where "
    "packets are processed; interrupts, DMA and the filters of hardware are not in it."
)


ByCell = Mapping[str, Sequence[Run]]


class _Shown(NamedTuple):
    """A column of the table."""

    title: str
    of: Callable[[Run], float | None]
    scale: float


COLUMNS = (
    _Shown("requests/s", lambda run: run.per_s, 1),
    _Shown("p99, µs", lambda run: run.p99_ns, 1e-3),
    _Shown("CPU a request, µs", lambda run: run.cpu_ns, 1e-3),
    _Shown("read locally, %", lambda run: run.read_locality, 100),
    _Shown("handoffs in 1000 requests", lambda run: run.handoffs, 1000),
    _Shown("atfnd itself, % of a core", lambda run: run.daemon, 100),
)


def page(measured: Measured, host: Mapping[str, str], took_s: float, at: str) -> str:
    """The whole file. `at`: when it was measured."""
    by_cell, left_out = answered(measured.runs)
    rounds = len({run.turn for run in measured.runs})
    notes = list(measured.notes)
    if left_out:
        notes.append(f"left out, a round each, because of a window without answers: {left_out}")
    samples = json.dumps([run._asdict() for run in measured.runs]).replace("<", "\\u003c")
    body = (
        f"<h1>atfnd on this machine</h1><p>{escape(said(by_cell))}</p>",
        f'<p class="note">{escape(NOT_A_NIC)}</p>',
        "<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>",
        "<h2>atfnd against the better of RSS and RFS, losses first</h2>", _verdicts(by_cell),
        "<h2>Each against RSS</h2>",
        "<p>The point is the median of the ratios within the rounds, the line its interval. By "
        "hand are “same core” and “neighbour”: one filter brings the port to the core of the "
        "server, or to another one under the same last-level cache.</p>",
        drawn(_panels(by_cell)),
        "<h2>Figures</h2><p>Medians, in brackets the interval.</p>", _figures(by_cell),
        "<h2>The machine</h2>", _table((), [*host.items(), *_roles(measured)]),
        f"<p>Measured {escape(at)} in {took_s / 60:.0f} minutes, {rounds} rounds. CPU a request "
        "is of all that was busy, the daemon too, without the clients and the wire. p99 counts "
        "from when a request was to be sent; saturated, from when it was sent.</p>",
        f'<script type="application/json" id="samples">{samples}</script>',
    )  # fmt: skip
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>atfnd on this machine</title>'
        f"<style>{STYLE}</style><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def answered(runs: Sequence[Run]) -> tuple[ByCell, int]:
    """By cell, without the rounds in which a window of it had no answers; how many these were."""
    none = {
        (run.cell, run.turn) for run in runs if not (run.per_s and run.p99_ns and run.cpu_ns > 0)
    }
    found: dict[str, list[Run]] = {}
    for run in runs:
        if (run.cell, run.turn) not in none:
            found.setdefault(run.cell, []).append(run)
    return found, len(none)


def said(by_cell: ByCell) -> str:
    """In how many cells atfnd is worse, and in how many better."""
    found = [_judged(cell, runs)[1] for cell, runs in by_cell.items()]
    if not any(found):
        return (
            f"Nothing can be said: no cell has {ENOUGH} rounds in which other programs kept less "
            f"than {LOAD:g} CPUs busy. The figures below are what was measured."
        )
    counts = (f"{word} in {found.count(word)}" for word in WORDS.values())
    unsaid = f" Of {found.count(None)} nothing can be said." if None in found else ""
    return f"Of {len(found)} cells atfnd is {', '.join(counts)}.{unsaid}"


def _judged(cell: str, runs: Sequence[Run]) -> tuple[Judged, str | None]:
    """The ratios of a cell, and the word for it. None: too few rounds were quiet."""
    calm = quiet(runs, runs)
    if len({run.turn for run in calm}) < ENOUGH:
        return judged(cell, runs), None
    one = judged(cell, calm)
    return one, WORDS[one.verdict]


def _verdicts(by_cell: ByCell) -> str:
    every = (_judged(cell, runs) for cell, runs in by_cell.items())
    rows = [
        (each.cell, word or "not said", *(_against(each, measure.name) for measure in MEASURES))
        for each, word in sorted(every, key=lambda one: one[0].verdict)
    ]
    return _table(("", "atfnd is", *(measure.name for measure in MEASURES)), rows)


def _against(one: Judged, measure: str) -> str:
    if measure not in one.ratios:
        return "–"
    rival, ratio = one.ratios[measure]
    return f"{ratio.text()} × {rival.upper()}"


def _panels(by_cell: ByCell) -> dict[str, dict[tuple[str, str], Estimate]]:
    """Ratios to RSS, by measure."""
    found: dict[str, dict[tuple[str, str], Estimate]] = {}
    for measure in MEASURES:
        better = "more" if measure.more_is_better else "less"
        panel = found.setdefault(f"{measure.name} / RSS ({better} is better)", {})
        for cell, runs in by_cell.items():
            if measure.name == "operations" and "light" in cell:
                continue  # all answer what they are asked
            of = {name: _values(runs, name, measure.of) for name in _names(runs)}
            for name, values in of.items():
                if name != "rss" and values and len(values) == len(of["rss"]):
                    panel[cell, name] = ratios(values, of["rss"])
    return found


def _figures(by_cell: ByCell) -> str:
    rows = []
    for cell, runs in by_cell.items():
        for name in _names(runs):
            cells = [_cell(column, _values(runs, name, column.of)) for column in COLUMNS]
            rows.append((cell, name, *cells))
    return _table(("", "", *(column.title for column in COLUMNS)), rows)


def _cell(column: _Shown, values: Sequence[float]) -> str:
    if not values:
        return "–"
    value, low, high = (_number(column.scale * each) for each in median(values)[:3])
    return f"{value} [{low}, {high}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _names(runs: Sequence[Run]) -> list[str]:
    """The contenders, RSS and RFS first."""
    order = ("rss", "rfs", OURS, "same core", "neighbour")
    return [name for name in order if any(run.contender == name for run in runs)]


def _values(runs: Sequence[Run], name: str, of: Callable[[Run], float | None]) -> list[float]:
    """Of a contender, in the order of the rounds."""
    own = sorted((run for run in runs if run.contender == name), key=lambda run: run.turn)
    return [value for run in own if (value := of(run)) is not None]


def _roles(measured: Measured) -> list[tuple[str, str]]:
    found = measured.parts
    clients = cpu_list(found.clients) or "none of their own: they share the server's"
    return [
        ("queues on CPUs", cpu_list(found.serving)),
        ("the server, if pinned", str(found.serving[0])),
        ("its neighbour", "none" if found.neighbour is None else str(found.neighbour)),
        ("CPUs of clients and wire", clients),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Worse and better have a colour."""
    lines = [f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>"] if head else []
    for row in rows:
        classes = (f' class="{each}"' if each in ("worse", "better") else "" for each in row)
        words = zip(classes, map(escape, row), strict=True)
        cells = (f"<td{of}>{each}</td>" for of, each in words)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"
