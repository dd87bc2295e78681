# SPDX-License-Identifier: GPL-2.0-or-later
"""Which flows are shown, and in which order, as the keys chose. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from atfnd.ctl.columns import FLOW_COLUMNS
from atfnd.ctl.output import text
from atfnd.ctl.top.figures import FlowFigure

__all__ = ["COLUMNS", "HELP", "Column", "View", "fitting", "press", "shown"]


class Column(NamedTuple):
    """A column of the flow table; `width` 0: the remaining width. `flows_name` is its name in
    `atfnctl flows`, and in the order in which columns are left out; without one it is always
    there."""

    name: str
    of: Callable[[FlowFigure], object]
    width: int
    flows_name: str = ""

    @property
    def number(self) -> bool:
        """Numbers are right-aligned, and the highest comes first."""
        return self.name in _NUMBERS


_NUMBERS = {"BIT/S", "PID", "CPU", "RXQ", "RX", "TO"}
_ADDRESSES = {"LOCAL", "REMOTE"}
_WHY = 18  # cells of WHY, at least; the flow at hand has it in full
COLUMNS = (
    Column("BIT/S", lambda flow: flow.bits_per_s, 6),
    Column("COMM", lambda flow: flow.comm, 15, "COMM"),
    Column("PID", lambda flow: flow.pid, 7),
    Column("CPU", lambda flow: flow.app_cpu, 4),
    Column("RXQ", lambda flow: flow.rx_queue, 4, "RX-QUEUE"),
    Column("RX", lambda flow: flow.rx_cpu, 4),
    Column("TO", lambda flow: flow.target_cpu, 4, "TARGET"),
    Column("PLACED", lambda flow: flow.placed, 6, "PLACED"),
    Column("STATE", lambda flow: flow.state, 8, "STATE"),
    Column("PROTO", lambda flow: flow.proto, 5, "PROTO"),
    Column("LOCAL", lambda flow: flow.local, 21, "LOCAL"),
    Column("REMOTE", lambda flow: flow.remote, 21, "REMOTE"),
    Column("NIC", lambda flow: flow.nic, 15, "NIC"),
    Column("RULE", lambda flow: flow.rule, 12, "RULE"),
    Column("WHY", lambda flow: flow.why, 0, "WHY"),
)


def fitting(width: int, flows: Iterable[FlowFigure]) -> list[Column]:
    """The columns that fit, in the order of `FLOW_COLUMNS`. Addresses of these flows stay whole."""
    address = max((len(end) for flow in flows for end in (flow.local, flow.remote)), default=0)
    columns = [
        each._replace(width=max(each.width, address)) if each.name in _ADDRESSES else each
        for each in COLUMNS
    ]
    for name in FLOW_COLUMNS:
        if sum((column.width or _WHY) + 1 for column in columns) - 1 <= width:
            break
        columns = [column for column in columns if column.flows_name != name]
    return columns


HELP = (
    ("up, down, PgUp, PgDn, Home, End", "go through the flows; j and k, too"),
    ("left, right or < >", "the column to sort by"),
    ("r", "the other way round"),
    ("/", "only flows with all these words; Enter keeps, Esc drops them"),
    ("p or space", "pause, and go on"),
    ("f", "forwarded packets instead of flows, counted while this is shown"),
    ("a", "all flows, also those without an entry; and back"),
    ("q or Ctrl-C", "quit"),
    ("h or ?", "this; any key ends it"),
)


@dataclass(frozen=True, slots=True)
class View:
    """`typed` is the text of a filter that is being typed; `at` counts flows, or forwarded pairs,
    `first` is the one in the first line."""

    column: int = 0
    turned: bool = False
    words: str = ""
    typed: str | None = None
    paused: bool = False
    help: bool = False
    forwarded: bool = False
    unsteered: bool = False  # flows without an entry, too
    at: int = 0
    first: int = 0
    over: bool = False  # the operator has seen enough

    @property
    def order(self) -> tuple[int, bool, str]:
        """What `shown` depends on."""
        return self.column, self.turned, self.wanted

    @property
    def wanted(self) -> str:
        """The filter in force: as it is typed."""
        return self.words if self.typed is None else self.typed

    def within(self, rows: int, lines: int) -> View:
        """With so many of them, and so many lines for them: `at` is one of them, and is shown."""
        at = max(0, min(self.at, rows - 1))
        last_first = max(0, rows - lines)
        first = min(max(self.first, at - max(lines, 1) + 1), at, last_first)
        return replace(self, at=at, first=max(0, first))


def press(view: View, key: str, lines: int) -> View:
    """What a key does; `lines` is a page. A key without a meaning does nothing."""
    if key == "ctrl-c":
        return replace(view, over=True)
    if view.help:
        return replace(view, help=False)
    if view.typed is not None:
        return _type(view, view.typed, key)
    match key:
        case "q":
            return replace(view, over=True)
        case "/":
            return replace(view, typed="")
        case "esc":
            return replace(view, words="", at=0)
        case "r":
            return replace(view, turned=not view.turned)
        case "p" | " ":
            return replace(view, paused=not view.paused)
        case "f":
            return replace(view, forwarded=not view.forwarded, at=0, first=0)
        case "a":
            return replace(view, unsteered=not view.unsteered, at=0, first=0)
        case "h" | "?":
            return replace(view, help=True)
        case "left" | "<" | "right" | ">":
            step = -1 if key in ("left", "<") else 1
            return replace(view, column=(view.column + step) % len(COLUMNS), turned=False)
    steps = {
        "up": -1, "k": -1, "down": 1, "j": 1, "pgup": -lines, "pgdn": lines,
        "home": -view.at, "end": 1 << 40,
    }  # fmt: skip
    return replace(view, at=max(0, view.at + steps.get(key, 0)))


def _type(view: View, typed: str, key: str) -> View:
    match key:
        case "enter":
            return replace(view, words=typed, typed=None, at=0)
        case "esc":
            return replace(view, words="", typed=None, at=0)
        case "backspace":
            return replace(view, typed=typed[:-1])
        case "ctrl-u":
            return replace(view, typed="")
    return replace(view, typed=typed + key) if len(key) == 1 else view


def shown(flows: Iterable[FlowFigure], view: View) -> list[FlowFigure]:
    """Those that the filter leaves, in the view's order."""
    wanted = view.wanted.casefold().split()
    if wanted:
        flows = (flow for flow in flows if all(word in _line(flow) for word in wanted))
    return _ordered(flows, COLUMNS[view.column], view.turned)


def _line(flow: FlowFigure) -> str:
    """What a wide table shows of a flow, without its rate."""
    values = (column.of(flow) for column in COLUMNS if column.name != "BIT/S")
    return " ".join(map(text, values)).casefold()


def _ordered(flows: Iterable[FlowFigure], column: Column, turned: bool) -> list[FlowFigure]:
    """Numbers from the highest down, words from A on, or the other way round. Unknown values come
    last; equal ones are sorted by address, so that they keep their place."""
    rows = sorted(flows, key=lambda flow: (flow.nic, flow.proto, flow.local, flow.remote))
    known = [flow for flow in rows if column.of(flow) is not None]
    unknown = [flow for flow in rows if column.of(flow) is None]
    if column.number:
        known.sort(key=lambda flow: _number(column.of(flow)), reverse=not turned)
    else:
        known.sort(key=lambda flow: text(column.of(flow)).casefold(), reverse=turned)
    return known + unknown


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
