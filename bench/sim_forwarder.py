# SPDX-License-Identifier: GPL-2.0-or-later
"""The forwarding host on three pairs of the test driver's ports, inside the guest (tests/guest).

Loads and unloads the module simnic on six idle PCI functions, with one queue a port: the vectors
are real ones, and softirqs poll. Reads and writes /proc/irq/N/smp_affinity_list and
/proc/irq/default_smp_affinity. The last CPU belongs to the generator, and what the kernel places by
default is kept off it, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atfnd.errors import OperatorError
from atfnd.kernel.interrupts.irq import actions, set_affinity
from bench.bed import succeed
from bench.children import until
from bench.forwarder import (
    RECEIVERS,
    SENDER,
    End,
    Forwarder,
    forwarder,
    offered,
    sent,
)
from tests.guest.simlab import MODULE, unloaded

__all__ = ["SimForwarder", "sim_forwarder"]

DEFAULT_AFFINITY = Path("/proc/irq/default_smp_affinity")
PORTS = 6
NAMES = (*RECEIVERS, SENDER)
FEW_PPS, FEW_S = 500, 0.2


@dataclass(frozen=True, slots=True)
class SimForwarder:
    """`irqs` of e0, e1 and s2, one each. `cpus` are the host's, without the generator's."""

    host: Forwarder
    irqs: Mapping[str, int]
    cpus: tuple[int, ...]
    generators_cpu: int

    def place(self, cpus: Mapping[str, int]) -> None:
        """Interrupts, each to one CPU. It has effect with the next one: some frames are sent."""
        for interface, cpu in cpus.items():
            set_affinity(self.irqs[interface], {cpu})
        with offered(self.host, FEW_PPS, FEW_S, "64", self.generators_cpu) as generator:
            sent(generator, 60)
        until(lambda: self.delivered_on() == cpus, f"interrupts are on the CPUs {dict(cpus)}")

    def delivered_on(self) -> dict[str, int]:
        """The CPU of each interrupt: `effective_affinity_list`."""
        files = {
            name: f"/proc/irq/{irq}/effective_affinity_list" for name, irq in self.irqs.items()
        }
        return {name: int(Path(file).read_text()) for name, file in files.items()}


@contextlib.contextmanager
def sim_forwarder(program: Path, *, dma: bool) -> Iterator[SimForwarder]:
    """One, until the `with` ends. `dma`: for the counted machine. OperatorError: the guest has not
    six functions for the ports."""
    *cpus, generators_cpu = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as undo:
        undo.enter_context(_loaded(cpus, dma=dma))
        host = undo.enter_context(forwarder(program, _plug))
        named = {action: irq for irq, action in actions().items()}
        irqs = {name: named[f"{name}-TxRx-0"] for name in NAMES}
        yield SimForwarder(host, irqs, tuple(cpus), generators_cpu)


@contextlib.contextmanager
def _loaded(cpus: Iterable[int], *, dma: bool) -> Iterator[None]:
    before = DEFAULT_AFFINITY.read_text()
    DEFAULT_AFFINITY.write_text(f"{sum(1 << cpu for cpu in cpus):x}")
    try:
        options = ("pairs=0", "max_queues=1", "queues=1", "ring=256", f"dma={dma:d}")
        succeed("insmod", str(MODULE), *options)
        if not Path(f"/sys/class/net/sim{PORTS - 1}").exists():
            raise OperatorError(f"simnic has less than {PORTS} ports", "--nic nvme:6")
        yield
    finally:
        until(unloaded, "simnic is unloaded", 30)
        DEFAULT_AFFINITY.write_text(before)


def _plug(at: int, here: End, there: End) -> None:
    """Ports 2N and 2N + 1 are the ends of a wire; what is polled for the host is an even one, so
    that its frames come by DMA of a NIC on the first node."""
    ends = (there, here) if there.name == SENDER else (here, there)
    for number, (netns, name) in enumerate(ends, 2 * at):
        succeed("ip", "link", "set", f"sim{number}", "netns", netns, "name", name)
