# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kit measures: real servers of one thread under RSS, RFS, atfnd, and placed by hand.

A server is pinned or not. Pinned, it is asked at a fifth of what it answers at most under RSS, and
as fast as it answers; unpinned at the same fifth. By hand means one filter that brings its port to
its own core, or to a neighbour: another core under the same last-level cache. Windows are measured
as in bench/applications.py, and contenders take turns within each round.

The NIC is a lab NIC with a queue for each CPU. Where there are cores for it, clients and the wire
have two of their own.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.model import Cpu
from atfnd.nic.lab.device import MAX_QUEUES
from atfnd.observe.machine.busy import BusyCpus
from atfnd.observe.machine.topology import topology
from bench.applications import LIGHT, Bench, Cell, caveats, kept_busy, placed
from bench.bed import Bed, apart, lab_bed
from bench.contenders import SYSCTL, Contender, atfnd, in_turn, rfs, rss
from bench.daemon import Daemon, follow_tcp
from bench.verdicts import Run

__all__ = ["FULL", "SHORT", "Measured", "Parts", "Plan", "measure", "parts", "seconds"]

CONNECTIONS = 16
WARM_S, SETTLE_S, WINDOW_S = 0.7, 4.0, 1.0  # the daemon looks at loads every two seconds
OVERHEAD_S, START_S = 0.6, 2.5  # of a window: server and clients; of a daemon
CLIENT_CORES = 2  # one sends, one plays the wire


class Plan(NamedTuple):
    """How much is measured."""

    servers: tuple[str, ...]
    rounds: int
    warm_s: float = WARM_S
    settle_s: float = SETTLE_S  # instead of it, for atfnd
    window_s: float = WINDOW_S


FULL = Plan(("redis", "nginx", "memcached"), 7)  # six for an interval, and a loud one
SHORT = Plan(("redis",), 3)


class Parts(NamedTuple):
    """CPUs by what they do. `serving`: one for each queue; first the server's, if it is pinned.
    `neighbour`: shares its last-level cache, None: none does. `clients`: empty: all do all."""

    serving: tuple[int, ...]
    neighbour: int | None
    clients: tuple[int, ...]


class Measured(NamedTuple):
    """All runs, and what a reader should know first."""

    runs: list[Run]
    parts: Parts
    notes: list[str]


def parts(cpus: Sequence[Cpu]) -> Parts:
    """Clients have the last cores of the first node, if it has others as well. The server avoids
    the first core, where a machine has most of its interrupts. OperatorError: one CPU."""
    if len(cpus) < 2:
        raise OperatorError("two CPUs are needed: with one, every packet is local")
    here = {cpu.index for cpu in cpus}
    cores = sorted({tuple(sorted(here & {cpu.index, *cpu.smt})) for cpu in cpus})
    by_index = {cpu.index: cpu for cpu in cpus}
    near = [core for core in cores if by_index[core[0]].node == by_index[cores[0][0]].node]
    own = near[-CLIENT_CORES:] if len(near) >= 2 * CLIENT_CORES else []
    others = [core for core in cores if core not in own]
    server = others[1 % len(others)]
    beside = [
        core[0]
        for core in others[2:] + others[:1]
        if core != server and core[0] in by_index[server[0]].llc
    ]
    first = [server[0], *beside[:1]]
    rest = sorted(cpu for core in others for cpu in core if cpu not in first)
    clients = tuple(sorted(cpu for core in own for cpu in core))
    return Parts(tuple(first + rest)[:MAX_QUEUES], next(iter(beside), None), clients)


def contending(found: Parts) -> dict[str, Contender]:
    """Who takes turns; without RFS, where it cannot be set."""
    wanted = {"same core": found.serving[0], "neighbour": found.neighbour}

    def daemon(bed: Bed) -> AbstractContextManager[Daemon]:
        return atfnd(bed, follow_tcp(unowned="keep"))

    def filter_to(cpu: int) -> Contender:
        return lambda bed: placed(bed, cpu)

    filters = {name: filter_to(cpu) for name, cpu in wanted.items() if cpu is not None}
    software: dict[str, Contender] = {"rfs": rfs} if SYSCTL.exists() else {}
    return {"rss": rss, **software, "atfnd": daemon, **filters}


def _cells(server: str) -> tuple[Cell, ...]:
    """Light, saturated, and light without being pinned."""
    light = Cell(server, CONNECTIONS, pinned=True, saturated=False)
    return light, light._replace(saturated=True), light._replace(pinned=False)


def seconds(plan: Plan) -> float:
    """About how long it takes, where there are neighbours."""
    window_s = plan.window_s + OVERHEAD_S
    others = (2 * 3 + 2 * 2) * (plan.warm_s + window_s)
    return plan.rounds * len(plan.servers) * (others + 3 * (plan.settle_s + window_s) + START_S)


@contextlib.contextmanager
def _bed(found: Parts) -> Iterator[Bed]:
    """A lab NIC whose queue i is on the i-th serving CPU."""
    with lab_bed(queues=len(found.serving)) as bed:
        with bed.open() as nic:
            for queue, cpu in enumerate(found.serving):
                nic.set_queue_cpu(queue, cpu)
        bed = replace(bed, cpus=found.serving)
        yield apart(bed, found.clients) if found.clients else bed


def measure(plan: Plan, programs: Path, say: Callable[[str], None]) -> Measured:
    """All rounds, by the programs of this folder. `say` gets a line after each round."""
    allowed = os.sched_getaffinity(0)
    found = parts([cpu for cpu in topology().cpus if cpu.online and cpu.index in allowed])
    runs = list[Run]()
    with (
        _bed(found) as bed,
        bed.meter() as meter,
        closing(BusyCpus()) as busy,
        tempfile.TemporaryDirectory() as scratch,
    ):
        program = programs / "load"
        bench = Bench(bed, meter, busy, Path(scratch), programs, program=program)
        rates = {server: LIGHT * bench.limit(_cells(server)[0]) for server in plan.servers}
        contenders = contending(found)
        for turn in range(plan.rounds):
            for place, server in enumerate(plan.servers):
                for name in in_turn(contenders, turn + place):
                    loud = kept_busy(busy)
                    with contenders[name](bed) as daemon:
                        lasting_s = plan.settle_s if daemon else plan.warm_s, plan.window_s
                        for cell in _cells(server):
                            rate = None if cell.saturated else rates[server]
                            if cell.pinned or name in ("rss", "rfs", "atfnd"):
                                runs.append(
                                    bench.window(cell, name, daemon, turn, rate, lasting_s, loud)
                                )
            say(f"round {turn + 1} of {plan.rounds}")
        notes = caveats(bed, runs)
        if "rfs" not in contenders:
            notes.append(f"no RFS: {SYSCTL} is not in this network namespace")
        return Measured(runs, found, notes)
