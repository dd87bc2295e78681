# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb `measure` of atfnctl: does it pay to steer an interface?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from atfnd.ctl import output
from atfnd.ctl.client import Client, Row
from atfnd.ctl.columns import Grid
from atfnd.ctl.decisions import app
from atfnd.ctl.duration import seconds_of
from atfnd.ctl.tables import plain
from atfnd.ctl.verbs import PAYS, SOCKET, Interface, Json, Socket
from atfnd.errors import OperatorError

__all__ = ["app", "figure_table"]

_PATIENCE_S = 60.0  # the daemon says something each second, but for the time a slot takes to begin
_OF_PAUSE, _OF_POLICIES = ("paused", "armed"), ("other", "in force")
_UNITS = {  # short: at 100 columns unit and percentage stand side by side
    "share": ("%", 100.0), "of a core": ("% core", 100.0), "bytes/s": ("B/s", 1.0),
    "per 1,000 packets": ("per 1000", 1.0),
}  # fmt: skip
_LARGER = {"ns": "us", "us": "ms", "ms": "s", "B/s": "kB/s", "kB/s": "MB/s", "MB/s": "GB/s"}
_NAMES = {
    "read_locality": "read locality",
    "cpu_per_packet": "CPU per packet",
    "cpu_per_byte": "CPU per byte",
    "network_cpu_per_packet": "  network, per packet",
    "network_cpu_per_byte": "  network, per byte",
    "application_cpu_per_packet": "  applications, per packet",
    "application_cpu_per_byte": "  applications, per byte",
    "daemon_cpu": "  atfnd",
    "interrupts_per_1000": "interrupts",
    "handoffs_per_1000": "handoffs (RPS, RFS)",
    "switches_per_1000": "context switches",
    "rtt": "round trip time",
    "throughput": "throughput",
}


@app.verb(PAYS)
def measure(
    nic: Interface,
    total: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: `90s`, `10m`, `2h`.")
    ] = "10m",
    slot: Annotated[str, typer.Option(metavar="TIME", help="How long a slot is.")] = "10s",
    settle: Annotated[
        str, typer.Option(metavar="TIME", help="What is left out of each slot.")
    ] = "3s",
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Steer by this policy, instead of a pause."),
    ] = None,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """Compare an armed interface with a paused one, in turns, under the load that there is: does it
    pay? Or compare two policies. Ctrl-C ends it early; the interface is then as it was. Exit 1 if
    it ended early."""
    query: dict[str, object] = {
        "seconds": seconds_of(total),
        "slot": seconds_of(slot),
        "settle": seconds_of(settle),
    }
    if against is not None:
        query["against"] = str(against.absolute())
    found: Row | None = None
    why: str | None = None
    try:
        with closing(Client(socket).measuring(nic, _PATIENCE_S, **query)) as lines:
            for row in _shown(lines, _OF_PAUSE if against is None else _OF_POLICIES):
                found = row.get("result", found)
                if "error" in row:
                    why = row["error"]
    except KeyboardInterrupt:
        why = "ended early, and the interface is as it was"
    if found is not None:
        output.say_json(found) if as_json else _say(found)
    if why is not None or found is None:
        raise OperatorError(why or "the daemon ended before the measurement", exit_code=1)


def _shown(lines: Iterator[bytes], names: tuple[str, str]) -> Iterator[Row]:
    """The answer's rows; how far it is on a terminal, with the names of the slots."""
    terminal = sys.stderr.isatty()
    try:
        for line in lines:
            row: Row = json.loads(line)
            if terminal and "slot" in row:
                state = names[row["armed"]]
                done = f"slot {row['slot']} of {row['slots']}, {state}, {row['left_s']:.0f} s left"
                print(f"\r{done}\x1b[K", end="", file=sys.stderr, flush=True)
            yield row
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _say(found: Row) -> None:
    output.show(
        figure_table(found["figures"], _OF_PAUSE if found["against"] is None else _OF_POLICIES)
    )
    lost = f", {found['slots_lost']} slots lost" if found["slots_lost"] else ""
    pairs = f"{found['pairs']} pair{'s' * (found['pairs'] != 1)} of slots"
    output.say(f"{pairs}{lost}; [lowest, highest] with {found['confidence']:.0%}")
    output.say(f"{output.text(found['nic'])}: {output.text(found['sentence'])}")


def figure_table(figures: list[Row], names: tuple[str, str]) -> Grid:
    """Of a measurement's figures, in units that people use; `names` are those of the slots."""
    without, steered = (f">{name.upper()}" for name in names)
    columns = ("FIGURE", "UNIT", without, steered, ">DIFFERENCE", ">PERCENT", ">PAIRS")
    rows = (
        {
            "name": _NAMES.get(row["figure"], row["figure"]),
            "unit": unit,
            "paused": _number(row["paused"], times),
            "armed": _number(row["armed"], times),
            "difference": _span(row, times),
            "percent": _span(row, None if not row["paused"] else 100 / row["paused"]),
            "pairs": row["pairs"],
        }
        for row in figures
        for unit, times in [_scale(row)]
    )
    return plain("measured", columns, "name unit paused armed difference percent pairs", rows)


def _scale(row: Row) -> tuple[str, float]:
    """The unit in which both values have at most three digits before the point, and what to
    multiply by."""
    unit, times = _UNITS.get(row["unit"], (row["unit"], 1.0))
    most = max(abs(row[each] or 0.0) for each in ("paused", "armed"))
    while most * times >= 1000 and unit in _LARGER:
        unit, times = _LARGER[unit], times / 1000
    return unit, times


def _number(value: float | None, times: float) -> str | None:
    return None if value is None else _three(value * times)


def _three(value: float, sign: str = "") -> str:
    """Three digits, and no exponent."""
    shown = f"{value:{sign}.3g}"
    if "e-" in shown:
        return f"{0:{sign}}"
    return f"{value:{sign}.0f}" if "e" in shown else shown


def _span(row: Row, times: float | None) -> str | None:
    """`-4.1 [-6, -2.2]`; without an interval where there is none."""
    if times is None or row["difference"] is None:
        return None
    value = _three(row["difference"] * times, "+")
    if row["low"] is None:
        return value
    return f"{value} [{_three(row['low'] * times, '+')}, {_three(row['high'] * times, '+')}]"
