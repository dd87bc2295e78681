# SPDX-License-Identifier: GPL-2.0-or-later
"""What observing and deciding execute, counted in the counted guest: instructions of each BPF
program of the daemon for a run, armed, while redis answers as in cells.py; and then of the engine
by itself (deciding.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.counted import cells, programs
from bench.counted.deciding import FLOWS, Decider, Figures
from bench.counted.deciding import measure as decided
from bench.report import Report
from bench.stats import Estimate

__all__ = ["TOLERANCE", "differing", "figures", "measure", "report"]

TOLERANCE = 0.02
OFTEN = 0.1  # a program that runs less often for a request is not compared: too few runs


def measure(rounds: int) -> dict[str, Any]:
    """Windows, and figures by what they are of. OperatorError: as in `cells.measure`."""
    deciders = list(map(Decider, FLOWS))  # before anything is instrumented, which is slow
    cpus = min(cells.CLIENTS)
    with cells.serving("redis", cpus) as bench:
        # All flows have to be steered: `used()` of one that RSS delivers to its thread's CPU takes
        # another way, and how many are so depends on where they hash.
        bench.bed.deliver_all_to(bench.bed.cpus.index(cells.NEIGHBOUR))
        with cells.CONTENDERS["atfnd"](bench.bed, "tcp") as daemon:
            names = programs.counted()
            cells.start(cpus)
            windows = [w for _ in range(rounds) for w in bench.measured("saturated", 0, daemon)]
    return {
        "requests": sum(window["requests"] for window in windows),
        "figures": figures(names, windows) | decided(deciders, cells.COUNTS),
        "windows": windows,
        "names": names,
    }


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
