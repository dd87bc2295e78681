# SPDX-License-Identifier: GPL-2.0-or-later
"""What observing and deciding execute, counted in the counted guest: the BPF programs of the
daemon, armed, while redis answers as in cells.py; and then the engine by itself (deciding.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.counted import cells
from bench.counted.deciding import FLOWS, Decider
from bench.counted.deciding import measure as decided
from bench.counted.observed import figures
from bench.counted.programs import Program, programs

__all__ = ["measure"]

RANGES = Path("/run/guest/programs")  # for start.sh


def measure(rounds: int) -> dict[str, Any]:
    """Windows, and figures by what they are of. OperatorError: as in `cells.measure`."""
    listed: list[Program] = []
    deciders = list(map(Decider, FLOWS))  # before anything is instrumented, which is slow

    def list_programs() -> None:
        listed.extend(programs())
        RANGES.write_text("".join(f"{each.begin:x} {each.end:x}\n" for each in listed))

    wanted = cells.Wanted("redis", True, min(cells.CLIENTS), None, [("saturated", "atfnd")])
    (cell,) = cells.measure(rounds, json.dumps(wanted), list_programs)["cells"]
    names, windows = [each.name for each in listed], cell["windows"]
    return {
        "requests": sum(window["requests"] for window in windows),
        "figures": figures(names, windows) | decided(deciders, cells.COUNTS),
        "windows": windows,
        "names": names,
    }
