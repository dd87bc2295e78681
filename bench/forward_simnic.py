# SPDX-License-Identifier: GPL-2.0-or-later
"""The second paper's forwarding host with softirqs and interrupts, in the guest.

Four CPUs in two packages; the last one is the generator's, and this process is there, too.
Affinity is where three interrupts go, and is the paper's: `I` has the receivers on the two CPUs of
one package and the sender on the other, `II` the sender beside one of the receivers; `0` has all of
them on one CPU. `default` is what the kernel chose, `rps` has RPS to all three CPUs in addition,
`irqbalance` moves them as it likes. Reception: `NAPI(300)` and `NAPI(2)` are softirqs with that
net.core.netdev_budget, `DE` is a thread with a real-time priority. Capacities are NAPI(300)'s.

The four CPUs are emulated by threads of QEMU, which share the host's: what one of them does takes
time from the others, so that spreading gains less than on real ones.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.children import on_one_cpu, prompt
from bench.forward_load import SIZES, Load, Reception, Run, placed
from bench.forwarder import RECEIVERS, SENDER, built
from bench.sim_forwarder import SimForwarder, budget, by_threads, sim_forwarder
from tests.daemon.irqbalance import balancer

__all__ = ["SIMNIC", "Subject", "measure", "subjects"]

# patience, because others may have the host's CPUs for a while
SIMNIC = Load("forward-simnic", (0.1, 0.5, 0.8, 1.0, 1.2), 0.5, 5_000, 300_000, 1.5, patience=3)
NAMES = (*RECEIVERS, SENDER)
Placement = Callable[[SimForwarder], AbstractContextManager[None]]


class Subject(NamedTuple):
    """Where the interrupts go, and what polls."""

    placement: str
    reception: str


@contextlib.contextmanager
def _static(bed: SimForwarder, rx1: int, rx2: int, tx: int) -> Iterator[None]:
    cpus = {name: bed.cpus[at] for name, at in zip(NAMES, (rx1, rx2, tx), strict=True)}
    bed.place(cpus)
    yield


@contextlib.contextmanager
def _rps(bed: SimForwarder) -> Iterator[None]:
    bed.host.rps(bed.cpus)
    try:
        yield
    finally:
        bed.host.rps(())


BALANCED_S, BALANCED_PPS = 8.0, 5_000


@contextlib.contextmanager
def _irqbalance(bed: SimForwarder) -> Iterator[None]:
    """With a second between its looks. Its policy script says what a NIC is: it takes the carriers
    for disks, which it places by cache and not by core."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "policy"
        script.write_text("#!/bin/sh\necho balance_level=core\n")
        script.chmod(0o755)
        option = f"--policyscript={script}"
        with balancer(option, tied=None, banned_cpus=(bed.generators_cpu,)):
            bed.used(BALANCED_PPS, BALANCED_S)
            yield


PLACEMENTS: dict[str, Placement] = {
    "0": lambda bed: _static(bed, 0, 0, 0),
    "I": lambda bed: _static(bed, 0, 1, 2),
    "II": lambda bed: _static(bed, 0, 2, 1),
    "default": lambda _: contextlib.nullcontext(),
    "rps": _rps,
    "irqbalance": _irqbalance,
}
RECEPTIONS: dict[str, Callable[[SimForwarder], Reception]] = {
    "NAPI(300)": lambda _: partial(budget, 300),
    "NAPI(2)": lambda _: partial(budget, 2),
    "DE": lambda bed: partial(by_threads, bed),
}


def subjects() -> list[Subject]:
    """The static placements with each reception, the others with softirqs as they are usual."""
    usual, *others = RECEPTIONS
    return [
        Subject(placement, reception)
        for placement in PLACEMENTS
        for reception in (usual, *(others if placement in ("0", "I", "II") else ()))
    ]


def measure(rounds: int, load: Load = SIMNIC, asked: Sequence[Subject] | None = None) -> list[Run]:
    """`rounds` rounds, forwards and backwards in turn, of every subject at every load. Each
    placement begins with the driver loaded anew, because an interrupt stays where it was while that
    is allowed."""
    chosen = list(asked or subjects())
    placements = list(dict.fromkeys(each.placement for each in chosen))
    runs = list[Run]()
    with prompt(), tempfile.TemporaryDirectory() as folder:
        program = built(Path(folder))
        for turn in range(rounds):
            for placement in placements[:: -1 if turn % 2 else 1]:
                with sim_forwarder(program) as bed, on_one_cpu(bed.generators_cpu):
                    receptions = {
                        each.reception: RECEPTIONS[each.reception](bed)
                        for each in chosen
                        if each.placement == placement
                    }
                    with budget(300), PLACEMENTS[placement](bed):
                        for sizes in SIZES:
                            runs += placed(bed, placement, receptions, sizes, load)
    return runs
