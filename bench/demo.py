# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo behind `make run`: a real server, and every way to deliver its packets.

nginx or redis where this machine has one, else our own server (bench/servers.py): pinned to the CPU
of a queue of a lab NIC, and where the scheduler puts it. In each round RSS, software RFS and atfnd
take turns, with a short window for each of the two; who begins changes. All are asked the same at a
fixed rate. A window is measured as in bench/applications.py: CPU of a request is of all that is
busy, the daemon too, without the client and the wire; p99 counts from when a request was to be
sent.

Ends with what the counted machine says of the same server (bench/machine.json), if it was counted,
and what bench/demo_report.py says of these figures, in `build/run.json` too; leaves nothing else
behind.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from atfnd.errors import OperatorError
from atfnd.observe.machine.busy import BusyCpus
from bench import demo_report
from bench.applications import Bench, Cell, caveats, kept_busy
from bench.bed import lab_bed
from bench.children import until
from bench.contenders import Contender, atfnd, in_turn, rfs, rss
from bench.counted import kept
from bench.daemon import Daemon, follow_tcp
from bench.demo_report import Found
from bench.ending import ended_in_order
from bench.report import FOLDER
from bench.servers import at_hand
from bench.verdicts import Run

__all__ = ["Pace", "main", "run"]

RESULT = Path("build/run.json")
CONNECTIONS = 16
PICTURE = "demo.svg"
COLUMNS = 80
ROWS = "4"  # of the live table


class Pace(NamedTuple):
    """What is asked, and for how long."""

    per_s: float  # requests
    rounds: int
    warm_s: float
    window_s: float


PACE = Pace(4000.0, 8, 0.5, 0.8)


def _measured(
    bench: Bench, cells: Mapping[str, Cell], pace: Pace, console: Console
) -> tuple[Found, dict[str, int]]:
    """All rounds, and what atfnd showed of its flows when it was asked."""
    policy = follow_tcp(unowned="keep")
    rivals: dict[str, Contender] = {"rss": rss, "rfs": rfs, "atfnd": lambda bed: atfnd(bed, policy)}
    names, lasting_s = list(rivals), (pace.warm_s, pace.window_s)
    shown: dict[str, int] | None = None
    found: dict[str, dict[str, list[Run]]] = {kind: {name: [] for name in names} for kind in cells}
    for turn in range(pace.rounds):
        for name in in_turn(names, turn):
            loud = kept_busy(bench.busy)
            with rivals[name](bench.bed) as daemon:
                for kind, cell in cells.items():
                    one = bench.window(cell, name, daemon, turn, pace.per_s, lasting_s, loud)
                    if one.read_locality is None or not one.p99_ns:
                        raise OperatorError(f"{name}: nothing was answered", exit_code=1)
                    found[kind][name].append(one)
                if daemon and not shown:
                    with bench.asking(cells["pinned"], pace.per_s, 600.0, 1.0):  # ended long before
                        time.sleep(pace.warm_s)
                        shown = _shown(daemon, console)
        console.print(f"round {turn + 1} of {pace.rounds}: {', '.join(names)}")
    assert shown, "atfnd ran in no round"
    return found, shown


def _shown(daemon: Daemon, console: Console) -> dict[str, int]:
    """Print the live table as an operator would."""

    def steered() -> dict[str, int] | None:
        states = [row["state"] for row in daemon.flows()]
        count = sum(state in ("steered", "port") for state in states)
        return {"flows": len(states), "steered": count} if count else None

    shown = until(steered, "atfnd steers a flow", 60)
    console.print(f"\n[bold]atfnctl flows[/bold], the server pinned: {shown['steered']} steered")
    console.print(daemon.table(COLUMNS, "flows", "--limit", ROWS), markup=False, highlight=False)
    return shown


def run(console: Console, pace: Pace) -> Found:
    """All rounds, the result file, the picture, the table and the sentence."""
    began = time.monotonic()
    if os.geteuid():
        raise OperatorError("the demo needs root", "sudo make run")
    RESULT.unlink(missing_ok=True)
    server, tree = at_hand()
    pinned = Cell(server, CONNECTIONS, pinned=True, saturated=False)
    cells = {"pinned": pinned, "unpinned": pinned._replace(pinned=False)}
    with (
        lab_bed() as bed,
        bed.meter() as meter,
        closing(BusyCpus()) as busy,
        tempfile.TemporaryDirectory(prefix="atfnd-demo-") as scratch,
    ):
        if len(bed.cpus) < 2:
            raise OperatorError("the demo needs two CPUs: with one, every packet is local")
        console.print(f"{bed.nic} is up: {len(bed.cpus)} queues, packets come by NAPI threads")
        bench = Bench(bed, meter, busy, Path(scratch), tree)
        found, shown = _measured(bench, cells, pace, console)
        notes = caveats(bed, [run for by in found.values() for runs in by.values() for run in runs])
    title = f"{server}, {CONNECTIONS} connections, {pace.per_s:,.0f} requests/s"
    if demo_report.enough(found):
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / PICTURE).write_text(demo_report.picture(found))
        notes.append(f"drawn in {FOLDER / PICTURE}")
    seconds, said = time.monotonic() - began, demo_report.sentence(found)
    result: dict[str, float | str | None] = {
        **demo_report.medians(found),
        "server": server,
        "says": said,
    }
    result |= {**shown, "seconds": round(seconds, 1)}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    for note in notes:
        console.print(f"note: {note}", highlight=False)
    console.print(f"\n[bold]{title}[/bold], {pace.rounds} windows of {pace.window_s:g} s each\n")
    console.print(demo_report.table(found))
    console.print("In brackets: the interval of the median. CPU: the server, the kernel and atfnd.")
    console.print("Handoffs: interrupts from core to core, for 1000 requests.")
    console.print(f"{seconds:.0f} s; written to {RESULT}\n", highlight=False)
    counted = [each for each in kept.cells() if each["cpus"] == kept.CPUS]
    if there := demo_report.counted(server, counted):
        console.print(f"{there}\n", highlight=False)
    console.print(said, style="bold", highlight=False)
    return found


def main() -> None:
    """Exit 0 when every round ran; else one line and the error's code."""
    with ended_in_order():
        run(Console(width=None if sys.stdout.isatty() else COLUMNS), PACE)


if __name__ == "__main__":
    main()
