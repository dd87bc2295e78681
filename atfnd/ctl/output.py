# SPDX-License-Identifier: GPL-2.0-or-later
"""Standard output: lines, JSON, tables. Names are shown without control characters."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from atfnd.ctl.client import Row
from atfnd.ctl.columns import WIDE, Grid

__all__ = ["OutputClosed", "say", "say_empty", "say_json", "say_json_list"]
__all__ += ["show", "show_lines", "text", "watch", "width"]


class OutputClosed(Exception):
    """Our standard output was closed at its other end."""


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise OutputClosed


def _console() -> Console:
    columns = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return _Console(width=columns, markup=False, highlight=False, emoji=False)


def width() -> int | None:
    """Of a line. None: however long, for scripts."""
    columns = _console().width
    return columns if columns < WIDE else None


def say_empty(why: str) -> None:
    """Why there is nothing to show; in a pipe it is not among the output."""
    if width() is None:
        print(why, file=sys.stderr)
    else:
        say(why)


def say(line: str) -> None:
    """One line, at once."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        raise OutputClosed from None


def say_json(value: object) -> None:
    say(json.dumps(value, indent=2))


def say_json_list(rows: Iterable[Row]) -> None:
    """A JSON list, one row a line, written as the rows come."""
    opening = "["
    try:
        for row in rows:
            print(opening, json.dumps(row), sep="\n", end="")
            opening = ","
        print("[]" if opening == "[" else "\n]", flush=True)
    except BrokenPipeError:
        raise OutputClosed from None


def show(table: Grid | Table) -> None:
    """In a pipe, why a table is empty is not among its rows."""
    _console().print(table, crop=False)
    if isinstance(table, Grid) and width() is None and not table.rows and table.empty:
        say_empty(table.empty)


def show_lines(lines: Callable[[int], Iterable[Text]]) -> None:
    """Lines for a width."""
    console = _console()
    for line in lines(console.width):
        console.print(line, no_wrap=True, crop=True)


def watch(table: Callable[[], Grid], interval_s: float) -> None:
    """Show a table again and again until Ctrl-C; if the output is no terminal, one below the
    other."""
    console = _console()
    try:
        if not console.is_terminal:
            while True:
                console.print(table(), "", crop=False)
                time.sleep(interval_s)
        with Live(table(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                live.update(table(), refresh=True)
    except KeyboardInterrupt:
        return


def text(value: object) -> str:
    """A value of an answer as a table shows it; `-` for an unknown one."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ",".join(map(str, value)) or "-"
        case _:
            return "".join(c if c.isprintable() else "?" for c in str(value))
