# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m bench NAME|all`: run benches, print tables, write build/bench/NAME.{json,png}."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rich.console import Console

from atfnd.errors import OperatorError
from bench import (
    applications,
    cost,
    forward,
    guest,
    locality,
    looks,
    migrating,
    ordering,
    ordering_tcp,
    overhead,
    owners,
    pairs_cost,
    protocol_core,
    reaction,
    reception,
    serving,
    sockets,
    spending,
    table,
    transmitted,
    unpinned,
    waiting,
)
from bench.counted import bounds, cells, kept, pairs
from bench.ending import ended_in_order
from bench.report import Report, show, write

__all__ = ["BENCHES", "main"]


class Bench(NamedTuple):
    """What it shows, and how many minutes six rounds took on two CPUs, where that was noted."""

    run: Callable[[int], Report]
    claim: str
    minutes: int | None = None


def _in_guest(name: str, claim: str, minutes: int | None = None) -> Bench:
    return Bench(partial(guest.run, name), claim, minutes)


def _of_papers(name: str, claim: str) -> Bench:
    return Bench(partial(kept.of_papers, name), claim)


LAB = {
    "overhead": Bench(overhead.run, "what the observer adds to a socket call"),
    "cost": Bench(cost.run, "the daemon's CPU and memory by sockets and flows"),
    "looks": Bench(looks.run, "the engine's look at 10,000 flows"),
    "spending": Bench(spending.run, "the daemon's CPU for a migration, a follow, a move"),
    "inventory": Bench(sockets.run, "sockets a second at the start"),
    "serving": Bench(serving.run, "clients of the API do not delay the loop"),
    "pairs-cost": Bench(pairs_cost.run, "what counting forwarded packets adds to each"),
    "reaction": Bench(reaction.run, "from a thread's move to its first packet there"),
    "ordering": Bench(ordering.run, "strict moves reorder nothing"),
    "ordering-tcp": Bench(ordering_tcp.run, "what moves cost TCP"),
    "migrating": Bench(migrating.run, "order while applications migrate"),
    "transmitted": Bench(transmitted.run, "socket calls against transmitted packets as signal"),
    "locality": Bench(locality.run, "bytes read on the core that processed them"),
    "owners": Bench(owners.run, "one filter an owner does not run short"),
    "table": Bench(table.run, "which flows get the filters there are: a simulation"),
    "waiting": Bench(waiting.run, "waits for socket locks, the first paper's experiment 1"),
    "forward": Bench(forward.run, "a forwarding host, the second paper", 24),
    "reception": Bench(reception.run, "each way of polling a queue", 108),
    "protocol-core": Bench(protocol_core.run, "a core for protocols, the fourth paper", 9),
    "unpinned": Bench(unpinned.run, "servers that the scheduler moves"),
    "unpinned-interrupts": Bench(
        partial(unpinned.run, interrupts=True), "the same, by interrupts"
    ),
    "applications": Bench(
        lambda rounds: applications.run(applications.Wanted(rounds)),
        "real servers under RSS, RFS, atfnd and by hand"
    ),
}  # fmt: skip
SIMNIC = {
    "rules": _in_guest("rules", "filters a second", 2),
    "reaction-simnic": _in_guest("reaction-simnic", "`reaction` beside aRFS", 15),
    "ordering-simnic": _in_guest("ordering-simnic", "`ordering` with real filters", 20),
    "locality-simnic": _in_guest("locality-simnic", "`locality` beside aRFS", 35),
    "unpinned-simnic": _in_guest("unpinned-simnic", "`unpinned` with real interrupts", 20),
    "waiting-simnic": _in_guest("waiting-simnic", "`waiting` with real filters"),
    "forward-simnic": _in_guest("forward-simnic", "`forward` by softirqs and interrupts"),
}
COUNTED = {
    "machine": Bench(kept.run, "what a request costs, by server and contender"),
    "observed": Bench(bounds.run, "instructions of observing, deciding, looking, moving"),
    "pairs": _of_papers("pairs", "each pair of CPUs, the third paper's matrix"),
    "pairs-16": _of_papers("pairs-16", "the same on 16 CPUs"),
    **{
        name: _of_papers(name, f"the first paper's experiment {at}")
        for at, name in enumerate(pairs.SHARED, 1)
    },
    "forward-counted": _of_papers("forward-counted", "a forwarded frame, two packages"),
}
GROUPS = {
    "On the lab NIC": LAB,
    "On the test driver, in the guest": SIMNIC,
    "On the counted machine": COUNTED,
}
BENCHES = {**LAB, **SIMNIC, **COUNTED}
ROUNDS = 6  # the fewest that give a median a 95 % interval


def _listed() -> str:
    lines = ["Claims, and the minutes of six rounds on two CPUs, where they were noted:"]
    for title, benches in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [
            f"  {name:<20}{each.minutes or '':>4}  {each.claim}" for name, each in benches.items()
        ]
    return "\n".join(lines)


def main() -> int:
    """Run what was asked for; 1 when a bench could not be run, whatever it found otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog=_listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("name", choices=[*BENCHES, "all"], metavar="NAME", help="see below")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    some = parser.add_argument_group("applications only")
    some.add_argument("--only", action="append", default=[], metavar="SERVER",
                      help="a server, or words in the names of cells; may be repeated")  # fmt: skip
    some.add_argument("--seconds", type=float, default=applications.WINDOW_S, help="of a window")
    some.add_argument("--interrupts", action="store_true", help="packets come by these")
    some.add_argument("--warm", type=float, default=applications.Wanted(0).warm_s,
                      help="seconds before a window")  # fmt: skip
    some.add_argument("--resume", action="store_true", help="keep what was measured already")
    counted = parser.add_argument_group("machine only")
    counted.add_argument("--server", choices=cells.SERVED, default=cells.SERVED[0])
    counted.add_argument("--contender", choices=tuple(cells.CONTENDERS), action="append",
                         default=[], help="may be repeated; all of them")  # fmt: skip
    counted.add_argument("--load", choices=tuple(cells.LOADS), action="append", default=[],
                         help="may be repeated; the others are shares of saturated")  # fmt: skip
    counted.add_argument("--unpinned", action="store_true", help="the server goes where it likes")
    counted.add_argument("--cpus", type=int, choices=tuple(cells.CLIENTS), default=kept.CPUS,
                         help="of the guest, in two sockets")  # fmt: skip
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds is at least 1")
    runs = {name: bench.run for name, bench in BENCHES.items()}
    asked = (tuple(given.only), given.seconds, given.interrupts, given.resume, given.warm)
    if given.name == "applications":
        runs[given.name] = lambda rounds: applications.run(applications.Wanted(rounds, *asked))
    elif asked != applications.Wanted(0)[1:]:
        parser.error("--only, --seconds, --interrupts, --warm and --resume are for applications")
    if given.name == "machine":
        runs[given.name] = partial(
            kept.run, server=given.server, loads=given.load, only=given.contender,
            pinned=not given.unpinned, cpus=given.cpus,
        )  # fmt: skip
    elif (
        given.contender or given.load or given.unpinned
        or (given.server, given.cpus) != (cells.SERVED[0], kept.CPUS)
    ):  # fmt: skip
        parser.error("--server, --contender, --load, --unpinned and --cpus are for machine")
    console = Console(width=None if sys.stdout.isatty() else 120)
    names = list(BENCHES) if given.name == "all" else [given.name]
    failed = 0
    with ended_in_order():
        if os.geteuid():
            raise OperatorError("the benches need root", "sudo make bench")
        for name in names:
            try:
                report = runs[name](given.rounds)
            except OperatorError as error:
                if len(names) == 1:
                    raise
                print(f"bench {name}: {error.message}", file=sys.stderr)
                failed = 1
                continue
            show(report, console)
            console.print(f"written to {write(report)}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
