# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables that fit a terminal: which columns they have at a width, in which order they lose them.

No cell is ever cut off, so an address stays whole. Where the columns do not fit side by side, a
sentence comes below its row, indented and wrapped. If that is not enough, columns are left out, and
a last line names them. docs/api.md has the orders, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

__all__ = ["FLOW_COLUMNS", "ORDERS", "WIDE", "Grid", "Order", "wrapped"]

WIDE = 400  # columns when the output is no terminal: everything is on one line, for grep
_GAP = "  "
_INDENT = "    "


class Order(NamedTuple):
    """What a narrow table does, in this order: `below` goes below the rows, then columns are left
    out from the first one on. Only if that is not enough, `last` goes below the rows as well."""

    left_out: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    last: tuple[str, ...] = ()


# The order for flows, in `atfnctl flows` and in `atfnctl top`; the first is left out first.
FLOW_COLUMNS = (
    "HOME", "HABIT", "AGE", "RULE", "NIC", "PROTO", "LOCAL", "REMOTE", "FILTER", "BYTES", "TID",
    "TARGET", "WHY", "RX-QUEUE", "COMM", "PLACED", "STATE",
)  # fmt: skip
_WHOLE = ("PROTO", "LOCAL", "REMOTE", "WHY")  # `flows` keeps them; top has them on a line below
_DISTANCES = ("OFF-NODE", "OFF-LLC", "OFF-CORE")

ORDERS = {
    "flows": Order(
        tuple(name for name in FLOW_COLUMNS if name not in _WHOLE), ("WHY",), ("REMOTE", "LOCAL")
    ),
    "queues": Order(
        ("HELD-BY", "RECEPTION", "PID", "THREADED", "ALLOWED", "NAPI", "BY-RSS", "BY-FILTER", "IRQ",
         "PACKETS", "FILTERS"),
        last=("OWNER",),
    ),
    "nics": Order(
        ("NETNS", "SLOTS", "MOST", "HASH", "CONFLICTS", "PROBED", "CLASS", "NODE", "RING",
         "FOREIGN", "OURS", "DROPS", "DRIVER", "FILTERS", "UP", "QUEUES"),
        ("WHY",),
    ),
    "filters": Order(("HITS", "OURS"), ("MATCH",)),
    "topology": Order(
        ("LLC", "PACKAGE", "ISOLATED", "SMT", "CORE", "ONLINE"), ("QUEUES",)
    ),
    "nodes": Order(("DISTANCES",), ("CPUS",), ("NICS",)),
    "rules": Order(("ORDER", "FILTERS", "BYTES", "PLACED", "FLOWS"), ("SOURCE",), ("PLACEMENT",)),
    "matched": Order(("STATE", "COMM"), ("SOURCE",), ("REMOTE", "LOCAL")),
    "applications": Order(
        ("UNKNOWN", "PROCESSES", "WANDERING", "SETTLED", "PINNED", *_DISTANCES),
        last=("APPLICATION",),
    ),
    "threads": Order(
        ("CALLS", "CPUS", "BY", "PID", "HOME", *_DISTANCES), last=("APPLICATION",)
    ),
    "gains": Order(("PROBED", *_DISTANCES)),
    "pairs": Order(("BYTES/S", "RXQ", "TXQ"), last=("IN", "OUT")),
    "measured": Order(("PAIRS", "UNIT", "PERCENT")),
}  # fmt: skip


class _Layout(NamedTuple):
    """Numbers of columns."""

    beside: Sequence[int]
    below: Sequence[int]
    left_out: Sequence[int]


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells in columns. A column whose name has a leading `>` holds numbers. `empty` says why there
    is no row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    order: Order
    empty: str = ""

    def lines(self, width: int | None) -> Iterator[Text]:
        """None: every column on one line, and a header in any case, as scripts want it."""
        if width is not None and self.empty and not self.rows:
            yield from map(_line, wrapped(self.empty, width, "", _INDENT))
            return
        names = [name.removeprefix(">") for name in self.columns]
        widths = [max(map(cell_len, cells)) for cells in zip(names, *self.rows, strict=True)]
        layout = self._layout(names, widths, width)
        yield _line(self._beside(names, layout, widths), "bold")
        below = [n for n in layout.below if any(row[n] != "-" for row in self.rows)]
        yield from (_line(_INDENT + names[n], "bold") for n in below)
        for row in self.rows:
            yield _line(self._beside(row, layout, widths))
            for n in below:
                cell = "" if row[n] == "-" else row[n]
                yield from map(_line, wrapped(cell, width or WIDE, _INDENT, _INDENT))
        if layout.left_out and width is not None:
            missing = ", ".join(names[n] for n in layout.left_out)
            note = f"left out at this width: {missing}; --json has all"
            yield from map(_line, wrapped(note, width, "", _INDENT))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width if options.max_width < WIDE else None)

    def _layout(self, names: Sequence[str], widths: Sequence[int], width: int | None) -> _Layout:
        """The first that fits, of those that the order has; else the narrowest."""
        order = self.order
        layout = _Layout(range(len(names)), (), ())
        stages = [order.below + order.last[:more] for more in range(len(order.last) + 1)]
        for below, most in [((), 0), *((each, len(order.left_out)) for each in stages)]:
            for count in range(most + 1):
                gone = order.left_out[:count]
                layout = _Layout(
                    [n for n, name in enumerate(names) if name not in (*below, *gone)],
                    [names.index(name) for name in below],
                    [names.index(name) for name in gone],
                )
                if width is None or _across(layout.beside, widths) <= width:
                    return layout
        return layout

    def _beside(self, row: Sequence[str], layout: _Layout, widths: Sequence[int]) -> str:
        padded = (_padded(row[n], widths[n], self.columns[n][0] == ">") for n in layout.beside)
        return _GAP.join(padded).rstrip()


def _across(columns: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[n] for n in columns) + len(_GAP) * (len(columns) - 1)


def _padded(cell: str, width: int, right: bool) -> str:
    blank = " " * (width - cell_len(cell))
    return blank + cell if right else cell + blank


def _line(line: str, style: str = "") -> Text:
    return Text(line, style, no_wrap=True, overflow="ignore")


def wrapped(words: str, width: int, first: str, more: str) -> Iterator[str]:
    """Lines of whole words, the first one after `first`, the others after `more`. A word that is
    longer than a line is not cut. No words are no line."""
    if not words:
        return
    start, *others = words.split(" ")
    line = first + start
    for word in others:
        if cell_len(line) + 1 + cell_len(word) > width:
            yield line.rstrip()
            line = more + word
        else:
            line += f" {word}"
    yield line
