# SPDX-License-Identifier: GPL-2.0-or-later
"""Pairs of slots that say nothing to the guard, in slots of milliseconds: what a byte costs is made
up. `test_guarding` has the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.compare.policies import AT_REST
from atfnd.daemon.guarding import Guarding, GuardPace
from atfnd.daemon.in_force import InForce
from atfnd.engine.engine import Engine
from atfnd.engine.event import NicAttached
from atfnd.engine.table.memory import Memory
from atfnd.model import FlowState, GuardState, NicGuard, Policy, SlotReading
from atfnd.serve.log.event_log import EventLog
from tests.values import NIC, RULE, flow

__all__: list[str] = []

FILTERS = 10
PACE = GuardPace(settle_s=0.02, slot_s=0.002, times=1e5)
NOTHING: dict[str, Any] = dict.fromkeys(
    ["busy_ns", "interrupts", "handoffs", "switches", "reads", "sockets"]
)


class Guarded:
    """A guard over one NIC with ten filters, on which steering costs thrice as much; `returns` says
    how many of them come back after a slot at rest."""

    def __init__(self) -> None:
        anything: Any = SimpleNamespace
        self.at_ns = 0
        self.returns: Callable[[], int] = lambda: FILTERS
        policy = Policy((), (RULE,), "auto", 64, 0, ())
        self.engine, self.in_force = Engine(Memory.of(policy)), InForce(policy)
        self.engine.handle(NicAttached(NIC, armed=True), 0)
        self.watch = anything(
            lives=0, addresses=frozenset,
            nic=anything(interface=anything(read=lambda name: self.counted())),
        )  # fmt: skip
        view = self.engine.views["nic"]
        nics = anything(sessions={"nic": anything(name="nic", watch=self.watch, view=view)})
        self.guarding = Guarding(
            nics, anything(), self.engine, anything(reads=lambda nic: None), self.in_force,
            self.put, self.busy, EventLog(),
        )  # fmt: skip
        self.guarding.pace = PACE
        self.steer(FILTERS)

    def counted(self) -> str:
        """Before a pair: its filters are there, and packets came."""
        self.steer(FILTERS)
        return str(self.later())

    def later(self) -> int:
        self.at_ns += 10**6
        return self.at_ns

    def steer(self, count: int) -> None:
        """So many flows have a filter."""
        for number in range(FILTERS):
            location = number if number < count else None
            state = FlowState.WANTED if location is None else FlowState.STEERED
            some = flow(number, location=location, state=state, target_queue=0)
            self.engine.memory.table.put(some)

    @property
    def resting(self) -> bool:
        return self.in_force.policy.flows[0].name == AT_REST

    def put(self, policy: Policy) -> None:
        self.in_force.policy = policy
        self.steer(0 if self.resting else self.returns())

    def read(self, *of: object) -> SlotReading:
        at_ns = self.later()
        spent_ns = {0: at_ns * (1 if self.resting else 3)}
        return SlotReading(
            at_ns=at_ns, network_ns=spent_ns, napi_ns={}, application_ns={}, daemon_ns=0,
            packets=at_ns, bytes=at_ns, **NOTHING,
        )  # fmt: skip

    def close(self) -> None:
        """Of the counters."""

    @property
    def shown(self) -> NicGuard:
        return self.guarding.shown("nic")

    def busy(self) -> bool:
        """It is asked before each look."""
        if self.waited_for():
            self.met.set()
        return False

    def until(self, condition: Callable[[], object]) -> None:
        """Guard until this is so."""

        async def guard() -> None:
            self.waited_for, self.met = condition, asyncio.Event()
            task = asyncio.ensure_future(self.guarding.keep())
            await asyncio.wait_for(self.met.wait(), 60)
            task.cancel()

        asyncio.run(guard())


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    made = Guarded()
    monkeypatch.setattr("atfnd.daemon.comparing.Costs", lambda nic: made)
    return made


def test_one_in_which_the_link_was_another_one(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = guarded.read

    def flaps(*of: object) -> SlotReading:
        guarded.watch.lives += 1
        return read(*of)

    monkeypatch.setattr(guarded, "read", flaps)
    said = GuardState.BLIND, "the link was down, or is another one"
    guarded.until(lambda: (guarded.shown.state, guarded.shown.why) == said)
    assert (guarded.shown.pairs, guarded.shown.lost > 0) == (0, True)


def test_one_after_which_filters_do_not_come_back(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.daemon.guarding.schedule", lambda *of: [False, True])
    guarded.returns = lambda: FILTERS // 2
    guarded.until(lambda: guarded.shown.why == "5 of 10 filters did not come back in time")
    assert guarded.shown.pairs == 0
