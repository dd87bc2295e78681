# SPDX-License-Identifier: GPL-2.0-or-later
"""A measurement whose NIC refuses, flaps or goes; what traffic costs is made up. `test_measuring`
has what ends it otherwise. And pairs of slots that say nothing to the guard."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from math import floor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.compare.policies import AT_REST
from atfnd.daemon.guarding import GuardPace
from atfnd.errors import OperatorError
from atfnd.model import (
    Figure,
    GuardState,
    Measurement,
    MeasuringStep,
    Policy,
    ReadBytes,
    Restored,
    SlotReading,
)
from tests.daemon.simulated import Simulated, simulated, text_of
from tests.simulation.nic import WorldInterface

SLOT_S = 1.0
NAMES = "busy_ns interrupts handoffs switches sockets"
NOTHING: dict[str, Any] = dict.fromkeys(NAMES.split())
ON, PAUSED, OFF = (True, False), (False, True), (False, False)


class _Costs:
    """Every reading is one packet of 1,000 bytes, a nanosecond of CPU time and a millisecond later;
    half of what is read while it is armed is read locally, and nothing else."""

    def __init__(self, nic: object) -> None:
        self.at, self.local, self.open = 0, 0, True

    def read(self, view: Any, addresses: object, pids: object, reads: object) -> SlotReading:
        assert self.open
        self.at += 1
        self.local += 500 if view.armed else 0
        said = NOTHING | {"packets": self.at, "bytes": self.at * 1000}
        read = ReadBytes(self.local, self.at * 1000 - self.local)
        return SlotReading(
            at_ns=self.at * 10**6, network_ns={0: self.at}, napi_ns={}, application_ns={},
            daemon_ns=0, reads=read, **said,
        )  # fmt: skip

    def close(self) -> None:
        self.open = False


class Measured:
    """A daemon with two armed NICs, of which `eth0` is measured."""

    def __init__(self, bed: Simulated) -> None:
        self.bed, self.nic = bed, bed.here[0]

    @property
    def stands(self) -> tuple[bool, bool]:
        return self.bed.stands()["eth0"]

    @property
    def policy(self) -> Policy:
        return self.bed.daemon.source.policy

    def steps(
        self, total_s: float = 8 * SLOT_S, slot_s: float = SLOT_S, settle_s: float = 0.0,
        against: Path | None = None, nic: str = "eth0",
    ) -> Any:  # fmt: skip
        file = None if against is None else str(against)
        return self.bed.daemon.source.measure(nic, total_s, slot_s, settle_s, file)

    def run(
        self,
        then: Callable[[MeasuringStep], object] = lambda step: None,
        against: Path | None = None,
    ) -> Measurement:
        """Four pairs; `then` is done at each step. Returns the result."""

        async def whole() -> Measurement:
            last: Measurement | None = None
            async with aclosing(self.steps(against=against)) as steps:
                async for step in steps:
                    if isinstance(step, Measurement):
                        last = step
                    else:
                        then(step)
            assert last is not None
            return last

        found: Measurement = self.bed.answer(whole())
        return found

    def as_before(self) -> bool:
        """It is armed, and the next run would know of nothing."""
        orders = self.bed.service.orders
        return (self.stands, orders.armed("eth0"), orders.paused("eth0")) == (ON, None, False)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    def even_s() -> float:
        """The loop takes what is due within a nanosecond, and no time passes: nothing that is left
        of a slot may be so short."""
        return floor(time.monotonic() * 1024) / 1024

    clock = SimpleNamespace(monotonic=even_s, process_time=time.process_time)
    monkeypatch.setattr("atfnd.daemon.comparing.time", clock)
    monkeypatch.setattr("atfnd.daemon.comparing.Costs", _Costs)
    with simulated(tmp_path, nics=2) as bed:
        yield Measured(bed)


def locality_of(found: Measurement) -> Any:
    (locality,) = (each for each in found.figures if each.figure is Figure.READ_LOCALITY)
    return locality


def test_as_many_slots_of_each_and_the_state_before(measured: Measured) -> None:
    seen = dict[int, tuple[bool, tuple[bool, bool]]]()
    found = measured.run(lambda step: seen.update({step.slot: (step.armed, measured.stands)}))
    assert sorted(seen) == list(range(1, 9))
    assert sum(armed for armed, _ in seen.values()) == 4
    assert all(state == (armed, not armed) for armed, state in seen.values())
    assert (found.pairs, found.lost) == (4, 0)
    assert (locality_of(found).armed, locality_of(found).paused) == (0.5, 0.0)
    assert measured.as_before()
    assert [each.what for each in measured.bed.said("measure")] == ["begun", "ended"]


def test_a_kernel_that_refuses_to_undo_ends_it(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [Restored("eth0", "xps-cpus:0", errno.EBUSY, "is left")]
    monkeypatch.setattr(measured.bed.daemon._operator, "set_aside", lambda *_: left)
    with pytest.raises(OperatorError, match="the kernel refused to undo xps-cpus:0"):
        measured.run()
    assert measured.as_before()
    assert measured.bed.said("measure")[-1].why == "the kernel refused to undo xps-cpus:0"


@pytest.mark.parametrize("how", ["set_aside", "meet"])
def test_a_nic_that_cannot_be_changed_ends_it_and_is_armed(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    daemon = measured.bed.daemon
    monkeypatch.setattr(daemon._arming if how == "meet" else daemon._operator, how, refuse)
    with pytest.raises(OperatorError, match="it cannot be changed: Operation not permitted"):
        measured.run()
    assert measured.as_before()


def test_a_nic_that_goes_ends_it(measured: Measured) -> None:
    def go(step: MeasuringStep) -> None:
        if not step.armed:
            measured.nic.unplug()

    with pytest.raises(OperatorError, match="the interface is gone"):
        measured.run(go)
    assert measured.bed.stands() == {"eth1": ON}


def test_a_slot_in_which_the_link_was_down_or_reset_is_lost(measured: Measured) -> None:
    flapped = set[int]()

    def flap(step: MeasuringStep) -> None:
        if step.slot in {3, 6} - flapped:
            flapped.add(step.slot)
            measured.bed.world.after(10**7, measured.nic.flap)

    found = measured.run(flap)
    assert (found.pairs, found.lost) == (4, 2)
    assert locality_of(found).pairs == 2


@pytest.mark.parametrize(
    ("verb", "stands"),
    [("arm", ON), ("disarm", OFF), ("pause", PAUSED), ("resume", ON), ("restore", OFF)],
)
@pytest.mark.parametrize("armed", [True, False])
def test_an_order_in_an_armed_slot_or_another_one_ends_it_and_counts(
    measured: Measured, verb: str, stands: tuple[bool, bool], *, armed: bool
) -> None:
    given = list[Any]()

    def order(step: MeasuringStep) -> None:
        if step.armed is armed and not given:
            given.append(measured.bed.begin(getattr(measured.bed.daemon.source, verb)("eth0")))

    with pytest.raises(OperatorError, match="the operator gave another order"):
        measured.run(order)
    assert measured.stands == stands
    assert measured.bed.service.orders.paused("eth0") is (verb == "pause")


@pytest.mark.parametrize(
    "why",
    ["the link was down, or is another one", "5 of 10 filters did not come back in time"],
)
def test_slots_of_the_guard_that_say_nothing(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It sets steering aside first, and meanwhile the link flaps, or flows end."""
    bed, packets = measured.bed, itertools.count(0, 10**6)
    monkeypatch.setattr(WorldInterface, "read", lambda *_: str(next(packets)))
    monkeypatch.setattr("atfnd.daemon.guarding.schedule", lambda *_: [False, True])
    sockets = [bed.opens() for _ in range(10)]
    bed.until(lambda: bed.filters() == 10)
    guard = bed.daemon._guarding
    guard.pace = GuardPace(settle_s=0.5, slot_s=0.5, times=80)
    bed.until(lambda: measured.policy.flows[0].name == AT_REST)
    if "filters" in why:
        bed.until(lambda: not bed.filters())
        for socket in sockets[:5]:
            bed.machine.close(socket)
    else:
        bed.goes_on(0.6)
        measured.nic.flap()
    bed.until(lambda: guard.shown("eth0").why == why)
    shown = guard.shown("eth0")
    assert (shown.state, shown.pairs, shown.lost) == (GuardState.BLIND, 0, 1)


def test_an_order_for_another_nic_does_not(measured: Measured) -> None:
    order = measured.bed.daemon.source.disarm
    assert measured.run(lambda step: measured.bed.begin(order("eth1"))).pairs == 4
    assert measured.bed.stands() == {"eth0": ON, "eth1": OFF}


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ((4000.0, 1.0, 0.0), "there is time for 2000 pairs of slots, more than 1000"),
        ((100.0, 2.0, 2.0), "nothing is left of a slot"),
    ],
)
def test_what_cannot_be_compared_does_not_begin(
    measured: Measured, times: tuple[float, float, float], why: str
) -> None:
    async def begin() -> None:
        await anext(measured.steps(*times))

    with pytest.raises(OperatorError, match=why) as raised:
        measured.bed.answer(begin())
    assert raised.value.exit_code == 2
    assert measured.run().pairs == 4


OTHER = """\
version: 1
daemon: { observer: sock_diag, settle: { hold_down: 7ms } }
interfaces: [{ match: { name: "*" }, armed: false }]
flows:
  - name: other
    match: { protocol: tcp }
    placement: leave
"""


class TestAgainstAnotherPolicy:
    @pytest.fixture(autouse=True)
    def two(self, measured: Measured, tmp_path: Path) -> None:
        self.measured, self.file = measured, tmp_path / "other.yaml"
        self.file.write_text(OTHER)
        self.ours = measured.policy

    def test_in_turns_and_the_one_in_force_afterwards(self) -> None:
        """It is never paused; of the other policy count the rules for flows and how often they
        move."""
        measured, seen = self.measured, dict[int, tuple[bool, Policy]]()

        def see(step: MeasuringStep) -> None:
            assert measured.stands == ON
            seen[step.slot] = step.armed, measured.policy

        found = measured.run(see, self.file)
        others = [policy for armed, policy in seen.values() if not armed]
        assert all(policy is self.ours for armed, policy in seen.values() if armed)
        assert len(others) == 4
        assert "other" in {rule.name for rule in others[0].flows}
        assert (others[0].observer, others[0].hold_down_ns) == ("auto", 7_000_000)
        assert others[0].interfaces == self.ours.interfaces
        assert measured.policy is self.ours
        assert found.against == str(self.file)

    @pytest.mark.parametrize("text", [None, "", "flows: [", "version: 1\nflowz: []\n"])
    def test_a_wrong_one_changes_nothing(self, text: str | None) -> None:
        self.file.unlink() if text is None else self.file.write_text(text)
        with pytest.raises(OperatorError) as raised:
            self.measured.run(against=self.file)
        assert raised.value.exit_code == 2
        assert self.measured.policy is self.ours
        assert self.measured.run().pairs == 4

    def test_one_that_another_user_may_change_is_refused(self) -> None:
        self.file.chmod(0o666)
        with pytest.raises(OperatorError, match="not to be trusted"):
            self.measured.run(against=self.file)

    @pytest.mark.parametrize("compared", [True, False])
    def test_one_that_is_loaded_in_a_slot_of_the_other_one_stays(self, *, compared: bool) -> None:
        def load(step: MeasuringStep) -> None:
            if not step.armed:
                self.measured.bed.service.policy(text_of("strict"))
                self.measured.bed.service.reload()

        with pytest.raises(OperatorError, match="another policy is in force"):
            self.measured.run(load, self.file if compared else None)
        assert [rule.order.value for rule in self.measured.policy.flows][-1] == "strict"

    def test_a_shortage_of_the_kernel_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put, in_force = self.measured.bed.daemon._measuring._put, self.measured.bed.daemon._in_force

        def refuse(policy: Policy) -> None:
            if policy is self.ours:
                put(policy)
                return
            in_force.policy = policy
            raise OperatorError("in force only in part", exit_code=2)

        monkeypatch.setattr(self.measured.bed.daemon._measuring, "_put", refuse)
        with pytest.raises(OperatorError, match="in force only in part") as raised:
            self.measured.run(against=self.file)
        assert raised.value.exit_code == 1
        assert self.measured.policy is self.ours
