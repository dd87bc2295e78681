# SPDX-License-Identifier: GPL-2.0-or-later
"""Two flows of a lab that never stop, and a process that moves one of them, with a fault in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from atfnd.model import Filter, FlowKey, Match, Protocol
from atfnd.move.timer import Times
from bench.traffic.sequence import Sequence, sequence
from tests.daemon.faulty import with_fault
from tests.daemons import Daemon
from tests.labs import Lab, key_of
from tests.move.moving import cookie_of
from tests.wait import until
from tests.zygote import Forked

__all__ = ["SOON_S", "A", "B", "Moves", "Traffic", "in_kernel", "loaded", "moves", "restarts"]
__all__ += ["restored", "stopped", "two_flows"]

RATE_PPS = 2_000
SOON_S = 1.0
A, B = 0, 1
LEAVE = """\
version: 1
flows:
  - name: everything
    match: { protocol: [tcp, udp] }
    placement: leave
"""
MOVER = str(Path(__file__).with_name("mover.py"))


class Flow(NamedTuple):
    """Numbered datagrams on their way."""

    receiver: socket.socket
    key: FlowKey
    running: Sequence

    def received_since(self, at_ns: int) -> bool:
        """The kernel has (CLOCK_REALTIME)."""
        return self.running.so_far().last_ns > at_ns


class Traffic(NamedTuple):
    """Two flows of one lab: one is moved from A to B, the other comes through B by a rule that is
    not ours."""

    lab: Lab
    moved: Flow
    neighbour: Flow

    def flows(self) -> None:
        """From now on, both, within a second."""
        now_ns = time.time_ns()
        for flow in (self.moved, self.neighbour):
            until(partial(flow.received_since, now_ns), f"{flow.key} flows", SOON_S)

    def filters(self) -> list[Filter]:
        """All but the neighbour's."""
        theirs = Match.of(self.neighbour.key)
        rules = [rule._replace(hits=None) for rule in self.lab.nic.filters()]
        return [rule for rule in rules if rule.match != theirs]

    def seats(self) -> list[tuple[set[int], int, int]]:
        """Where and how the NIC's threads may run."""
        pids = [queue.pid or 0 for queue in self.lab.nic.queues()]
        scheduled = [(os.sched_getscheduler(p), os.sched_getparam(p).sched_priority) for p in pids]
        return [(os.sched_getaffinity(pid), *how) for pid, how in zip(pids, scheduled, strict=True)]


@contextmanager
def two_flows(lab: Lab) -> Iterator[Traffic]:
    """Their datagrams flow until the end."""
    with ExitStack() as undo:

        def flow(port: int) -> Flow:
            sender, receiver = lab.udp_pair(socket.AF_INET, port, port)
            running = undo.enter_context(sequence(sender, receiver, RATE_PPS))
            return Flow(receiver, key_of(receiver, Protocol.UDP), running)

        made = Traffic(lab, flow(5000), flow(5001))
        lab.nic.insert(Match.of(made.neighbour.key), B)
        yield made


class Moves(NamedTuple):
    """A process that moves the flow, with a fault in it. `loaded`: programs and links of it."""

    process: subprocess.Popen[str]
    loaded: set[tuple[str, int]]

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def faulted(self) -> None:
        """The fault has come; a move before it may have been deferred, on a busy machine."""
        while (said := self.says()) != "fault":
            assert said.startswith("deferred"), said

    def killed(self) -> None:
        assert self.process.wait(60) == -signal.SIGKILL


@contextmanager
def moves(
    traffic: Traffic, folder: Path, scene: str, fault: str, hold_max_ns: int = Times().hold_max_ns
) -> Iterator[Moves]:
    run_dir, flow, name = folder / "run", traffic.moved, traffic.lab.name
    run_dir.mkdir()
    key, cookie = flow.key, cookie_of(flow.receiver)
    remote = key.remote_port if scene != "retire" else key.remote_port + 2  # nobody's
    arguments = (name, run_dir, scene, hold_max_ns, cookie, key.local_port, remote)
    words = [*with_fault(fault, name), MOVER, *map(str, arguments)]
    with Forked(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            made = Moves(process, set())
            assert made.says() == "ready"
            made.loaded.update(loaded(process.pid))
            assert made.loaded
            process.stdin.write("go\n")
            process.stdin.flush()
            yield made
        finally:
            process.kill()


def stopped(pid: int) -> bool:
    """By a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def loaded(pid: int) -> Iterator[tuple[str, int]]:
    """The BPF programs and links that a process has open; what it closes now may be missing."""
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = each.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            what, _, number = line.partition(":")
            if what in ("prog_id", "link_id"):
                yield what.removesuffix("_id"), int(number)


def in_kernel() -> set[tuple[str, int]]:
    """All there are."""
    return {(kind, each) for kind in ("prog", "link") for each in _ids(kind)}


def _ids(kind: str) -> list[int]:
    """bpftool fails when one of them, of any process, goes while it lists them."""

    def listed() -> tuple[list[int]] | None:
        done = subprocess.run(["bpftool", "-j", kind, "show"], capture_output=True, text=True)
        return ([each["id"] for each in json.loads(done.stdout)],) if not done.returncode else None

    found = until(listed, f"bpftool lists every {kind}")
    assert found is not None
    return found[0]


def restarts(traffic: Traffic, folder: Path) -> list[str]:
    """A daemon takes over or deletes what was left; what it says of it. Then all is restored."""
    daemon, name = Daemon(folder, LEAVE), traffic.lab.nic.name
    try:
        daemon.start("--nic", name, "--arm", name, "--observer", "bpf")
        said = [event["what"] for event in daemon.events("adopt")]
        traffic.flows()
        assert daemon.end() == 0
    finally:
        daemon.reap()
    restored(traffic, daemon)
    return said


def restored(traffic: Traffic, daemon: Daemon) -> None:
    """None of our filters is left."""
    assert daemon.restore().returncode == 0
    assert traffic.filters() == []
