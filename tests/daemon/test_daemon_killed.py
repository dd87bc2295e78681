# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon itself, killed while it moves a flow: as test_fail_open.py, from an application that
runs on another CPU on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from atfnd.program.journals.filter_journal import FilterJournal
from tests.applications import CPUS, rss_cpu
from tests.daemon.failing import Traffic, in_kernel, loaded, restarts
from tests.daemon.faulty import with_fault
from tests.daemons import Daemon, standing
from tests.wait import until

STRICT = """\
version: 1
daemon: { settle: { hold_down: 10ms } }
flows:
  - name: neighbour
    match: { ports: [5001] }
    placement: leave
  - name: moved
    match: { protocol: udp }
    placement: { near: core }
    full_core: stay
    order: strict
    dwell: 20ms
"""


FAULT_S = 90  # beside others, moves are deferred, each time for longer
ADOPTED = ["1 filters taken over, 0 orphans deleted"]


def start(traffic: Traffic, folder: Path, fault: str | None = None) -> Daemon:
    daemon, name = Daemon(folder, STRICT), traffic.lab.nic.name
    wrapped = [] if fault is None else with_fault(fault, traffic.lab.name)
    daemon.spawn("--nic", name, "--arm", name, "--observer", "bpf", wrapped=wrapped)
    return daemon


def rule_cpus(traffic: Traffic) -> list[int | None]:
    """Where our filters lead."""
    queues = traffic.lab.nic.queues()
    return [None if rule.queue is None else queues[rule.queue].cpu for rule in traffic.filters()]


def killed(traffic: Traffic, folder: Path, fault: str) -> None:
    """A daemon is, by its fault: traffic flows, and nothing of it is attached."""
    before, held = in_kernel(), set[tuple[str, int]]()
    daemon = start(traffic, folder, fault)
    process = daemon.process
    assert process is not None

    def dead() -> bool:
        """Not of it is the NIC's own program, which it opens for a moment, and which stays."""
        held.update(set(loaded(process.pid)) - before)
        return process.poll() is not None

    until(dead, "the fault comes", FAULT_S)
    assert process.returncode == -signal.SIGKILL, daemon.said()
    traffic.flows()
    assert held
    until(lambda: not held & in_kernel(), "nothing is attached")


def off_rss(traffic: Traffic) -> int:
    """A CPU where RSS does not deliver the flow."""
    by_rss = rss_cpu(traffic.lab, traffic.moved.key)
    return next(cpu for cpu in CPUS if cpu != by_rss)


@pytest.mark.parametrize(
    ("state", "done"),
    [
        ("hold after hold", False),
        ("commit after claim", False),
        ("commit after insert", True),
        ("verify before release", True),
    ],
)
def test_killed_over_a_first_rule(traffic: Traffic, tmp_path: Path, state: str, done: bool) -> None:
    before, seats = standing(traffic.lab), traffic.seats()
    there = off_rss(traffic)
    os.sched_setaffinity(traffic.moved.running.checker.pid, {there})
    killed(traffic, tmp_path, f"kill {state}")
    assert traffic.seats() == seats
    assert rule_cpus(traffic) == ([there] if done else [])
    journal, name = FilterJournal(tmp_path / "run/filters.journal"), traffic.lab.nic.name
    assert journal.ours(name, traffic.filters()) == traffic.filters()
    journal.close()
    assert restarts(traffic, tmp_path) == (ADOPTED if done else [])
    assert standing(traffic.lab) == before


@pytest.mark.parametrize(
    ("state", "done"),
    [
        ("commit before write", False),
        ("commit after write", True),
    ],
)
def test_killed_while_a_queue_follows(
    traffic: Traffic, tmp_path: Path, state: str, done: bool
) -> None:
    """What it changed of the queue is known to `restore`."""
    before, seats = standing(traffic.lab), traffic.seats()
    application, there = traffic.moved.running.checker.pid, off_rss(traffic)
    os.sched_setaffinity(application, {there})
    daemon = start(traffic, tmp_path)
    until(lambda: rule_cpus(traffic) == [there], "it has its first rule")
    assert daemon.end() == 0
    here = next(cpu for cpu in CPUS if cpu != there)
    os.sched_setaffinity(application, {here})
    killed(traffic, tmp_path, f"kill {state}")
    assert rule_cpus(traffic) == [here if done else there]
    assert restarts(traffic, tmp_path) == ADOPTED
    assert standing(traffic.lab) == before
    assert traffic.seats() == seats
