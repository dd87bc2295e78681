# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd lab up | down | status`: the lab NIC from the command line.

Each imports its work itself: it takes 10 MiB and 0.2 s that `atfnd run` has no use for.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from atfnd.ctl.help import Program

if TYPE_CHECKING:
    from atfnd.lab.status import LabStatus

__all__ = ["app"]

app = Program("The lab NIC: an emulated multi-queue NIC in three network namespaces.")

Name = Annotated[
    str, typer.Option(metavar="NAME", help="Which lab; labs with different names coexist.")
]


@app.verb("Commands")
def up(
    name: Name = "lab",
    queues: Annotated[
        int | None,
        typer.Option(metavar="N", help="Receive queues, 2-64 (default: one per CPU)."),
    ] = None,
    filters: Annotated[
        int | None, typer.Option(metavar="N", help="Filters the NIC holds (default: 4096).")
    ] = None,
    interrupts: Annotated[
        bool,
        typer.Option("--interrupts", help="A queue's packets come by an interrupt to its CPU."),
    ] = False,
) -> None:
    """Bring the lab up. A lab that is up stays as it is; a broken one is rebuilt."""
    from atfnd.lab.status import lab_status  # fmt: skip
    from atfnd.lab.up import up  # fmt: skip

    changed = up(name, queues, filters, interrupts)
    found = lab_status(name)
    print(
        f"lab {name} {'is' if changed else 'was already'} up: "
        f"{len(found.queues)} queues, {found.filter_slots} filters, "
        f"packets come by {_means(found)}"
    )


@app.verb("Commands")
def down(name: Name = "lab") -> None:
    """Take the lab down, also one that is broken."""
    from atfnd.lab.down import down  # fmt: skip

    print(f"lab {name} {'is' if down(name) else 'was already'} down")


@app.verb("Commands")
def status(
    name: Name = "lab",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the lab. Exit code 1 when it is not up."""
    from atfnd.lab.status import lab_status  # fmt: skip

    found = lab_status(name)
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
    else:
        _show(found)
    if found.state != "up":
        raise typer.Exit(1)


def _means(found: LabStatus) -> str:
    return "interrupts" if found.interrupts else "NAPI threads"


def _show(found: LabStatus) -> None:
    from atfnd.lab.wiring import HOST4, HOST6, PEER4, PEER6  # fmt: skip

    print(f"lab {found.name} is {found.state}")
    for problem in found.problems:
        print(f"  {problem}")
    if found.stats is None:
        return
    print(f"peer {PEER4} {PEER6}   host {HOST4} {HOST6}")
    print(
        f"filters {found.filters} of {found.filter_slots}   ring {found.ring_size}   "
        f"ring drops {found.stats.ring_drops}   packets come by {_means(found)}"
    )
    table = Table(box=None, header_style="bold")
    for column in ("queue", "NAPI", "thread", "CPU", "packets", "by filter", "by RSS", "bytes"):
        table.add_column(column, justify="right")
    for queue, count in zip(found.queues, found.stats.queues, strict=True):
        cpu = "any" if queue.cpu is None else queue.cpu
        cells = (queue.index, queue.napi_id, "none" if queue.pid is None else queue.pid, cpu)
        counts = (count.packets, count.by_filter, count.by_rss, count.bytes)
        table.add_row(*(str(cell) for cell in cells + counts))
    Console().print(table)
