# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon in a namespace that forwards between veths of several queues, each with a NAPI thread:
channels come to the CPUs that a rule asks for, in order, and are put back.

    gen - f0, f1, ... [forwards] out - sink

What a sender on CPU c sends comes in by receive queue c (`xps_cpus` of the generator's end).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from atfnd.nic.ethtool.nic import EthtoolNic
from bench.children import Child, child
from bench.traffic.datagrams import built, read_log
from tests.daemons import ATFND, Daemon
from tests.kernel.netns import Net
from tests.wait import until

QUEUES, FLOWS = 2, 4
OUT, SINK = "out", "10.78.9.2"
INS = ("f0", "f1")
PPS = 2000
CPUS = [0, 1]
POLICY = f"""\
version: 1
interfaces:
  - match: {{ name: "f*" }}
    armed: true
forwarding:
  - name: gateway
    match: {{ in: "f*", out: "{OUT}" }}
    placement: {{ pair: core }}
"""

pytestmark = pytest.mark.usefixtures("own_affinity")


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
    """Packets come in by INS and go out by OUT."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder, self._program = stack, folder, built(folder)
        self.gens = [Net(stack) for _ in INS]
        self.forwards, self.sink = Net(stack), Net(stack)
        for i, (gen, near) in enumerate(zip(self.gens, INS, strict=True)):
            self._link(gen, f"g{i}", near, f"10.78.{i}")
            for queue in range(QUEUES):
                self._write(gen, f"g{i}", f"queues/tx-{queue}/xps_cpus", f"{1 << queue:x}")
        self._link(self.sink, "s0", OUT, "10.78.9")
        self._inside(self.forwards, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.nics = {
            name: stack.enter_context(closing(EthtoolNic(name, self.forwards.path)))
            for name in (*INS, OUT)
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
        number = INS.index(nic)
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


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    with ExitStack() as stack:
        yield Router(stack, tmp_path)


def test_channels_come_together_in_order_and_go_back(router: Router, tmp_path: Path) -> None:
    """What goes out is not armed at first: the channels that carry the packets have to move."""
    for nic in INS:
        router.put(nic, [1, 0])
    router.put(OUT, CPUS)
    # Each interface receives by one queue, another one each.
    flows = [router.forward(nic, queue, PPS) for queue, nic in enumerate(INS)]
    daemon = Daemon(tmp_path, POLICY)
    try:
        nics = (word for nic in router.nics for word in ("--nic", nic))
        daemon.start(*nics, wrapped=router.wrapped())
        together = "channels of one number are on one CPU"
        until(lambda: all(router.cpus(nic) == CPUS for nic in INS), together, 60)
        pairs = daemon.get("/v1/pairs?seconds=1")["pairs"]
        assert {row["rule"] for row in pairs} - {None} == {"gateway"}
        assert router.xps(OUT) == ["", ""]
        daemon.order("arm", OUT)
        for flow in flows:
            flow.stop()
        assert all(flow.arrived() > 0 for flow in flows)
        assert [flow.late() for flow in flows] == [0, 0]
        until(lambda: router.xps(OUT) == ["0", "1"], "each CPU has its TX queue", 60)
        moves = daemon.events("queue-cpu")
        assert {(row["nic"], row["rule"]) for row in moves} == {(nic, "gateway") for nic in INS}
        assert daemon.end() == 0
    finally:
        daemon.reap()
    words = (ATFND, "restore", "--run-dir", str(daemon.run_dir))
    subprocess.run([*router.wrapped(), *words], check=True, capture_output=True)
    assert [router.cpus(nic) for nic in (*INS, OUT)] == [[1, 0], [1, 0], CPUS]
    assert all(router.xps(nic) == ["", ""] for nic in router.nics)
