# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m bench NAME|all`: run benches, print tables, write build/bench/NAME.{json,png}.
Without a name: list them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rich.console import Console

from atfnd.errors import OperatorError
from bench import ordering, reaction, spending
from bench.counted import cells, kept, pairs
from bench.ending import ended_in_order
from bench.report import Report, show, write

__all__ = ["BENCHES", "main"]


class Bench(NamedTuple):
    """What it shows, and on which bed; how many minutes six rounds take on two CPUs, of what is
    counted one round beside other work. None: nobody noted it."""

    run: Callable[[int], Report]
    claim: str
    bed: str = "lab NIC"
    minutes: int = 0


def _of_papers(name: str, claim: str, minutes: int) -> Bench:
    return Bench(partial(kept.of_papers, name), claim, "guest", minutes)


GROUPS = {
    "What atfnd promises": {
        "ordering": Bench(ordering.run, "strict moves reorder nothing", minutes=40),
        "spending": Bench(spending.run, "the daemon's CPU for a migration, a move", minutes=10),
        "reaction": Bench(
            reaction.run, "from a thread's move to its first packet there", minutes=3
        ),
    },
    "What requests and the daemon execute, counted": {
        "machine": Bench(kept.run, "what a request costs, by server and contender", "guest", 3),
        "observed": Bench(kept.observed, "what observing, deciding and moving execute", "guest", 4),
    },
    "Rows of the papers, counted": {
        **{
            name: _of_papers(name, f"first, experiment {at}", minutes)
            for at, (name, minutes) in enumerate(zip(pairs.SHARED, (9, 24, 6, 9), strict=True), 1)
        },
        "forward-counted": _of_papers(
            "forward-counted", "second: a forwarded frame, two packages", 2
        ),
        "pairs": _of_papers("pairs", "third: each pair of CPUs", 7),
        "pairs-16": _of_papers("pairs-16", "third: the same on 16 CPUs", 43),
    },
}
BENCHES = {name: each for group in GROUPS.values() for name, each in group.items()}
ROUNDS = 6  # the fewest that give a median a 95 % interval


def _listed() -> str:
    """A line each: its name, the claim, the bed, minutes of six rounds."""
    lines = ["A bench's claim, its bed, and how long six rounds take, of what is counted one."]
    for title, benches in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, each in benches.items():
            lines += [f"  {name:<18}{each.claim:<49}{each.bed:<8}{each.minutes:>4} min"]
    return "\n".join(lines)


def main() -> int:
    """Run what was asked for; 1 when a bench could not be run, whatever it found otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog=_listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("name", nargs="?", choices=[*BENCHES, "all"], metavar="NAME",
                        help="see below")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=ROUNDS)
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
    if given.name is None:
        print(_listed())
        return 0
    if given.rounds < 1:
        parser.error("--rounds is at least 1")
    runs = {name: bench.run for name, bench in BENCHES.items()}
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
