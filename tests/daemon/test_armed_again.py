# SPDX-License-Identifier: GPL-2.0-or-later
"""Armed and taken back again and again, while real TCP servers are moved: after each order the NIC
is as it was found.

Of four servers two are pinned; the others come to another CPU at the moment of each order, and may
run on any.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atfnd.model import Match
from tests.applications import CPUS
from tests.daemons import USUAL, Daemon, standing
from tests.kernel.netns import listening
from tests.labs import Lab
from tests.values import key
from tests.wait import until

__all__: list[str] = []

HOST4 = "10.9.0.1"
ROUNDS = 30
PORTS = (5201, 5202, 5203, 5204)
PINNED = PORTS[:2]
STREAMS = 4


@contextmanager
def served(lab: Lab) -> Iterator[list[int]]:
    """Every server has a client of four streams; the pids of those that are not pinned."""
    host, peer = (["ip", "netns", "exec", f"{lab.name}-{role}"] for role in ("host", "peer"))
    pids = []
    with ExitStack() as stack:

        def run(*words: str) -> int:
            made = stack.enter_context(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            stack.callback(made.kill)
            return made.pid

        for number, port in enumerate(PORTS):
            cpu = str(CPUS[number % len(CPUS)])
            pin = ["taskset", "-c", cpu] if port in PINNED else []
            pid = run(*host, *pin, "iperf3", "-s", "-p", str(port))
            pids += [pid] if port not in PINNED else []
            until(lambda port=port: listening(f"{lab.name}-host", port), f"{port} is served")  # type: ignore[misc]
            streams = ["-P", str(STREAMS), "-b", "5M", "-t", "3600"]
            run(*peer, "iperf3", "-c", HOST4, "-p", str(port), *streams)
        yield pids


def comes_to(pid: int, cpu: int) -> None:
    """Its threads are migrated, and may run on any CPU."""
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        os.sched_setaffinity(tid, {cpu})
        os.sched_setaffinity(tid, CPUS)


def has_written(daemon: Daemon, lab: Lab, number: int) -> None:
    """A filter of ours is in the NIC; else it is said what kept the flows back."""
    try:
        until(lambda: len(lab.nic.filters()) > 1, f"round {number}: filters are written")
    except AssertionError as late:
        flows = Counter((row["state"], row["why"]) for row in daemon.flows())
        said = [(event["what"], event["why"]) for event in daemon.events()[-20:]]
        raise AssertionError(f"{late}; {flows}; {said}; {daemon.status()}") from late


def test_nothing_is_left_after_any_of_thirty_orders(lab: Lab, tmp_path: Path) -> None:
    daemon, name = Daemon(tmp_path, USUAL), lab.nic.name
    foreign = lab.nic.insert(Match.of(key(7)), 0)
    before = standing(lab)
    try:
        daemon.start("--nic", name, "--observer", "bpf")
        with served(lab) as pids:
            for number in range(ROUNDS):
                verb, back = (("restore", "arm"), ("pause", "resume"))[number % 2]
                daemon.order("arm", name)
                has_written(daemon, lab, number)
                for pid in pids:
                    comes_to(pid, CPUS[number % len(CPUS)])
                done = daemon.ctl(verb, name)
                left = [rule for rule in lab.nic.filters() if rule.location != foreign]
                assert (number, done.returncode, left) == (number, 0, []), done.stdout + done.stderr
                if verb == "restore":
                    assert standing(lab) == before
                daemon.order(back, name)
        assert daemon.end() == 0
        assert daemon.restore().returncode == 0
        assert standing(lab) == before
        assert "Traceback" not in daemon.said()
    finally:
        daemon.reap()
