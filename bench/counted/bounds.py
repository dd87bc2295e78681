# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m bench observed`: counts what observing executes, and keeps it in the tree, in
`bench/observed.json`. A test counts again and compares."""

from __future__ import annotations

import json
from pathlib import Path

from bench import guest
from bench.counted.observed import Figures
from bench.report import Report
from bench.servers import PACKAGES, PACKED
from tests.guest.fetch import programs

__all__ = ["FILE", "ROUNDS", "count", "kept", "run"]

FILE = Path(__file__).parents[1] / "observed.json"
ROUNDS = 1  # two windows of 670 requests


def count(rounds: int) -> Report:
    """In a guest."""
    programs(PACKED, *PACKAGES)  # the guest has no network
    return guest.run("observed", rounds)


def kept(path: Path = FILE) -> Figures:
    """Those of the tree."""
    found: Figures = json.loads(path.read_text())["figures"]
    return found


def run(rounds: int) -> Report:
    """Count, and replace what was kept."""
    found = count(rounds)
    figures = {what: round(each, 3) for what, each in found.samples["figures"].items()}
    document = {"requests": found.samples["requests"], "figures": figures}
    FILE.write_text(json.dumps(document, indent=1) + "\n")
    found.notes.append(f"kept in {FILE.parent.name}/{FILE.name}")
    return found
