# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs that have a place each in tables: a group, a row (who) and a column (how much). Medians over
the rounds, tables of them in build/bench/NAME.md, and curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from bench import plot, report
from bench.stats import Estimate, median, ratios

__all__ = ["Figure", "Grid"]

R = TypeVar("R", bound=NamedTuple)


class Figure(NamedTuple):
    """A quantity: fields of a run, which share a cell. `group`: of this one only."""

    title: str
    fields: tuple[str, ...]
    scale: float = 1.0
    group: str = ""


class Grid(Generic[R]):
    """Runs by group, row and column, each in the order in which it came; columns ascend."""

    def __init__(self, runs: Iterable[tuple[str, str, float, R]]) -> None:
        self._cells: dict[tuple[str, str, float], list[R]] = {}
        for group, row, column, run in runs:
            self._cells.setdefault((group, row, column), []).append(run)
        self.groups = list(dict.fromkeys(group for group, _, _ in self._cells))

    def rows(self, group: str) -> list[str]:
        return list(dict.fromkeys(row for each, row, _ in self._cells if each == group))

    def columns(self, group: str) -> list[float]:
        return sorted({column for each, _, column in self._cells if each == group})

    def has(self, group: str, *rows: str) -> bool:
        """Each of these rows is measured in it."""
        return {*rows} <= {*self.rows(group)}

    def values(self, field: str, group: str, row: str, column: float) -> list[float]:
        """By round; without those of which it is not known."""
        found = (getattr(run, field) for run in self._cells.get((group, row, column), ()))
        return [float(value) for value in found if value is not None]

    def value(self, field: str, group: str, row: str, column: float) -> float:
        """The median."""
        return median(self.values(field, group, row, column)).value

    def line(self, field: str, group: str, row: str) -> list[float]:
        """Medians by column."""
        return [self.value(field, group, row, column) for column in self.columns(group)]

    def ratio(self, field: str, group: str, ours: str, rival: str, column: float) -> Estimate:
        """Of what both took in a round."""
        one, other = (self.values(field, group, row, column) for row in (ours, rival))
        return ratios(one, other)

    def write(
        self, name: str, figures: Sequence[Figure], heads: Callable[[float], str] = "{:.0%}".format
    ) -> Path:
        """A table for each figure and group: medians [and intervals]; its path."""
        tables = [
            f"{group}: {figure.title}\n\n{self._table(figure, group, heads)}"
            for group in self.groups
            for figure in figures
            if figure.group in ("", group)
        ]
        report.FOLDER.mkdir(parents=True, exist_ok=True)
        path = report.FOLDER / f"{name}.md"
        path.write_text("\n\n".join(tables) + "\n")
        return path

    def _table(self, figure: Figure, group: str, heads: Callable[[float], str]) -> str:
        columns = self.columns(group)
        lines = [["", *map(heads, columns)], ["---", *("---:" for _ in columns)]]
        for row in self.rows(group):
            found = ((self.values(f, group, row, at) for f in figure.fields) for at in columns)
            lines.append([row, *(" \\| ".join(_text(figure, of) for of in cell) for cell in found)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def draw(self, name: str, title: str, across: str, figure: Figure, scale: float = 100) -> None:
        """Curves of the first field, a picture for each group."""
        for group in self.groups:
            series = {
                row: [figure.scale * value for value in self.line(figure.fields[0], group, row)]
                for row in self.rows(group)
            }
            at = [scale * column for column in self.columns(group)]
            plot.curves(f"{name}-{group}", f"{title}, {group}", across, figure.title, at, series)


def _text(figure: Figure, values: Sequence[float]) -> str:
    if not values:
        return ""
    return median(figure.scale * value for value in values).text()
