# SPDX-License-Identifier: GPL-2.0-or-later
"""What a bench found: written as JSON, printed as a table, targets beside results.

A missed target is reported, never raised: benches measure, tests judge.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.machine import Machine, machine
from bench.stats import Estimate

__all__ = ["FOLDER", "Report", "Row", "Target", "show", "write"]

FOLDER = Path("build/bench")


class Row(NamedTuple):
    """One line of the table: what was measured, on whom, and the estimate in `unit`."""

    what: str
    contender: str
    unit: str
    estimate: Estimate


class Target(NamedTuple):
    """A bound the project set itself, and what was reached."""

    what: str
    reached: float
    bound: float
    at_least: bool
    unit: str

    @property
    def met(self) -> bool:
        return self.reached >= self.bound if self.at_least else self.reached <= self.bound

    def text(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if self.met else "missed"
        return (
            f"{self.what}: {self.reached:.4g} {self.unit}, target {sign} {self.bound:g}: {verdict}"
        )


@dataclass(slots=True)
class Report:
    """One bench's findings; `samples` is everything measured, so that others can recompute."""

    name: str
    about: str
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)
    machine: Machine = field(default_factory=machine)

    def add(self, what: str, contender: str, unit: str, estimate: Estimate) -> Estimate:
        """Add a row and hand its estimate back."""
        self.rows.append(Row(what, contender, unit, estimate))
        return estimate

    def at_most(self, what: str, reached: float, bound: float, unit: str = "×") -> None:
        """Hold a result against a bound."""
        self.targets.append(Target(what, reached, bound, False, unit))

    def at_least(self, what: str, reached: float, bound: float, unit: str = "×") -> None:
        """The same, from below."""
        self.targets.append(Target(what, reached, bound, True, unit))


def write(report: Report) -> Path:
    """Write `build/bench/NAME.json` and return its path."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{report.name}.json"
    document = {
        "name": report.name,
        "about": report.about,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine._asdict(),
        "rows": [{**row._asdict(), "estimate": row.estimate._asdict()} for row in report.rows],
        "targets": [{**target._asdict(), "met": target.met} for target in report.targets],
        "notes": report.notes,
        "samples": report.samples,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def show(report: Report, console: Console) -> None:
    """Print the table, the targets and the notes."""
    host = report.machine
    memory = host.memory_bytes / 2**30
    table = Table(
        title=f"{report.name}: {report.about}",
        caption=f"{host.cpu}, {host.cpus} CPUs, {memory:.0f} GiB, Linux {host.kernel}, "
        f"load {host.load[0]:.1f}",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("what", "contender"):
        table.add_column(name)
    for name in ("median [95 % interval]", "n"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for row in report.rows:
        cut = "" if row.estimate.coverage >= 0.95 else f" ({row.estimate.coverage:.0%})"
        table.add_row(
            row.what, row.contender, row.estimate.text() + cut, str(row.estimate.n), row.unit
        )
    console.print(table)
    for target in report.targets:
        console.print(target.text(), style="green" if target.met else "red")
    for note in report.notes:
        console.print(f"note: {note}")
