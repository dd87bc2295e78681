# SPDX-License-Identifier: GPL-2.0-or-later
"""A measurement under live traffic: what it finds, and that the NIC is afterwards as it was,
however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from atfnd.model import Match
from tests.bed import Bed, a_bed
from tests.daemon.failing import LEAVE
from tests.daemons import STOP_S
from tests.labs import Lab
from tests.serve.asking import ATFNCTL, environment
from tests.serve.shown import key
from tests.wait import until
from tests.zygote import Forked

SHORT = ("--for", "8s", "--slot", "1s", "--settle", "0s")
LONG = ("--for", "10m", "--slot", "3s", "--settle", "1s")


def orders(bed: Bed) -> bytes:
    """What the next run will know of the operator's orders."""
    return (bed.daemon.run_dir / "orders.journal").read_bytes()


class Measured:
    """A NIC with a filter of somebody else, and with two steered connections."""

    def __init__(self, lab: Lab, bed: Bed) -> None:
        self.lab, self.bed, self.name = lab, bed, lab.nic.name
        self.untouched = self.standing()
        self.apps = [bed.apps.tcp(), bed.apps.tcp()]  # before queues move: off RSS without atfnd
        bed.start()
        self.steered()
        self.before, self.orders = self.standing(), orders(bed)
        assert self.before != self.untouched

    def standing(self) -> tuple[object, ...]:
        """Everything of the NIC that a daemon may change: which CPU each filter leads to, because
        it may come back at another location, and on another queue of that CPU."""
        cpus = [queue.cpu for queue in self.lab.nic.queues()]
        filters = [
            (f.match, None if f.queue is None else cpus[f.queue]) for f in self.lab.nic.filters()
        ]
        return sorted(map(str, filters)), cpus, self.lab.nic.rss()

    def steered(self) -> None:
        for app in self.apps:
            self.bed.steered(app)

    def state(self) -> tuple[bool, bool]:
        """Armed, paused."""
        (row,) = self.bed.daemon.get("/v1/nics")["nics"]
        return row["armed"], row["paused"]

    def set_aside(self) -> None:
        """Wait for a slot without atfnd, in which nothing of it is there."""
        until(lambda: self.state() == (False, True), "a slot is paused", 30)
        until(lambda: self.standing() == self.untouched, "nothing of ours is in it", 30)

    def as_before(self) -> None:
        """It is armed and steers as before, and the next run would know of nothing."""
        until(lambda: self.state() == (True, False), "it is armed again", 30)
        until(lambda: self.standing() == self.before, "it is steered as before", 30)
        assert orders(self.bed) == self.orders

    def ended(self) -> str:
        """Why, as the daemon says."""
        (event,) = until(
            lambda: [e for e in self.bed.daemon.events("measure") if e["what"] == "ended early"],
            "it has ended early",
            30,
        ) or [{}]
        return str(event["why"])

    def client(self, *options: str) -> subprocess.Popen[str]:
        command = [ATFNCTL, "measure", self.name, *options]
        return Forked(
            command, env=environment(self.bed.daemon), stdout=PIPE, stderr=PIPE, text=True
        )


@pytest.fixture
def measured(shared_lab: Lab, tmp_path: Path) -> Iterator[Measured]:
    shared_lab.nic.insert(Match.of(key(7)), 0)
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        yield Measured(shared_lab, bed)


@contextmanager
def under_way(measured: Measured) -> Iterator[subprocess.Popen[str]]:
    """A measurement, in a slot without atfnd; its client ends with the block."""
    with measured.client(*LONG) as client:
        try:
            measured.set_aside()
            yield client
        finally:
            client.kill()


def test_what_it_finds(measured: Measured) -> None:
    """RSS delivers both connections on another CPU than their threads are on; atfnd does not."""
    with measured.client(*SHORT, "--json") as client:
        measured.set_aside()
        said, complaints = client.communicate(timeout=60)
    assert (client.returncode, complaints) == (0, "")
    measured.as_before()
    found = json.loads(said)
    figures = {row["figure"]: row for row in found["figures"]}
    assert (found["nic"], found["pairs"], found["slots_lost"]) == (measured.name, 4, 0)
    locality = figures["read_locality"]
    assert locality["paused"] < 0.2 < 0.7 < locality["armed"]
    assert locality["low"] > 0
    unknown = {name for name, row in figures.items() if row["armed"] is None}
    assert unknown == {"interrupts_per_1000"}  # a veth has none
    assert all(row["pairs"] == 4 for name, row in figures.items() if name not in unknown)
    for name in ("cpu_per_packet", "cpu_per_byte", "network_cpu_per_packet", "rtt", "throughput"):
        assert figures[name]["paused"] > 0
        assert figures[name]["armed"] > 0
    parts = ("network_cpu_per_packet", "application_cpu_per_packet")
    for when in ("armed", "paused"):
        assert sum(figures[part][when] for part in parts) < 1.5 * figures["cpu_per_packet"][when]
    events = measured.bed.daemon.events("measure")
    assert [event["what"] for event in events] == ["begun", "ended"]
    assert events[1]["why"] == found["sentence"]


def test_two_policies(measured: Measured, tmp_path: Path) -> None:
    """The other one leaves everything alone; it is never paused, and nothing is overtaken."""
    other = tmp_path / "other.yaml"
    other.write_text(LEAVE)

    def files() -> object:
        return measured.bed.daemon.status()["policy_files"]

    with measured.client(*SHORT, "--against", str(other), "--json") as client:
        until(lambda: files() == [str(other)], "the other policy is in force", 30)
        assert measured.state() == (True, False)
        said, complaints = client.communicate(timeout=60)
    assert (client.returncode, complaints) == (0, "")
    measured.as_before()
    assert files() == [str(measured.bed.daemon.config)]
    found = json.loads(said)
    assert (found["pairs"], found["against"]) == (4, str(other))
    with measured.client(*LONG, "--against", str(other)) as client:
        until(lambda: files() == [str(other)], "the other policy is in force again", 60)
        client.send_signal(signal.SIGKILL)
        client.wait(STOP_S)
        until(lambda: files() == [str(measured.bed.daemon.config)], "ours is back", 30)
        measured.as_before()


def test_ctrl_c_shows_what_is_known(measured: Measured) -> None:
    with measured.client("--for", "10m", "--slot", "1s", "--settle", "0s") as client:
        paused = [False]

        def turns() -> int:
            now = measured.state()[1]
            if now != paused[-1]:
                paused.append(now)
            return len(paused)

        until(lambda: turns() > 7, "several slots have passed", 60)
        client.send_signal(signal.SIGINT)
        said, complaints = client.communicate(timeout=60)
    assert client.returncode == 1
    assert said.startswith("FIGURE")
    assert complaints == "atfnd: ended early, and the interface is as it was\n"
    measured.as_before()


def test_the_daemon_is_killed(measured: Measured) -> None:
    """What it had set aside is not there, and the next run arms the NIC as the one before."""
    with under_way(measured) as client:
        measured.bed.daemon.end(signal.SIGKILL)
        assert client.wait(STOP_S) != 0
        assert measured.standing() == measured.untouched
        assert orders(measured.bed) == measured.orders
        measured.bed.start()
        measured.as_before()


def test_the_daemon_stops(measured: Measured) -> None:
    """It keeps its filters then, and so has to put them back first."""
    with under_way(measured) as client:
        assert measured.bed.daemon.end() == 0
        assert measured.standing() == measured.before
        assert orders(measured.bed) == measured.orders
        assert client.wait(STOP_S) != 0


@pytest.mark.parametrize(
    ("verb", "state", "left"),
    [
        ("resume", (True, False), "before"),
        ("restore", (False, False), "untouched"),
    ],
)
def test_an_order_ends_it_and_holds(
    measured: Measured, verb: str, state: tuple[bool, bool], left: str
) -> None:
    with under_way(measured) as client:
        measured.bed.daemon.order(verb, measured.name)
        _, complaints = client.communicate(timeout=60)
        assert complaints.endswith("ended early: the operator gave another order\n")
        assert client.returncode == 1
        until(lambda: measured.state() == state, f"it is {state}")
        until(lambda: measured.standing() == getattr(measured, left), f"it stands as {left}", 30)
        measured.bed.daemon.end(signal.SIGKILL)
        measured.bed.start()
        until(lambda: measured.state() == state, f"it is {state} in the next run, too")


def test_one_at_a_time_and_only_of_what_is_armed(measured: Measured) -> None:
    daemon = measured.bed.daemon
    with under_way(measured):
        said = daemon.ctl("measure", measured.name)
        assert (said.returncode, said.stdout) == (1, "")
        assert said.stderr.startswith(f"atfnd: {measured.name} is being measured\n")
    measured.as_before()
    said = daemon.ctl("measure", measured.name, "--for", "7s", "--slot", "1s", "--settle", "0s")
    assert "there is time for 3 pairs of slots, and it takes 4" in said.stderr
    assert said.returncode == 2
    assert daemon.ctl("measure", measured.name, "--slot", "3s").returncode == 2
    daemon.order("pause", measured.name)
    said = daemon.ctl("measure", measured.name)
    assert said.stderr.startswith(f"atfnd: {measured.name} is paused\n")
    daemon.order("disarm", measured.name)
    said = daemon.ctl("measure", measured.name)
    assert said.returncode == 1
    assert f"atfnctl arm {measured.name}, then measure" in said.stderr
    assert [event["what"] for event in daemon.events("measure")] == ["begun", "ended early"]
