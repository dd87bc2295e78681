# SPDX-License-Identifier: GPL-2.0-or-later
"""The benches' pictures, as PNG in build/bench (matplotlib, no display)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from bench.report import FOLDER
from bench.stats import Estimate

__all__ = ["bars", "distributions"]


def _save(name: str) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    plt.tight_layout()
    plt.savefig(path, dpi=120)
    plt.close()
    return path


def bars(
    name: str,
    title: str,
    unit: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Estimate]],
    bound: float | None = None,
    log: bool = False,
) -> Path:
    """One bar a group and series with its interval; `bound` is drawn as the target."""
    _, axes = plt.subplots(figsize=(max(5.0, 1.6 * len(groups) + 2), 4))
    width = 0.8 / len(series)
    for number, (label, estimates) in enumerate(series.items()):
        at = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        values = [estimate.value for estimate in estimates]
        spread = (
            [estimate.value - estimate.low for estimate in estimates],
            [estimate.high - estimate.value for estimate in estimates],
        )
        axes.bar(at, values, width, label=label, yerr=spread, capsize=3)
    if bound is not None:
        axes.axhline(bound, linestyle="--", color="grey", label=f"target {bound:g}")
    axes.set_xticks(range(len(groups)), groups)
    if log:
        axes.set_yscale("log")
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return _save(name)


def distributions(name: str, title: str, unit: str, samples: Mapping[str, Sequence[float]]) -> Path:
    """Cumulative share of each series' samples, on a logarithmic axis."""
    _, axes = plt.subplots(figsize=(7, 4))
    for label, values in samples.items():
        ordered = sorted(values)
        share = [(index + 1) / len(ordered) for index in range(len(ordered))]
        axes.step(ordered, share, where="post", label=f"{label} (n = {len(ordered)})")
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_ylabel("share of moves")
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    axes.legend()
    return _save(name)
