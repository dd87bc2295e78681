# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon itself, killed, stopped or with its NIC reset while it moves a flow: as
test_fail_open.py and test_broken_holds.py, from an application that runs on another CPU on."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from atfnd.program.journal import Journal
from tests.applications import CPUS, rss_cpu
from tests.daemons import Daemon, standing
from tests.failing import SOON_S, Traffic, in_kernel, loaded, restarts, stopped
from tests.faulty import with_fault
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
    order: strict
    dwell: 20ms
"""


def start(traffic: Traffic, folder: Path, fault: str | None = None) -> Daemon:
    daemon, name = Daemon(folder, STRICT), traffic.lab.nic.name
    wrapped = [] if fault is None else with_fault(fault, traffic.lab.name)
    daemon.spawn("--nic", name, "--arm", name, "--observer", "bpf", wrapped=wrapped)
    return daemon


def rule_cpus(traffic: Traffic) -> list[int | None]:
    """Where our rules lead."""
    queues = traffic.lab.nic.queues()
    return [None if rule.queue is None else queues[rule.queue].cpu for rule in traffic.rules()]


def off_rss(traffic: Traffic) -> int:
    """A CPU where RSS does not deliver the flow."""
    by_rss = rss_cpu(traffic.lab, traffic.moved.key)
    return next(cpu for cpu in CPUS if cpu != by_rss)


FIRST, LATER = "its first rule", "another queue"


@pytest.mark.parametrize(
    ("what", "state", "done"),
    [
        (FIRST, "hold before hold", False),
        (FIRST, "hold after hold", False),
        (FIRST, "commit after claim", False),
        (FIRST, "commit after insert", True),
        (FIRST, "settle before drain_evidence", True),
        (FIRST, "verify before release", True),
        (LATER, "hold after hold", False),
        (LATER, "commit before insert", False),
        (LATER, "commit after insert", True),
        (LATER, "settle before evidence", True),
        (LATER, "verify after release", True),
        (LATER, "verify before evidence", True),
    ],
)
def test_the_daemon_killed(
    traffic: Traffic, tmp_path: Path, what: str, state: str, done: bool
) -> None:
    before, seats = standing(traffic.lab), traffic.seats()
    application = traffic.moved.running.checker.pid
    here = elsewhere = off_rss(traffic)
    os.sched_setaffinity(application, {here})
    if what == LATER:
        daemon = start(traffic, tmp_path)
        until(lambda: rule_cpus(traffic) == [here], "it has its first rule")
        assert daemon.end() == 0
        here = next(cpu for cpu in CPUS if cpu != elsewhere)
        os.sched_setaffinity(application, {here})
    daemon = start(traffic, tmp_path, f"kill {state}")
    assert daemon.process is not None
    process, held = daemon.process, set(loaded(daemon.process.pid))

    def dead() -> bool:
        held.update(loaded(process.pid))
        return process.poll() is not None

    until(dead, "the fault comes", 60)
    assert process.returncode == -signal.SIGKILL, daemon.said()
    traffic.flows()
    assert traffic.seats() == seats
    assert held
    until(lambda: not held & in_kernel(), "nothing is attached", SOON_S)
    left = [here] if done else [elsewhere] if what == LATER else []
    assert rule_cpus(traffic) == left
    journal, name = Journal(tmp_path / "run/rules.journal"), traffic.lab.nic.name
    assert journal.ours(name, traffic.rules()) == traffic.rules()
    journal.close()
    adopted = ["1 rules taken over, 0 orphans deleted"] if left else []
    assert restarts(traffic, tmp_path) == adopted
    assert standing(traffic.lab) == before


@pytest.mark.parametrize("fault", ["stop", "flap"])
@pytest.mark.parametrize(
    "state", ["hold after hold", "settle before drain_evidence", "verify before evidence"]
)
def test_the_daemon_goes_on(traffic: Traffic, tmp_path: Path, fault: str, state: str) -> None:
    here = off_rss(traffic)
    os.sched_setaffinity(traffic.moved.running.checker.pid, {here})
    daemon = start(traffic, tmp_path, f"{fault} {state}")
    try:
        until(lambda: "fault\n" in daemon.said(), "the fault comes", 60)
        assert daemon.process is not None
        if fault == "stop":
            until(partial(stopped, daemon.process.pid), "it is stopped")
        traffic.flows()
        daemon.process.send_signal(signal.SIGCONT)
        until(lambda: daemon.answers() and rule_cpus(traffic) == [here], "it is moved")
        traffic.flows()
        assert daemon.end() == 0
    finally:
        daemon.reap()
    assert restarts(traffic, tmp_path) == ["1 rules taken over, 0 orphans deleted"]
