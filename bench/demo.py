# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo behind `make run`: one NIC, one workload, and every way to deliver its packets.

RSS, then software RFS (then aRFS, where the NIC can), then atfnd, each with iperf3 (two servers,
one a core, as in the paper) and request/response, while the application threads change cores. The
meter says which share of the bytes was read on the core that had processed them; under atfnd the
live flow table is shown. Ends with a summary and `build/run.json`; leaves nothing behind.

The NIC is a lab NIC; with the argument `simnic`, inside the guest, it is the test driver.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from atfnd.errors import OperatorError
from bench.bed import Bed, BedMaker, lab_bed
from bench.children import Child, child, pin, program
from bench.contenders import contenders
from bench.daemon import Daemon
from bench.ending import ended_in_order
from bench.meter import Meter, Reading
from bench.sim_bed import sim_bed
from bench.traffic import iperf

__all__ = ["BEDS", "Pace", "Phase", "main", "run"]

RESULT = Path("build/run.json")
RR_PORT = 7001
MOVES = 4
TABLE_ROWS = "12"


class Pace(NamedTuple):
    """What is offered, and how often applications move."""

    streams: int  # of each iperf3 client
    stream_bits_per_s: int
    rr_connections: int
    rr_per_s: int
    move_every_s: float
    settle_s: float


# An emulated core does in a second what a real one does in some 50 ms.
BEDS: dict[str, tuple[BedMaker, Pace]] = {
    "lab": (lab_bed, Pace(10, 10_000_000, 40, 4000, 2.0, 1.0)),
    "simnic": (sim_bed, Pace(4, 1_000_000, 8, 80, 4.0, 2.0)),
}


class Phase(NamedTuple):
    """What one way of delivering did."""

    name: str
    reading: Reading
    flows: int  # metered
    steered: int  # by atfnd


@contextlib.contextmanager
def workload(bed: Bed, pace: Pace) -> Iterator[list[Child]]:
    """iperf3 and request/response through the NIC; yields the application processes."""
    length = pace.settle_s + (MOVES + 1) * pace.move_every_s + 60  # stopped long before
    with contextlib.ExitStack() as stack:
        servers = []
        for port, cpu in zip(iperf.PORTS, bed.cpus, strict=False):
            servers.append(stack.enter_context(iperf.server(bed.host, bed.address, port, [cpu])))
        serve = program("rr", "serve", bed.address, RR_PORT)
        servers.append(stack.enter_context(child(*serve, netns=bed.host, cpus=[bed.cpus[0]])))
        servers[-1].said("ready")
        for port, _ in zip(iperf.PORTS, bed.cpus, strict=False):
            stack.enter_context(
                iperf.client(
                    bed.peer, bed.address, port, pace.streams, length, pace.stream_bits_per_s
                )
            )
        drive = program("rr", "drive", bed.address, RR_PORT, "--connections", pace.rr_connections)
        driver = child(*drive, "--rate", str(pace.rr_per_s), netns=bed.peer)
        stack.enter_context(driver).said("connected")
        yield servers


def _phase(name: str, bed: Bed, pace: Pace, meter: Meter, console: Console) -> Phase:
    """Run one contender and meter it while its applications move."""
    with contenders(bed)[name](bed) as running, workload(bed, pace) as servers:
        time.sleep(pace.settle_s)
        start, steered = meter.read(), 0
        for move in range(MOVES):
            for number, server in enumerate(servers):
                server.check()
                pin(server.pid, [bed.cpus[(number + move + 1) % len(bed.cpus)]])
            due = time.monotonic() + pace.move_every_s
            time.sleep(pace.settle_s)
            if running is not None:
                steered = max(steered, _show_flows(running, console, move))
            time.sleep(max(0.0, due - time.monotonic()))
        reading = meter.read().since(start)
    if reading.totals.read_locality is None:
        raise OperatorError(f"{name}: nothing was read", exit_code=1)
    if name == "atfnd" and not steered:
        raise OperatorError("atfnd steered no flow", "run `make test`", exit_code=1)
    return Phase(name, reading, len(reading.flows), steered)


def _show_flows(running: Daemon, console: Console, move: int) -> int:
    """Print the live table as an operator would; returns how many flows are steered."""
    rows = running.flows()
    steered = sum(1 for row in rows if row["state"] in ("steered", "port"))
    console.print(f"[bold]atfnctl flows[/bold], after move {move + 1}: {steered} steered")
    if move in (0, MOVES - 1):
        console.print(running.table("flows", "--limit", TABLE_ROWS), markup=False, highlight=False)
    return steered


def _summary(phases: list[Phase], seconds: float, console: Console) -> None:
    table = Table(title="Bytes read on the core that had processed them")
    table.add_column("delivery")
    for column in ("share", "MB read", "flows", "steered"):
        table.add_column(column, justify="right")
    for phase in phases:
        totals = phase.reading.totals
        megabytes = (totals.local_bytes + totals.remote_bytes) / 1e6
        share = f"{totals.read_locality:.1%}"
        steered = str(phase.steered) if phase.name == "atfnd" else "-"
        table.add_row(phase.name, share, f"{megabytes:,.0f}", str(phase.flows), steered)
    console.print(table)
    console.print(f"{seconds:.0f} s; written to {RESULT}")


def run(console: Console, make_bed: BedMaker, pace: Pace) -> list[Phase]:
    """All phases, the summary, and the result file."""
    began = time.monotonic()
    if os.geteuid():
        raise OperatorError("the demo needs root", "sudo make run")
    RESULT.unlink(missing_ok=True)
    phases = []
    with make_bed() as bed, bed.meter() as meter:
        if len(bed.cpus) < 2:
            raise OperatorError("the demo needs two CPUs: with one, every packet is local")
        console.print(f"{bed.nic} is up: {len(bed.cpus)} queues, host {bed.address}")
        for name in contenders(bed):
            console.print(f"\n[bold]{name}[/bold]: applications move every {pace.move_every_s:g} s")
            phases.append(_phase(name, bed, pace, meter, console))
            share = phases[-1].reading.totals.read_locality
            console.print(f"{name}: {share:.1%} read on the core that had processed them")
    seconds = time.monotonic() - began
    result: dict[str, float | int] = {
        f"locality_{phase.name}": round(phase.reading.totals.read_locality or 0.0, 4)
        for phase in phases
    }
    result |= {"flows": phases[-1].flows, "steered": phases[-1].steered}
    result["seconds"] = round(seconds, 1)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    _summary(phases, seconds, console)
    return phases


def main() -> None:
    """Exit 0 when every phase ran; else one line and the error's code."""
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description=__doc__)
    parser.add_argument("bed", nargs="?", choices=BEDS, default="lab")
    make_bed, pace = BEDS[parser.parse_args().bed]
    with ended_in_order():
        run(Console(width=None if sys.stdout.isatty() else 140), make_bed, pace)


if __name__ == "__main__":
    main()
