# SPDX-License-Identifier: GPL-2.0-or-later
"""What observing and deciding execute: instructions of each BPF program of the observer for a run,
while redis answers, and of the engine (deciding.py). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.report import Report
from bench.stats import Estimate

__all__ = ["TOLERANCE", "Figures", "differing", "figures", "report"]

TOLERANCE = 0.02
OFTEN = 0.1  # a program that runs less often for a request is not compared: too few runs
Figures = dict[str, float]  # instructions, by what they are of


def figures(names: Sequence[str], windows: Iterable[Mapping[str, Any]]) -> Figures:
    """Of programs that run often; those of one name are one. `windows`: of cells.py."""
    requests, runs, within = 0, Counter[str](), Counter[str]()
    for window in windows:
        requests += window["requests"]
        for name, ran, executed in zip(names, window["runs"], window["within"], strict=True):
            runs[name] += ran
            within[name] += executed
    often = [name for name in runs if runs[name] >= OFTEN * requests]
    return {f"{name}, a run": within[name] / runs[name] for name in often}


def differing(kept: Mapping[str, float], counted: Mapping[str, float]) -> list[str]:
    """What is not within TOLERANCE of what was kept, or is in one of both only."""
    return [
        f"{what}: {before} was kept, {now} counted"
        for what in sorted({*kept, *counted})
        for before, now in [(kept.get(what), counted.get(what))]
        if before is None or now is None or abs(now - before) > TOLERANCE * before
    ]


def report(measured: dict[str, Any]) -> Report:
    """From what `observing.measure` found, which may have been JSON in between."""
    about = f"instructions of BPF programs and the engine; redis, {measured['requests']} requests"
    found = Report("observed", about)
    found.samples = measured
    for what, count in measured["figures"].items():
        found.add(what, "atfnd", "instructions", Estimate(count, count, count, 0.0, 1))
    return found
