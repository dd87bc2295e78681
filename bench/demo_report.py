# SPDX-License-Identifier: GPL-2.0-or-later
"""What the demo found: table, picture, keys of build/run.json, and the sentence that the figures
allow. Pure, but for the picture.

A ratio of atfnd to a rival, within the rounds, counts if its whole interval is on one side of 1. Of
eight ratios of equals, one does so by chance in one demo of sixteen (eight rounds). Rounds in which
others kept CPUs busy are left out: what they take is counted too, and draws each ratio to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import plot
from bench.applications_report import ENOUGH, LOAD, OURS, Run
from bench.stats import Estimate, median, ratios

__all__ = ["PICTURE", "Found", "draw", "medians", "sentence", "table"]

PICTURE = "demo"
Found = Mapping[str, Mapping[str, Sequence[Run]]]  # by pinned or unpinned, by contender


class _Figure(NamedTuple):
    """What is shown of a run. `judged`: the sentence is about it, and less is better."""

    key: str
    title: str
    of: Callable[[Run], float]
    text: Callable[[Estimate], str] = Estimate.text
    judged: bool = False


FIGURES = (
    _Figure(
        "locality", "read locally", lambda run: run.read_locality or 0.0, lambda e: f"{e.value:.1%}"
    ),
    _Figure("cpu_us_per_request", "CPU/request, µs", lambda run: run.cpu_ns / 1e3, judged=True),
    _Figure(
        "p99_us", "p99, µs", lambda run: (run.p99_ns or 0.0) / 1e3,
        lambda e: f"{e.value:.0f} [{e.low:.0f}, {e.high:.0f}]", judged=True,
    ),
    _Figure(
        "handoffs_per_1000_requests", "handoffs", lambda run: 1000 * run.handoffs,
        lambda e: f"{e.value:.0f}",
    ),
)  # fmt: skip


def _estimate(figure: _Figure, runs: Sequence[Run]) -> Estimate:
    return median(map(figure.of, runs))


def table(found: Found) -> Table:
    """A line for each way to deliver."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("server", "delivery", *(figure.title for figure in FIGURES)):
        made.add_column(title)
    for kind, by_name in found.items():
        for name, runs in by_name.items():
            cells = (figure.text(_estimate(figure, runs)) for figure in FIGURES)
            made.add_row(kind, name, *cells, end_section=name == OURS)
    return made


def medians(found: Found) -> dict[str, float]:
    """By figure and contender, of the pinned server; of the other one with `_unpinned`."""
    return {
        f"{figure.key}_{name}{'' if kind == 'pinned' else f'_{kind}'}": round(
            _estimate(figure, runs).value, 4
        )
        for figure in FIGURES
        for kind, by_name in found.items()
        for name, runs in by_name.items()
    }


def _quiet(found: Found) -> Found:
    """Without the rounds in which others kept CPUs busy."""
    loud = {
        run.turn
        for by_name in found.values()
        for runs in by_name.values()
        for run in runs
        if run.others > LOAD
    }
    return {
        kind: {name: [run for run in runs if run.turn not in loud] for name, runs in of.items()}
        for kind, of in found.items()
    }


def sentence(found: Found) -> str:
    """What may be said of CPU and p99, losses first."""
    quiet = _quiet(found)
    rounds = len(quiet["pinned"][OURS])
    if rounds < ENOUGH:
        return (
            f"Nothing can be said of CPU and p99: {rounds} of the {ENOUGH} quiet rounds it takes."
        )
    said: dict[str, list[str]] = {"worse": [], "better": []}
    for kind, by_name in quiet.items():
        for figure, name in product(FIGURES, by_name):
            if figure.judged and name != OURS:
                ours, theirs = (list(map(figure.of, by_name[each])) for each in (OURS, name))
                ratio, what = ratios(ours, theirs), figure.title.partition(",")[0]
                words = f"{what} ({kind}, {ratio.text()} × {name.upper()})"
                said["worse"] += [words] if ratio.low > 1 else []
                said["better"] += [words] if ratio.high < 1 else []
    parts = [f"{how} in {', '.join(words)}" for how, words in said.items() if words]
    if not parts:
        return "No difference here: neither CPU nor p99 of a request changes beyond the noise."
    return f"Here atfnd is {' and '.join(parts)}; else there is no difference beyond the noise."


def draw(title: str, found: Found) -> None:
    """The picture: a panel for each figure."""
    names = next(iter(found.values()))
    panels = {
        figure.title: {
            name: [_estimate(figure, by_name[name]) for by_name in found.values()] for name in names
        }
        for figure in FIGURES
    }
    plot.panels(PICTURE, title, list(found), panels)
