# SPDX-License-Identifier: GPL-2.0-or-later
"""Real servers whose flows come and go faster than filters are written: nothing of ours is left.

Under the built-in policy, on the lab. The simulation has the same in every order of events; here is
the kernel.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.applications import CPUS
from tests.daemons import USUAL, Daemon
from tests.kernel.netns import listening
from tests.labs import Lab
from tests.wait import until

HOST4 = "10.9.0.1"
EVERY_S = 0.15
PORTS = (5201, 5202)
USUAL_PACE = ("env", "ATFND_PACE=1")
GONE_S = 3.0
FLOWS = 400  # of both servers, in two rounds
DEFERRED_EACH = 5  # measured: about 1 (378 to 490 in all)


@contextmanager
def servers(lab: Lab) -> Iterator[list[int]]:
    """Two, by their pids: on one CPU until they `wander`."""
    with ExitStack() as stack:
        pids = []
        for port in PORTS:
            words = ["taskset", "-c", str(CPUS[0]), "ip", "netns", "exec", f"{lab.name}-host"]
            words += ["iperf3", "-s", "-p", str(port)]
            server = stack.enter_context(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            stack.callback(server.kill)
            pids.append(server.pid)
            until(partial(listening, f"{lab.name}-host", port), f"port {port} is served")
        yield pids


def wander(pids: list[int], running: list[subprocess.Popen[bytes]], most: int = 1000) -> None:
    """Migrate every thread of these processes to the next CPU, again and again."""
    for number in range(most):
        for pid in pids:
            for tid in map(int, os.listdir(f"/proc/{pid}/task")):
                os.sched_setaffinity(tid, {CPUS[(number + pid) % len(CPUS)]})
        try:
            for each in running:
                each.wait(EVERY_S)
        except subprocess.TimeoutExpired:
            continue
        return


def clients(lab: Lab, seconds: int) -> list[subprocess.Popen[bytes]]:
    """A hundred UDP flows to each server."""
    command = ["ip", "netns", "exec", f"{lab.name}-peer", "iperf3", "-c", HOST4, "-u"]
    command += ["-P", "100", "-b", "300K", "-l", "1000", "-t", str(seconds)]
    return [
        subprocess.Popen([*command, "-p", str(port)], stdout=subprocess.DEVNULL) for port in PORTS
    ]


def deferred(daemon: Daemon) -> int:
    """Moves that were put off."""
    moves = daemon.status()["moves"]
    return sum(each["count"] for each in moves if each["verdict"] == "deferred")


def test_no_filter_of_udp_flows_that_come_and_go(lab: Lab, tmp_path: Path) -> None:
    """At the usual pace: their filters go with their sockets, nobody else is blamed for a filter of
    ours, and nothing is tried thousands of times. A stop at that moment leaves nothing either."""
    daemon, name = Daemon(tmp_path, USUAL), lab.nic.name
    try:
        daemon.start("--nic", name, "--arm", name, "--observer", "bpf", wrapped=USUAL_PACE)
        for last in (False, True):
            with servers(lab) as pids:
                wander(pids, clients(lab, 4))
            if not last:
                until(lambda: lab.nic.filters() == [], "their filters go", GONE_S)
        exists = [e for e in daemon.events("refused") if "File exists" in str(e)]
        assert daemon.events("insert")
        assert daemon.events("manual") == []
        assert daemon.status()["flows_by_state"]["manual"] == 0
        assert deferred(daemon) < DEFERRED_EACH * FLOWS
        daemon.end()
        done = daemon.restore()
        assert (done.returncode, lab.nic.filters()) == (0, [])
        assert exists == []
    finally:
        daemon.reap()


def test_no_filter_after_a_kill_in_the_middle(lab: Lab, tmp_path: Path) -> None:
    daemon, name = Daemon(tmp_path, USUAL), lab.nic.name
    try:
        for _ in range(2):
            with servers(lab) as pids, ExitStack() as stack:
                daemon.start("--nic", name, "--arm", name, "--observer", "bpf")
                running = clients(lab, 120)  # until they are killed
                for each in running:
                    stack.callback(each.wait)
                    stack.callback(each.kill)
                until(lambda: lab.nic.filters(), "filters are written")
                wander(pids, running, 12)
                daemon.end(signal.SIGKILL)
                assert daemon.restore().returncode == 0
                assert lab.nic.filters() == []
    finally:
        daemon.reap()
