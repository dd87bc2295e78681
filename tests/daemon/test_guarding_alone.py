# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard without a kernel, in slots of milliseconds: what a byte costs is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.compare.policies import AT_REST
from atfnd.daemon.guarding import Guarding, GuardPace
from atfnd.daemon.in_force import InForce
from atfnd.model import FlowState, GuardState, Policy, SlotReading
from tests.daemon.test_operator import Bed
from tests.values import RULE, flow

FILTERS = 10
PACE = GuardPace(settle_s=0.02, slot_s=0.002, times=1e5)
NOTHING: dict[str, Any] = dict.fromkeys(
    ["busy_ns", "interrupts", "handoffs", "switches", "reads", "sockets"]
)


class Guarded:
    """The operator's bed with a guard on it, and ten filters of eth0. A byte costs `cost` times as
    much steered as at rest. `rests` is called when a slot at rest begins, `returns` says how many
    filters come back after it."""

    def __init__(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bed, self.cost, self.at_ns, self.spent_ns = bed, 1.0, 0, 0
        self.rests: Callable[[], object] = lambda: None
        self.returns: Callable[[], int] = lambda: FILTERS
        self.policy = Policy((), (RULE,), "auto", 64, 0, ())
        self.in_force = InForce(self.policy)
        for session in bed.sessions.values():
            session.watch.lives = 0
            session.watch.addresses = frozenset  # type: ignore[method-assign]
        interface = SimpleNamespace(read=lambda name: self.counted(), name=lambda: "eth0")
        monkeypatch.setattr(type(bed.nics["eth0"]), "interface", interface)
        monkeypatch.setattr("atfnd.daemon.comparing.Costs", lambda nic: self)
        self.steer(FILTERS)
        engine: Any = bed.engine
        nics: Any = SimpleNamespace(sessions=bed.sessions)
        observer: Any = SimpleNamespace(reads=lambda nic: None)
        self.guarding = Guarding(
            nics, bed.operator, engine, observer, self.in_force, self.put, self.busy, bed.log
        )
        self.guarding.pace = PACE
        bed.operator.end_measurement = self.guarding.ordered

    def counted(self) -> str:
        """Before a pair: ten filters are there, and packets came."""
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
            some = flow(number, nic="eth0", location=location, state=state, target_queue=0)
            self.bed.table.put(some)

    def put(self, policy: Policy) -> None:
        self.in_force.policy = policy
        self.steer(0 if self.resting else self.returns())
        if self.resting:
            self.rests()

    @property
    def resting(self) -> bool:
        return self.in_force.policy.flows[0].name == AT_REST

    def read(self, *of: object) -> SlotReading:
        """Of the machine: a megabyte later."""
        at_ns = self.later()
        self.spent_ns += int(10**6 * (1.0 if self.resting else self.cost))
        return SlotReading(
            at_ns=at_ns, network_ns={0: self.spent_ns}, napi_ns={}, application_ns={}, daemon_ns=0,
            packets=at_ns, bytes=at_ns, **NOTHING,
        )  # fmt: skip

    def close(self) -> None:
        """Of the counters."""

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
            met = asyncio.ensure_future(self.met.wait())
            await asyncio.wait([task, met], timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert self.met.is_set()
            task.cancel()

        asyncio.run(guard())

    @property
    def shown(self) -> Any:
        return self.guarding.shown("eth0")


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    bed = Bed(tmp_path)
    yield Guarded(bed, monkeypatch)
    bed.orders.close()
    bed.undo_journal.close()


def test_what_costs_is_stopped_until_an_order(guarded: Guarded) -> None:
    guarded.cost = 3.0
    guarded.until(lambda: guarded.bed.view() == (False, True))
    assert (guarded.shown.state, guarded.shown.stops) == (GuardState.STOPPED, 1)
    assert guarded.shown.pairs >= 14
    assert guarded.shown.change == pytest.approx(2.0, abs=0.01)
    assert guarded.in_force.policy is guarded.policy
    assert guarded.bed.recorded() == (None, False)  # the next run judges anew
    (event,) = (each for each in guarded.bed.log.after(0, 1000) if each.kind == "guard")
    assert event.why == guarded.shown.why
    guarded.bed.did(guarded.bed.operator.arm)
    assert guarded.shown.state is GuardState.WATCHING


def test_what_does_not_cost_is_left_on(guarded: Guarded) -> None:
    guarded.until(lambda: guarded.shown.pairs >= 20)
    assert guarded.bed.view() == (True, False)
    assert (guarded.shown.state, guarded.shown.lost) == (GuardState.WATCHING, 0)
    assert guarded.in_force.policy is guarded.policy


def test_a_pair_in_which_the_link_was_another_one_says_nothing(guarded: Guarded) -> None:
    guarded.cost = 3.0
    watch = guarded.bed.sessions["eth0"].watch
    read = guarded.read

    def flaps(*of: object) -> SlotReading:
        watch.lives += 1
        return read(*of)

    guarded.read = flaps  # type: ignore[method-assign]
    said = GuardState.BLIND, "the link was down, or is another one"
    guarded.until(lambda: (guarded.shown.state, guarded.shown.why) == said)
    assert (guarded.shown.pairs, guarded.shown.lost > 0) == (0, True)


def test_filters_that_do_not_come_back_make_a_pair_void(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.daemon.guarding.schedule", lambda *of: [False, True])
    guarded.returns = lambda: FILTERS // 2
    guarded.until(lambda: guarded.shown.why == "5 of 10 filters did not come back in time")
    assert guarded.shown.pairs == 0


def test_an_order_in_a_slot_at_rest_ends_it_and_holds(guarded: Guarded) -> None:
    given = list[asyncio.Task[object]]()

    def order() -> None:
        coroutine: Any = guarded.bed.operator.disarm("eth0")
        given.append(asyncio.get_running_loop().create_task(coroutine))

    guarded.rests = order
    guarded.until(lambda: given and given[0].done())
    assert guarded.bed.view() == (False, False)
    assert guarded.in_force.policy is guarded.policy
    assert guarded.shown.state is GuardState.IDLE


def test_a_policy_that_comes_in_a_slot_at_rest_stays(guarded: Guarded) -> None:
    other = replace(guarded.policy, hold_down_ns=7)

    def load() -> None:
        guarded.rests = lambda: None
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: setattr(guarded.in_force, "policy", other))

    guarded.rests = load
    guarded.until(lambda: guarded.shown.lost)
    assert guarded.in_force.policy is other
