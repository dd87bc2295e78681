# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard of a daemon that steers a lab NIC under live traffic: what pays is left on, what costs
is stopped, and no packet is overtaken by it. Its pairs come eighty times as often as usual."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.compare.policies import AT_REST
from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemons import Row, policy, standing
from tests.labs import Lab
from tests.wait import until

OFTEN = ("env", "ATFND_GUARD_PACE=80")
COSTLY = (sys.executable, "-m", "tests.daemon.costly")
STRICT = policy(order="strict")
LONG_S = 270


class Guarded:
    """Two steered connections, and a daemon that may be costly."""

    def __init__(self, lab: Lab, bed: Bed) -> None:
        self.lab, self.bed, self.name = lab, bed, lab.nic.name
        self.untouched = standing(lab)
        self.apps: list[Application] = []

    def start(self, *wrapped: str) -> None:
        self.apps = self.apps or [self.bed.apps.tcp_connected(), self.bed.apps.tcp_connected()]
        words = ("--nic", self.name, "--arm", self.name)
        self.bed.daemon.start(*words, wrapped=(*OFTEN, *wrapped))
        for app in self.apps:
            self.bed.steered(app)

    def guard(self) -> Row:
        (row,) = self.bed.daemon.status()["guard"]
        return dict(row)

    def state(self) -> tuple[bool, bool]:
        """Armed, paused."""
        (row,) = self.bed.daemon.get("/v1/nics")["nics"]
        return row["armed"], row["paused"]

    def rests(self) -> bool:
        """A slot without steering is on."""
        rules = self.bed.daemon.get("/v1/policy")["flows"]
        return bool(rules[0]["rule"] == AT_REST)

    def stopped(self) -> Row:
        until(lambda: self.guard()["state"] == "stopped", f"it stops: {self.guard()}", LONG_S)
        until(lambda: standing(self.lab) == self.untouched, "nothing of ours is in the NIC", 30)
        assert self.state() == (False, True)
        return self.guard()


@pytest.fixture
def guarded(shared_lab: Lab, tmp_path: Path) -> Iterator[Guarded]:
    with a_bed(shared_lab, tmp_path, "bpf", STRICT) as bed:
        yield Guarded(shared_lab, bed)


def test_what_costs_is_stopped_until_the_operator_arms_it(guarded: Guarded) -> None:
    guarded.start(*COSTLY)
    found = guarded.stopped()
    daemon = guarded.bed.daemon
    assert found["stops"] == 1
    assert found["pairs"] >= 14
    assert found["change"] > 0.02
    assert "CPU per byte" in found["why"]
    (event,) = daemon.events("guard")
    assert (event["nic"], event["why"]) == (guarded.name, found["why"])
    assert daemon.status()["late_packets"] == 0
    daemon.post("/v1/reload")
    assert guarded.state() == (False, True)
    daemon.order("arm", guarded.name)
    assert guarded.guard()["state"] != "stopped"
    for app in guarded.apps:
        guarded.bed.steered(app)
    assert guarded.guard()["stops"] == 1


def test_what_does_not_cost_is_left_on(guarded: Guarded) -> None:
    guarded.start()
    until(
        lambda: guarded.guard()["pairs"] >= 15,
        "enough for a stop",
        LONG_S,
    )
    daemon = guarded.bed.daemon
    assert guarded.guard()["state"] == "watching"
    assert daemon.events("guard") == []
    assert daemon.status()["late_packets"] == 0
    for app in guarded.apps:
        guarded.bed.steered(app)


def test_an_order_in_a_slot_at_rest_ends_it_and_holds(guarded: Guarded) -> None:
    guarded.start()
    daemon = guarded.bed.daemon
    for verb, state in (("disarm", (False, False)), ("pause", (False, True))):
        until(guarded.rests, "a slot is at rest", 60)
        daemon.order(verb, guarded.name)
        assert not guarded.rests()
        assert guarded.state() == state
        daemon.order("arm", guarded.name)
        for app in guarded.apps:
            guarded.bed.steered(app)


def test_another_policy_in_a_slot_at_rest_stays_in_force(guarded: Guarded) -> None:
    guarded.start()
    until(guarded.rests, "a slot is at rest", 60)
    guarded.bed.daemon.config.write_text(STRICT.replace("name: everything", "name: other"))
    guarded.bed.daemon.post("/v1/reload")
    assert not guarded.rests()
    for app in guarded.apps:
        assert guarded.bed.steered(app)["rule"] == "other"


def test_a_daemon_that_ends_in_a_slot_at_rest_begins_as_before(guarded: Guarded) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        guarded.start()
        until(guarded.rests, "a slot is at rest", 60)
        guarded.bed.daemon.end(number)
    guarded.start()
    assert guarded.state() == (True, False)


def test_a_policy_switches_it_off(guarded: Guarded) -> None:
    """Nothing is ever at rest; it is on again with the next policy."""
    daemon, off = guarded.bed.daemon, 'interfaces: [{ match: { name: "*" }, guard: off }]\n'
    daemon.config.write_text(STRICT + off)
    guarded.start()
    assert guarded.guard()["state"] == "off"
    daemon.config.write_text(STRICT)
    daemon.post("/v1/reload")
    assert guarded.guard()["state"] == "watching"
    assert (guarded.guard()["pairs"], guarded.guard()["lost"]) == (0, 0)
    until(guarded.rests, "a slot is at rest", 60)
