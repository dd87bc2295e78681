# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of a bench that has more figures than a terminal shows: build/bench/NAME.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import report

__all__ = ["Section", "table", "write_sections"]


class Section(NamedTuple):
    """A table and what it shows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown; the first column is left, others are right."""
    under = ["---", *("---:" for _ in head[1:])]
    lines = [head, under, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_sections(name: str, sections: Sequence[Section]) -> Path:
    """All of them in one file; its path."""
    report.FOLDER.mkdir(parents=True, exist_ok=True)
    path = report.FOLDER / f"{name}.md"
    path.write_text(
        "\n\n".join(f"{each.title}\n\n{table(each.head, each.rows)}" for each in sections) + "\n"
    )
    return path
