# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a table has no row, in a sentence. A number that the daemon does not give is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from atfnd.ctl.client import Row
from atfnd.ctl.columns import Grid
from atfnd.ctl.output import text
from atfnd.ctl.tables import METHODS, locality, span

__all__ = ["explained", "no_events", "no_filters", "no_flows", "no_nics", "no_queues"]

_NO_NIC = "no interface is watched: `atfnctl doctor NIC` says why"
_NO_ROW = "small or young flows, and those that the policy leaves alone, have no row"


def explained(grid: Grid, why: Callable[[], str]) -> Grid:
    """The daemon is asked for the reason only if there is no row."""
    return grid if grid.rows else replace(grid, empty=why())


def no_flows(status: Row, nics: Sequence[Row], only: Mapping[str, object]) -> str:
    """`only`: what the rows were filtered by; None for a filter that was not given."""
    wanted = _words(only)
    if wanted:
        return f"no flow has {wanted}; {_count(status['table_entries'], 'flow')} in the table"
    if not nics:
        return _NO_NIC
    watched = f"{_count(len(nics), 'interface')} watched"
    said = ["no misdelivered flow in the table", watched, locality(status)]
    remote = any(nic["recent"]["remote"] for nic in status["reads"] or ())
    return "; ".join([*said, _NO_ROW] if remote else said)


def no_queues(nic: str | None) -> str:
    return _NO_NIC if nic is None else f"no receive queue of {text(nic)} is known"


def no_nics() -> str:
    return _NO_NIC


def no_filters(nics: Sequence[Row]) -> str:
    """Of each interface: whether its table is empty, or whether it has none."""
    if not nics:
        return _NO_NIC
    return "no filter in " + ", ".join(map(_without_filters, nics))


def _without_filters(nic: Row) -> str:
    slots = nic["filter_slots"]
    method = METHODS.get(nic["method"], text(nic["method"]))
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
