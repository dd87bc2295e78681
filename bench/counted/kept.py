# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m bench machine`: measures cells of the counted machine, and keeps them in the tree, in
`bench/machine.json`, each with the commit that it was measured at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import guest
from bench.bed import succeed
from bench.counted.cells import SERVED
from bench.counted.costs import LATENCIES
from bench.counted.counts import LATENCIES_NS
from bench.report import Report
from bench.servers import PACKAGES, PACKED
from tests.guest.fetch import programs

__all__ = ["CELLS", "cells", "keep", "run"]

CELLS = Path(__file__).parents[1] / "machine.json"
KEY = ("server", "pinned", "load", "cpus", "connections", "contender")


def run(rounds: int, server: str = SERVED[0], only: Sequence[str] = ()) -> Report:
    """Of all contenders, or only these."""
    programs(PACKED, *PACKAGES)  # the guest has no network
    found = guest.run("machine", rounds, [server, *only])
    keep(found, succeed("git", "rev-parse", "--short", "HEAD").strip())
    found.notes.append(f"its cells are in {CELLS.parent.name}/{CELLS.name}")
    return found


def cells(path: Path = CELLS) -> list[dict[str, Any]]:
    """Those of the tree."""
    kept: list[dict[str, Any]] = json.loads(path.read_text())["cells"] if path.exists() else []
    return kept


def keep(found: Report, commit: str, path: Path = CELLS) -> None:
    """Write its cells into the file; those of another server or contender stay."""
    kept = {tuple(each[word] for word in KEY): each for each in cells(path)}
    for each in found.samples["cells"]:
        kept[tuple(each[word] for word in KEY)] = {**each, "commit": commit}
    document = {"estimates": LATENCIES, "latencies_ns": LATENCIES_NS, "cells": [*kept.values()]}
    path.write_text(json.dumps(document, indent=1) + "\n")
