# SPDX-License-Identifier: GPL-2.0-or-later
"""The second paper's forwarding host on the counted machine: instructions and cache lines of a
frame of 64 bytes, by where three interrupts go. Receivers and sender are as in `forward_simnic`,
with packages of four CPUs; the generator has the last CPU.

A frame is counted when its BPF program runs in the sink, so that the edges of a window are exact.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from bench.bed import succeed
from bench.counted import cells, programs
from bench.counted.counts import KINDS, LATENCIES_NS, MOVED, Window, marks, windows
from bench.forwarder import RECEIVERS, SENDER, built, offered
from bench.report import Report
from bench.sim_forwarder import sim_forwarder
from bench.stats import median

__all__ = ["MODES", "PORTS", "measure", "report"]

CPUS, FLOWS = 8, 32
PORTS = 6
MODES = {"0": (0, 0, 0), "I": (0, 1, 4), "II": (0, 4, 1)}  # CPUs of both receivers, the sender
PPS = {"half": 8_000, "full": 60_000}  # of the guest's time, in which a CPU is eight times slower
WARM_MS, WINDOW_MS, WINDOWS, SECONDS = 50, 120, 2, 30
FIGURES: tuple[tuple[str, str, Callable[[dict[str, Any]], float]], ...] = (
    ("instructions", "a frame", lambda each: each["instructions"]),
    ("on the busiest CPU", "a frame", lambda each: each["busiest_instructions"]),
    ("lines moved", "a frame", lambda each: sum(each["lines"][kind] for kind in MOVED)),
    ("estimate, EPYC", "µs", lambda each: each["ns"]["EPYC"] / 1000),
    ("estimate, Xeon", "µs", lambda each: each["ns"]["Xeon"] / 1000),
    ("forwarded in the model", "frames/s", lambda each: each["frames_per_s"]),
)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Figures of a frame, by mode and load. OperatorError: as in `cells.measure`."""
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        sim_forwarder(built(Path(folder)), dma=True) as bed,
    ):
        os.sched_setaffinity(0, {bed.cpus[-1]})
        arrived = programs.counted().index("arrive")
        cells.start(CPUS)
        for mode, cpus in MODES.items():
            bed.place(dict(zip((*RECEIVERS, SENDER), cpus, strict=True)))
            for load, pps in PPS.items():
                with offered(bed.host, pps, SECONDS, "64", bed.generators_cpu):
                    times = (WARM_MS, WINDOW_MS, rounds * WINDOWS)
                    watch = ("load", "watch", bed.cpus[-1], *times, "spinidle.ko")
                    said = succeed(
                        "sh", "-c", f"cd {cells.COPIED} && ./{' '.join(map(str, watch))}"
                    )
                took_ns = [json.loads(line)["ns"] for line in said.splitlines()]
                counted = marks(cells.COUNTS.read_text())[-2 * len(took_ns) :]
                for window, ns in zip(windows(counted, took_ns), took_ns, strict=True):
                    figures = _figures(window, ns, arrived, set(cpus))
                    found.append({"mode": mode, "load": load, **figures})
    return found


def _figures(window: Window, ns: int, arrived: int, cpus: set[int]) -> dict[str, Any]:
    """A frame, over the CPUs that forward; time as on CPUs that execute one instruction a ns."""
    here = [window[cpu] for cpu in sorted(cpus)]
    frames = sum(cpu.runs[arrived] for cpu in window)
    return {
        "frames": frames,
        "frames_per_s": frames / ns * 1e9 * len(window),
        "instructions": sum(cpu.busy for cpu in here) / frames,
        "busiest_instructions": max(cpu.busy for cpu in here) / frames,
        "busy": [cpu.busy / cpu.executed for cpu in window],
        "lines": {kind: sum(cpu.found(kind) for cpu in here) / frames for kind in KINDS},
        "ns": {name: sum(cpu.ns(name) for cpu in here) / frames for name in LATENCIES_NS},
    }


def report(measured: list[dict[str, Any]]) -> Report:
    """From what `measure` found."""
    found = Report("forward-counted", "a frame of 64 bytes through two packages, counted")
    of_cell: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in measured:
        of_cell.setdefault((each["mode"], each["load"]), []).append(each)
    cells = [_cell(mode, load, windows) for (mode, load), windows in of_cell.items()]
    found.samples = {"cells": cells, "windows": measured}
    for what, unit, of in FIGURES:
        for (mode, load), some in of_cell.items():
            found.add(f"{load}: {what}", mode, unit, median(map(of, some)))
    return found


def _cell(mode: str, load: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over its windows."""
    busiest = mean(each["busiest_instructions"] for each in found)
    about = {"server": "forwarder", "pinned": True, "load": load, "cpus": CPUS}
    return {
        **about, "connections": FLOWS, "contender": mode, "windows": len(found),
        "frames": sum(each["frames"] for each in found),
        "instructions_per_frame": round(mean(each["instructions"] for each in found), 1),
        "instructions_on_the_busiest_cpu": round(busiest, 1),
        "busy": [round(mean(of), 3) for of in zip(*(w["busy"] for w in found), strict=True)],
        "lines_by_kind": _means(found, "lines"),
        "estimate_ns": _means(found, "ns"),
        "frames_per_s": round(mean(each["frames_per_s"] for each in found)),
    }  # fmt: skip


def _means(found: list[dict[str, Any]], of: str) -> dict[str, float]:
    return {each: round(mean(w[of][each] for w in found), 3) for each in found[0][of]}
