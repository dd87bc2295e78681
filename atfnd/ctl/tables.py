# SPDX-License-Identifier: GPL-2.0-or-later
"""API objects to tables on standard output. Names from processes are shown without controls."""

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

from atfnd.ctl.client import Row

__all__ = [
    "OutputClosed",
    "event_line",
    "flow_table",
    "nic_table",
    "queue_table",
    "rule_table",
    "say",
    "say_explanation",
    "say_json",
    "say_json_list",
    "show",
    "status_table",
    "topology_table",
    "watch",
]

WIDE = 400  # columns when the output is no terminal: nothing is cut off for grep


class OutputClosed(Exception):
    """Nobody reads our standard output any more."""


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise OutputClosed


def _console() -> Console:
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return _Console(width=width, markup=False, highlight=False, emoji=False)


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


def say_explanation(answer: Row) -> None:
    """The chain, link by link; what it comes to; what to do about it."""
    for link in answer["chain"]:
        say(f"  {_text(link)}")
    say(f"=> {_text(answer['verdict'])}")
    if answer["advice"]:
        say(f"do: {_text(answer['advice'])}")


def show(table: Table) -> None:
    _console().print(table)


def watch(table: Callable[[], Table], interval_s: float) -> None:
    """Show a table anew until Ctrl-C; on what is no terminal, one below the other."""
    console = _console()
    try:
        if not console.is_terminal:
            while True:
                console.print(table(), "")
                time.sleep(interval_s)
        with Live(table(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                live.update(table(), refresh=True)
    except KeyboardInterrupt:
        return


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ",".join(map(str, value)) or "-"
        case _:
            return "".join(c if c.isprintable() else "?" for c in str(value))


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Columns named with a leading `>` hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _span(seconds: float) -> str:
    """`1.5s`, `3m20s`, `2h05m`, `4d03h`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def _size(count: int) -> str:
    """Bytes in binary units."""
    amount = float(count)
    for unit in ("", "K", "M", "G", "T"):
        if amount < 1024:
            return f"{amount:.0f}{unit}" if not unit else f"{amount:.1f}{unit}"
        amount /= 1024
    return f"{amount:.1f}P"


def status_table(status: Row) -> Table:
    states = ", ".join(f"{count} {state}" for state, count in status["flows_by_state"].items())
    entries, capacity = status["table_entries"], status["table_capacity"]
    fill = f" ({entries / capacity:.1%})" if capacity else ""
    locality = status["locality"]
    local = (
        "not measured"
        if locality is None
        else f"{locality:.2%} of the table's bytes on the application's core"
    )
    applied, refused = status["actions_applied"], status["actions_refused"]
    rows = [
        ("atfnd", f"{status['version']}, pid {status['pid']}, up {_span(status['uptime_s'])}"),
        ("observer", f"{status['observer']}: {status['observer_why']}"),
        ("armed", ", ".join(status["armed"]) or "none: observing only"),
        ("policies", ", ".join(status["policy_files"]) or "built in"),
        ("table", f"{entries} of {capacity} flows{fill}, t_delete {status['t_delete_s']:g} s"),
        ("flows", states or "none"),
        ("locality", local),
        ("overflow", f"{status['overflow']} flows found the table or the NIC full"),
        ("actions", f"{applied} applied, {refused} refused"),
        ("events lost", f"{status['events_lost']}, {status['resyncs']} re-syncs"),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, _text(value))
    return table


def flow_table(rows: Iterable[Row]) -> Table:
    columns = (
        "PROTO", "LOCAL", "REMOTE", ">TID", "COMM", ">APP-CPU", ">RX-QUEUE", ">RX-CPU",
        ">TARGET", "PLACED", "STATE", ">RULE", ">BYTES", ">AGE", "NIC", "POLICY", "WHY",
    )  # fmt: skip
    names = "proto local remote tid comm app_cpu rx_queue rx_cpu target_cpu placed state rule"
    return _table(
        columns,
        (
            [
                *(row[name] for name in names.split()),
                _size(row["bytes"]),
                _span(row["age_s"]),
                row["nic"],
                row["policy"],
                row["why"],
            ]
            for row in rows
        ),
    )


def _plain(columns: Iterable[str], names: str, rows: Iterable[Row]) -> Table:
    return _table(columns, ([row[name] for name in names.split()] for row in rows))


def queue_table(rows: Iterable[Row]) -> Table:
    columns = (
        "NIC", ">QUEUE", ">NAPI", ">IRQ", "THREADED", ">PID", ">CPU", ">RULES", ">PACKETS",
        ">BY-RULE", ">BY-RSS",
    )  # fmt: skip
    names = "nic queue napi_id irq threaded pid cpu rules packets by_rule by_rss"
    return _plain(columns, names, rows)


def nic_table(rows: Iterable[Row]) -> Table:
    columns = (
        "NIC", "ARMED", "UP", "DRIVER", ">QUEUES", ">RULES", ">OURS", ">SLOTS", ">RING",
        ">DROPS", "NETNS",
    )  # fmt: skip
    names = "nic armed up driver queues rules rules_ours rule_slots ring_size ring_drops netns"
    return _plain(columns, names, rows)


def rule_table(rows: Iterable[Row]) -> Table:
    columns = ("NIC", ">LOCATION", ">QUEUE", ">HITS", "OURS", "MATCH")
    return _plain(columns, "nic location queue hits ours match", rows)


def topology_table(rows: Iterable[Row]) -> Table:
    columns = (">CPU", "ONLINE", ">NODE", ">PACKAGE", ">CORE", "SMT", "LLC", "QUEUES")
    names = "cpu online node package core smt llc"
    return _table(
        columns,
        (
            [
                *(row[name] for name in names.split()),
                [f"{queue['nic']}/{queue['queue']}" for queue in row["queues"]],
            ]
            for row in rows
        ),
    )


def event_line(event: Row) -> str:
    about = " ".join(_text(event[name]) for name in ("nic", "flow") if event[name] is not None)
    line = f"{event['seq']:>6}  {event['time']}  {event['kind']:<9} {about}"
    words = [line.rstrip(), _text(event["what"])]
    if event["why"]:
        words.append(f"({_text(event['why'])})")
    return "  ".join(words)
