# SPDX-License-Identifier: GPL-2.0-or-later
"""A namespace that forwards between veths of several queues, each with a NAPI thread.

    gen - f0, f1, ... [forwards] out - sink

What a sender on CPU c sends comes in by receive queue c (`xps_cpus` of the generator's end).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from atfnd.nic.ethtool.nic import EthtoolNic
from bench.children import Child, child
from bench.traffic.datagrams import built, read_log
from tests.kernel.netns import Net

__all__ = ["OUT", "QUEUES", "SINK", "Flow", "Router", "a_router"]

QUEUES, FLOWS = 2, 4
OUT, SINK = "out", "10.78.9.2"


class Flow(NamedTuple):
    """Numbered datagrams that come in by one interface and queue."""

    sender: Child
    checker: Child
    log: Path

    def stop(self) -> None:
        self.sender.stop()
        self.checker.stop()

    def arrived(self) -> int:
        """How many came, once it has stopped."""
        return sum(1 for _ in read_log(self.log.read_bytes()))

    def late(self) -> int:
        """How many came after a later one of their flow, once it has stopped."""
        return sum(each.late for each in read_log(self.log.read_bytes()))


class Router:
    """`ins` are the interfaces that packets come in by, the first one f0."""

    def __init__(self, stack: ExitStack, folder: Path, ins: int) -> None:
        self._stack, self._folder, self._program = stack, folder, built(folder)
        self.gens = [Net(stack) for _ in range(ins)]
        self.forwards, self.sink = Net(stack), Net(stack)
        self.ins = [f"f{i}" for i in range(ins)]
        for i, (gen, near) in enumerate(zip(self.gens, self.ins, strict=True)):
            self._link(gen, f"g{i}", near, f"10.78.{i}")
            for queue in range(QUEUES):
                self._write(gen, f"g{i}", f"queues/tx-{queue}/xps_cpus", f"{1 << queue:x}")
        self._link(self.sink, "s0", OUT, "10.78.9")
        self._inside(self.forwards, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.nics = {
            name: stack.enter_context(closing(EthtoolNic(name, self.forwards.path)))
            for name in (*self.ins, OUT)
        }

    def _link(self, far: Net, device: str, near: str, prefix: str) -> None:
        host, queues = self.forwards.name, f"numrxqueues {QUEUES} numtxqueues {QUEUES}"
        made = f"link add {near} netns {host} {queues} type veth peer name {device} {queues}"
        self._run("ip", *made.split(), "netns", far.name)
        for net, name, last in ((self.forwards, near, 1), (far, device, 2)):
            self._inside(net, "ethtool", "-L", name, "rx", str(QUEUES), "tx", str(QUEUES))
            self._run("ip", "-n", net.name, "addr", "add", f"{prefix}.{last}/24", "dev", name)
        # By NAPI at both ends, which takes GRO at one and no TSO at the other
        # (veth_skb_is_eligible_for_gro()). Else what comes passes the backlog of the CPU that sent
        # it: those of two CPUs keep no order.
        for net, name in ((self.forwards, near), (far, device)):
            self._inside(net, "ethtool", "-K", name, "gro", "on", "tso", "off")
        for net, name in ((self.forwards, near), (far, device)):
            self._run("ip", "-n", net.name, "link", "set", name, "up")
        # Nobody is asked where it is: what waits for the answer may be overtaken.
        for (net, name), (other, its), last in (
            ((self.forwards, near), (far, device), 2),
            ((far, device), (self.forwards, near), 1),
        ):
            words = ("ip", "netns", "exec", other.name, "cat", f"/sys/class/net/{its}/address")
            mac = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
            address = f"{prefix}.{last} lladdr {mac} dev {name} nud permanent"
            self._run("ip", "-n", net.name, "neigh", "replace", *address.split())
        self._write(self.forwards, near, "threaded", "1")
        self._run("ip", "-n", far.name, "route", "add", "default", "via", f"{prefix}.1")

    def forward(self, nic: str, queue: int, rate_pps: int) -> Flow:
        """Datagrams come in by this queue from now on, and go out by OUT."""
        number = self.ins.index(nic)
        first, peer = 10_000 + 100 * (QUEUES * number + queue), f"10.78.{number}.2"
        log = self._folder / f"log{first}"
        program, start, cpus = self._program, self._stack.enter_context, os.sched_getaffinity(0)
        checks = map(str, (program, "check", SINK, first, FLOWS, peer, 0, log))
        checker = start(child(*checks, netns=self.sink.name, cpus=cpus))
        checker.said("ready")
        sends = map(str, (program, "send", SINK, first, FLOWS, rate_pps, FLOWS, 16))
        sender = start(child(*sends, netns=self.gens[number].name, cpus=[queue]))
        sender.said("ready")
        return Flow(sender, checker, log)

    def put(self, nic: str, cpus: Sequence[int]) -> None:
        """Its queues are on these CPUs."""
        for queue, cpu in enumerate(cpus):
            self.nics[nic].set_queue_cpu(queue, cpu)

    def cpus(self, nic: str) -> list[int | None]:
        return [queue.cpu for queue in self.nics[nic].queues()]

    def xps(self, nic: str) -> list[str | None]:
        return [self.nics[nic].setting(f"xps-cpus:{queue}") for queue in range(QUEUES)]

    def wrapped(self) -> list[str]:
        """What runs a daemon inside, with the cgroups of the machine."""
        return ["nsenter", f"--net={self.forwards.path}"]

    def _write(self, net: Net, device: str, file: str, text: str) -> None:
        path = f"/sys/class/net/{device}/{file}"
        self._inside(net, "sh", "-c", f"echo {text} > {path}")

    def _inside(self, net: Net, *words: str) -> None:
        self._run("ip", "netns", "exec", net.name, *words)

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True)


@contextmanager
def a_router(folder: Path, ins: int) -> Iterator[Router]:
    with ExitStack() as stack:
        yield Router(stack, folder, ins)
