# SPDX-License-Identifier: GPL-2.0-or-later
"""The second paper's forwarding host on the counted machine, by where three interrupts go: two
ports receive, a third sends. A package has four CPUs; the generator has the last CPU.

A request is a frame of 64 bytes here, counted when its BPF program runs in the sink, so that the
edges of a window are exact.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.bed import succeed
from bench.counted import cells, programs
from bench.counted.counts import marks, windows
from bench.forwarder import RECEIVERS, SENDER, built, offered
from bench.sim_forwarder import sim_forwarder

__all__ = ["PORTS", "measure"]

CPUS, PORTS, FLOWS = 8, 6, 32
MODES = {"0": (0, 0, 0), "I": (0, 1, 4), "II": (0, 4, 1)}  # CPUs of both receivers, the sender
# Of the guest's time, in which a CPU is eight times slower. With four times as many the generator's
# CPU executes less than others, and windows are refused.
PPS = 2_000
WARM_MS, WINDOW_MS, WINDOWS, SECONDS = 50, 240, 2, 30


def measure(rounds: int) -> dict[str, Any]:
    """As `cells.measure`."""
    about = {"server": "forwarder", "pinned": True, "cpus": CPUS, "connections": FLOWS}
    return cells.collected(about, _found(rounds))


def _found(rounds: int) -> Iterator[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        sim_forwarder(built(Path(folder)), dma=True) as bed,
    ):
        watcher = bed.cpus[-1]
        os.sched_setaffinity(0, {watcher})
        arrives = programs.counted().index("arrive")
        cells.start(CPUS)
        times = (WARM_MS, WINDOW_MS, WINDOWS * rounds)
        watch = " ".join(map(str, ("./load", "watch", watcher, *times, "spinidle.ko")))
        for mode, cpus in MODES.items():
            bed.place(dict(zip((*RECEIVERS, SENDER), cpus, strict=True)))
            with offered(bed.host, PPS, SECONDS, "64", bed.generators_cpu):
                lines = succeed("sh", "-c", f"cd {cells.COPIED} && {watch}").splitlines()
            said = [json.loads(line) for line in lines]
            counted = marks(cells.COUNTS.read_text())[-2 * len(said) :]
            every = []
            for window, one in zip(
                windows(counted, [one["ns"] for one in said]), said, strict=True
            ):
                frames = sum(cpu.runs[arrives] for cpu in window)
                here = sorted(set(cpus))
                every.append(cells.figures({**one, "requests": frames}, window, here))
            yield {"load": "light", "contender": mode, "windows": every}
