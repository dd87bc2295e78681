# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a table has no row, in a sentence, where the daemon's answer has none: it does not know which
rows were asked for. A number that the daemon does not give is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from atfnd.ctl.client import Row
from atfnd.ctl.columns import Grid
from atfnd.ctl.output import text
from atfnd.ctl.tables import span

__all__ = ["explained", "no_events", "no_filters"]


def explained(grid: Grid, why: Callable[[], str | None]) -> Grid:
    """The daemon is asked for the reason only if there is no row."""
    return grid if grid.rows else replace(grid, empty=text(why() or ""))


def no_filters(answer: Row, names: Collection[str]) -> str:
    """`answer`: all interfaces. Of each that is named: whether its table is empty, or whether it
    has none."""
    nics = [row for row in answer["nics"] if row["nic"] in names]
    return str(answer["why_empty"] or "no filter in " + ", ".join(map(_without_filters, nics)))


def _without_filters(nic: Row) -> str:
    slots = nic["filter_slots"]
    method = text(nic["method"])
    room = f"room for {slots}, " if slots else ""
    state = "paused" if nic["paused"] else "armed" if nic["armed"] else "not armed"
    return f"{text(nic['nic'])} ({room}{state}, steering method {method})"


def no_events(kept: int, status: Row, only: Mapping[str, object]) -> str:
    """`kept`: how many the daemon has, whatever they are."""
    if not kept:
        return f"no event yet; the daemon has been up for {span(status['uptime_s'])}"
    return f"no event has {_words(only)}; {_count(kept, 'event')} kept"


def _words(only: Mapping[str, object]) -> str:
    """`state wanted, nic eth0`."""
    return ", ".join(f"{name} {text(value)}" for name, value in only.items() if value is not None)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
