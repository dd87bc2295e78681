# SPDX-License-Identifier: GPL-2.0-or-later
"""What the demo found: table, picture, keys of build/run.json, and the sentence that the figures
allow. Pure.

A ratio of atfnd to a rival, within the rounds, counts if its whole interval is on one side of 1. Of
eight ratios of equals, one does so by chance in one demo of sixteen (eight rounds). CPU and p99 are
of the quiet rounds: in the others, what other programs take is counted too. With too few of them
there is no figure of CPU and p99 at all, and no picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.kit.picture import drawn
from bench.stats import Estimate, median, ratios
from bench.verdicts import ENOUGH, OURS, Run, quiet

__all__ = ["Found", "counted", "enough", "medians", "picture", "sentence", "table"]

Found = Mapping[str, Mapping[str, Sequence[Run]]]  # by pinned or unpinned, by contender


class _Figure(NamedTuple):
    """What is shown of a run. `judged`: the sentence is about it, less is better, and only quiet
    rounds count."""

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


def _estimate(figure: _Figure, found: Found, kind: str, name: str) -> Estimate | None:
    """None: too few rounds were quiet."""
    if not figure.judged:
        return median(map(figure.of, found[kind][name]))
    return median(map(figure.of, _quiet(found)[kind][name])) if enough(found) else None


def enough(found: Found) -> bool:
    """So many rounds were quiet that CPU and p99 say something."""
    return len(_quiet(found)["pinned"][OURS]) >= ENOUGH


def table(found: Found) -> Table:
    """A line for each way to deliver."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("server", "delivery", *(figure.title for figure in FIGURES)):
        made.add_column(title)
    for kind, by_name in found.items():
        for name in by_name:
            estimates = [(figure, _estimate(figure, found, kind, name)) for figure in FIGURES]
            cells = (figure.text(each) if each else "–" for figure, each in estimates)
            made.add_row(kind, name, *cells, end_section=name == OURS)
    return made


def medians(found: Found) -> dict[str, float | None]:
    """By figure and contender, of the pinned server; of the other one with `_unpinned`."""
    return {
        f"{figure.key}_{name}{'' if kind == 'pinned' else f'_{kind}'}": each
        and round(each.value, 4)
        for figure in FIGURES
        for kind, by_name in found.items()
        for name in by_name
        for each in [_estimate(figure, found, kind, name)]
    }


def _quiet(found: Found) -> Found:
    """Without the rounds in which others kept CPUs busy."""
    every = [run for by_name in found.values() for runs in by_name.values() for run in runs]
    return {
        kind: {name: quiet(runs, every) for name, runs in of.items()} for kind, of in found.items()
    }


def sentence(found: Found) -> str:
    """What may be said of CPU and p99, losses first."""
    calm = _quiet(found)
    if not enough(found):
        of_all, rounds = (len(each["pinned"][OURS]) for each in (found, calm))
        why = "Too noisy" if of_all >= ENOUGH else "Too few rounds"
        return f"{why}: {rounds} of {ENOUGH} quiet rounds. Nothing can be said of CPU and p99."
    said: dict[str, list[str]] = {"worse": [], "better": []}
    for kind, by_name in calm.items():
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


def counted(server: str, cells: Sequence[Mapping[str, Any]]) -> str | None:
    """What atfnd does on the counted machine to the same server, pinned. None: not counted."""
    by_name = {
        each["contender"]: each
        for each in cells
        if each["server"] == server and each["pinned"] and each["load"] == "saturated"
    }
    if not {OURS, "rss"} <= by_name.keys():
        return None
    instructions, lines, requests = (
        f"{by_name[OURS][what] / by_name['rss'][what]:.2f} ×"
        for what in ("instructions_per_request", "lines_per_request", "requests_per_s")
    )
    return (
        f"counted machine ({by_name[OURS]['cpus']} CPUs, a model), {server} pinned and full:"
        f" instructions {instructions} RSS, cache lines {lines}, requests {requests}; see"
        " docs/internals/machine.md"
    )


def picture(found: Found) -> str:
    """Ratios to RSS within the quiet rounds, as SVG. There must be `enough`."""
    panels = {
        f"{figure.title.partition(',')[0]} / RSS (less is better)": {
            (kind, name): ratios(list(map(figure.of, runs)), list(map(figure.of, by_name["rss"])))
            for kind, by_name in _quiet(found).items()
            for name, runs in by_name.items()
            if name != "rss"
        }
        for figure in FIGURES
        if figure.judged
    }
    return drawn(panels)
