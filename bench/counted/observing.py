# SPDX-License-Identifier: GPL-2.0-or-later
"""What observing and deciding execute, counted in the counted guest: the BPF programs of the
daemon, armed, while redis answers as in cells.py; and then the engine by itself (deciding.py)."""

from __future__ import annotations

from typing import Any

from bench.counted import cells, programs
from bench.counted.deciding import FLOWS, Decider
from bench.counted.deciding import measure as decided
from bench.counted.observed import figures

__all__ = ["measure"]


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
