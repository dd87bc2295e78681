# SPDX-License-Identifier: GPL-2.0-or-later
"""What a request costs on the counted machine, as a table and as cells. Pure."""

from __future__ import annotations

from statistics import mean
from typing import Any

from bench.counted.counts import KINDS, LATENCIES_NS, MODES, MOVED
from bench.report import Report
from bench.stats import median, quantile

__all__ = ["LATENCIES", "report"]

ENOUGH = 1000  # samples for a p99: ten are above it
LATENCIES = (
    "3 GHz, one instruction a cycle, every line waited for; latencies: bench/counted/counts.py"
)


def report(measured: dict[str, Any]) -> Report:
    """From what `cells.measure` found, which may have been JSON in between."""
    server, cpus = measured["server"], measured["cpus"]
    where = "pinned" if measured["pinned"] else "not pinned"
    cells = [_cell({**measured, **each}) for each in measured["cells"]]
    connections = " or ".join(dict.fromkeys(str(each["connections"]) for each in cells))
    about = f"{server}, {where}, {cpus} CPUs, {connections} connections"
    found = Report("machine", about)
    found.samples = {"cells": cells, "windows": measured["cells"]}
    for cell in measured["cells"]:
        name, load, windows = cell["contender"], cell["load"], cell["windows"]

        def add(
            what: str, unit: str, values: list[float], name: str = name, load: str = load
        ) -> None:
            found.add(f"{load}: {what}", name, unit, median(values))

        add("instructions", "a request", [sum(w["instructions"].values()) for w in windows])
        add("on the busiest CPU", "a request", [w["busiest_instructions"] for w in windows])
        add("lines moved", "a request", [_moved(w) for w in windows])
        for processor in LATENCIES_NS:
            add(f"estimate, {processor}", "µs", [w["ns"][processor] / 1000 for w in windows])
        add("the model's throughput", "requests/s", [w["requests_per_s"] for w in windows])
        add("IPIs", "a request", [w["ipis"] for w in windows])
    order = [row.what for row in found.rows]
    found.rows.sort(key=lambda row: order.index(row.what))
    found.notes.append(f"estimates: {LATENCIES}")
    found.notes.append("windows of one set of connections are closer to each other than n says")
    return found


def _moved(window: dict[str, Any]) -> float:
    lines: dict[str, float] = window["lines"]
    return sum(lines[kind] for kind in MOVED)


def _cell(measured: dict[str, Any]) -> dict[str, Any]:
    """Means over its windows, latencies over all of their requests."""
    windows = measured["windows"]

    def of(*path: str) -> float:
        values: list[Any] = windows
        for word in path:
            values = [each[word] for each in values]
        return float(round(mean(values), 3))

    totals = [sum(each["instructions"].values()) for each in windows]
    took_us = [us for each in windows for us in each["took_us"]]
    local = [each["read_locality"] for each in windows if each.get("read_locality") is not None]
    return {
        "server": measured["server"],
        "pinned": measured["pinned"],
        "load": measured["load"],
        "cpus": measured["cpus"],
        "connections": measured["connections"],
        "contender": measured["contender"],
        "windows": len(windows),
        "requests": sum(each["requests"] for each in windows),
        "instructions_per_request": round(mean(totals), 1),
        "spread": round((max(totals) - min(totals)) / mean(totals), 4),
        "instructions_by_mode": {mode: of("instructions", mode) for mode in MODES},
        "instructions_on_the_busiest_cpu": of("busiest_instructions"),
        "instructions_on_the_daemons_cpu": of("daemons_instructions"),
        "lines_per_request": round(mean(map(_moved, windows)), 2),
        "lines_by_kind": {kind: of("lines", kind) for kind in KINDS},
        "estimate_ns": {each: of("ns", each) for each in LATENCIES_NS},
        "estimate_ns_on_the_busiest_cpu": {each: of("busiest_ns", each) for each in LATENCIES_NS},
        "ipis_per_request": of("ipis"),
        "interrupts_per_request": of("interrupts"),
        "requests_per_s": of("requests_per_s"),
        "p50_us": round(quantile(took_us, 0.5).value, 2) if took_us else None,
        "p99_us": round(quantile(took_us, 0.99).value, 2) if len(took_us) >= ENOUGH else None,
        "read_locality": round(mean(local), 3) if local else None,
    }
