# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m bench NAME|all`: run benches, print tables, write build/bench/NAME.{json,png}."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

from rich.console import Console

from atfnd.errors import OperatorError
from bench import (
    applications,
    cost,
    forward,
    guest,
    locality,
    looks,
    matrix,
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

BENCHES: dict[str, Callable[[int], Report]] = {
    "overhead": overhead.run,
    "protocol-core": protocol_core.run,
    "reaction": reaction.run,
    "reception": reception.run,
    "inventory": sockets.run,
    "cost": cost.run,
    "forward": forward.run,
    "pairs-cost": pairs_cost.run,
    "locality": locality.run,
    "looks": looks.run,
    "matrix": matrix.run,
    "ordering": ordering.run,
    "ordering-tcp": ordering_tcp.run,
    "owners": owners.run,
    "table": table.run,
    "serving": serving.run,
    "spending": spending.run,
    "migrating": migrating.run,
    "transmitted": transmitted.run,
    "unpinned": unpinned.run,
    "applications": lambda rounds: applications.run(applications.Wanted(rounds)),
    "unpinned-interrupts": partial(unpinned.run, interrupts=True),
    "waiting": waiting.run,
    **{name: partial(guest.run, name) for name in guest.NAMES},
    "machine": kept.run,
    "observed": bounds.run,
    **{name: partial(kept.of_papers, name) for name in ("pairs", *pairs.SHARED, "forward-counted")},
}
ROUNDS = 6  # the fewest that give a median a 95 % interval


def main() -> int:
    """Run what was asked for; 1 when a bench could not be run, whatever it found otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=[*BENCHES, "all"])
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
    benches = dict(BENCHES)
    asked = (tuple(given.only), given.seconds, given.interrupts, given.resume, given.warm)
    if given.name == "applications":
        benches[given.name] = lambda rounds: applications.run(applications.Wanted(rounds, *asked))
    elif asked != applications.Wanted(0)[1:]:
        parser.error("--only, --seconds, --interrupts, --warm and --resume are for applications")
    if given.name == "machine":
        benches[given.name] = partial(
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
                report = benches[name](given.rounds)
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
