# SPDX-License-Identifier: GPL-2.0-or-later
"""The second paper's forwarding host on the counted machine, by where three interrupts go: two
ports receive, a third sends. A package has four CPUs; the generator has the last CPU.

    gen --g0/e0--> fwd <--e1/g1-- gen        fwd --e2/s2--> sink

Three wires in three namespaces, each a pair of the test driver's ports, with one queue a port and
real vectors; softirqs poll. Loads and unloads the module simnic on six idle PCI functions. Reads
and writes /proc/irq/N/smp_affinity_list and /proc/irq/default_smp_affinity: what the kernel places
by default is kept off the generator's CPU. Who takes back what was sent is s2's NAPI, which drops
it (bench/extension/arrivals.bpf.c). There is no netfilter rule, no queueing discipline, no IPv6.

A request is a frame of 64 bytes here, counted when its BPF program runs in the sink, so that the
edges of a window are exact.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atfnd.errors import OperatorError
from atfnd.kernel.interrupts.irq import actions, set_affinity
from bench.bed import compiled, succeed
from bench.children import Child, child, until
from bench.counted import cells, programs
from bench.counted.counts import marks, windows
from tests.guest.simlab import MODULE, unloaded

__all__ = ["PORTS", "measure"]

ROOT = Path(__file__).parents[2]
SOURCE, SINK = ROOT / "bench/traffic/frames.c", ROOT / "build/bench/arrivals.bpf.o"
DEFAULT_AFFINITY = Path("/proc/irq/default_smp_affinity")
RECEIVERS, EGRESS, SENDER = ("e0", "e1"), "e2", "s2"
DESTINATION = "10.30.0.2"
MACS = {name: f"02:00:00:00:20:0{at}" for at, name in enumerate((*RECEIVERS, EGRESS, SENDER))}
GENERATOR_PRIORITY = 30  # it stands for a machine of its own
CPUS, PORTS, FLOWS = 8, 6, 32
MODES = {"0": (0, 0, 0), "I": (0, 1, 4), "II": (0, 4, 1)}  # CPUs of both receivers, the sender
# Of the guest's time, in which a CPU is eight times slower. With four times as many the generator's
# CPU executes less than others, and windows are refused.
PPS = 2_000
WARM_MS, WINDOW_MS, WINDOWS, SECONDS = 50, 240, 2, 30
FEW_PPS, FEW_S = 500, 0.2


def measure(rounds: int) -> dict[str, Any]:
    """As `cells.measure`."""
    about = {"server": "forwarder", "pinned": True, "cpus": CPUS, "connections": FLOWS}
    return cells.collected(about, _found(rounds))


def _found(rounds: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, _forwarder(Path(folder)) as host:
        watcher = host.cpus[-1]
        os.sched_setaffinity(0, {watcher})
        arrives = programs.counted().index("arrive")
        cells.start(CPUS)
        times = (WARM_MS, WINDOW_MS, WINDOWS * rounds)
        watch = " ".join(map(str, ("./load", "watch", watcher, *times, "spinidle.ko")))
        for mode, cpus in MODES.items():
            host.place(dict(zip((*RECEIVERS, SENDER), cpus, strict=True)))
            with host.offered(PPS, SECONDS):
                lines = succeed("sh", "-c", f"cd {cells.COPIED} && {watch}").splitlines()
            said = [json.loads(line) for line in lines]
            counted = marks(cells.COUNTS.read_text())[-2 * len(said) :]
            every = []
            for window, one in zip(
                windows(counted, [one["ns"] for one in said]), said, strict=True
            ):
                frames = sum(cpu.runs[arrives] for cpu in window)
                here = sorted(set(cpus))
                every.append(cells.figures({**one, "requests": frames}, window, here))
            yield {"load": "light", "contender": mode, "windows": every}


@dataclass(frozen=True, slots=True)
class _Forwarder:
    """`gen` is a network namespace. `irqs` of e0, e1 and s2, one each. `cpus` are the host's,
    without the generator's."""

    gen: str
    program: Path
    irqs: Mapping[str, int]
    cpus: tuple[int, ...]
    generators_cpu: int

    @contextlib.contextmanager
    def offered(self, rate_pps: int, seconds: float) -> Iterator[Child]:
        """Frames by both ports together."""
        words: list[object] = [rate_pps, seconds, DESTINATION]
        for at, name in enumerate(RECEIVERS):
            words += [f"g{at}", MACS[name], f"10.{at + 1}0.0.2"]
        command = ("chrt", "-f", str(GENERATOR_PRIORITY), str(self.program), *map(str, words))
        with child(*command, netns=self.gen, cpus=[self.generators_cpu]) as generator:
            generator.said("sending")
            yield generator

    def place(self, cpus: Mapping[str, int]) -> None:
        """Interrupts, each to one CPU. It has effect with the next one: some frames are sent."""
        for interface, cpu in cpus.items():
            set_affinity(self.irqs[interface], {cpu})
        with self.offered(FEW_PPS, FEW_S) as generator:
            generator.wait(60)
        until(lambda: self._delivered_on() == cpus, f"interrupts are on the CPUs {dict(cpus)}")

    def _delivered_on(self) -> dict[str, int]:
        """The CPU of each interrupt: `effective_affinity_list`."""
        files = {
            name: f"/proc/irq/{irq}/effective_affinity_list" for name, irq in self.irqs.items()
        }
        return {name: int(Path(file).read_text()) for name, file in files.items()}


@contextlib.contextmanager
def _forwarder(folder: Path) -> Iterator[_Forwarder]:
    """One, its namespaces named after this process. OperatorError: the guest has not six functions
    for the ports."""
    program = compiled(SOURCE, folder)
    *cpus, generators_cpu = sorted(os.sched_getaffinity(0))
    gen, fwd, sink = (f"bench{os.getpid()}-{role}" for role in ("gen", "fwd", "sink"))
    with contextlib.ExitStack() as undo:
        undo.enter_context(_ports(cpus))
        for name in (gen, fwd, sink):
            succeed("ip", "netns", "add", name)
            undo.callback(succeed, "ip", "netns", "del", name)
            off = "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"
            succeed("ip", "netns", "exec", name, "sysctl", "-q", "-w", *off)
        # Ports 2N and 2N + 1 are the ends of a wire. What is polled for the host is an even one,
        # so that its frames come by DMA of a NIC on the first node.
        ends = ((fwd, "e0"), (gen, "g0"), (fwd, "e1"), (gen, "g1"), (sink, SENDER), (fwd, EGRESS))
        for port, (netns, name) in enumerate(ends):
            succeed("ip", "link", "set", f"sim{port}", "netns", netns, "name", name)
            if name in MACS:
                succeed("ip", "-n", netns, "link", "set", name, "address", MACS[name])
            succeed("ip", "-n", netns, "link", "set", name, "up")
        for at, name in enumerate((*RECEIVERS, EGRESS), 1):
            succeed("ip", "-n", fwd, "addr", "add", f"10.{at}0.0.1/24", "dev", name)
        succeed("ip", "netns", "exec", fwd, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        neighbour = (DESTINATION, "lladdr", MACS[SENDER], "dev", EGRESS, "nud", "permanent")
        succeed("ip", "-n", fwd, "neigh", "add", *neighbour)
        succeed("tc", "-n", sink, "qdisc", "add", "dev", SENDER, "clsact")
        drops = ("bpf", "direct-action", "object-file", str(SINK), "section", "tc")
        succeed("tc", "-n", sink, "filter", "add", "dev", SENDER, "ingress", *drops)
        named = {action: irq for irq, action in actions().items()}
        irqs = {name: named[f"{name}-TxRx-0"] for name in (*RECEIVERS, SENDER)}
        yield _Forwarder(gen, program, irqs, tuple(cpus), generators_cpu)


@contextlib.contextmanager
def _ports(cpus: list[int]) -> Iterator[None]:
    before = DEFAULT_AFFINITY.read_text()
    DEFAULT_AFFINITY.write_text(f"{sum(1 << cpu for cpu in cpus):x}")
    try:
        options = ("pairs=0", "max_queues=1", "queues=1", "ring=256", "dma=1")
        succeed("insmod", str(MODULE), *options)
        if not Path(f"/sys/class/net/sim{PORTS - 1}").exists():
            raise OperatorError(f"simnic has less than {PORTS} ports", "--nic nvme:6")
        yield
    finally:
        until(unloaded, "simnic is unloaded", 30)
        DEFAULT_AFFINITY.write_text(before)
