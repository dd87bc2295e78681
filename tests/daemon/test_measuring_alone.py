# SPDX-License-Identifier: GPL-2.0-or-later
"""A measurement whose NIC refuses, flaps or goes, without a kernel: slots of milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon.in_force import InForce
from atfnd.daemon.measuring import Measuring
from atfnd.engine.event import NicRead
from atfnd.errors import OperatorError
from atfnd.model import (
    Figure,
    Measurement,
    MeasuringStep,
    Policy,
    ReadBytes,
    Restored,
    SlotReading,
)
from tests.daemon.test_operator import Bed
from tests.values import RULE

SLOT_S = 0.02
NAMES = "busy_ns network_ns napi_ns application_ns interrupts handoffs switches sockets"
NOTHING: dict[str, Any] = dict.fromkeys(NAMES.split())


class _Costs:
    """Every reading is one packet of 1,000 bytes and a millisecond later; half of what is read
    while it is armed is read locally, and nothing else."""

    def __init__(self, nic: object) -> None:
        self.at, self.local, self.open = 0, 0, True

    def read(self, view: Any, addresses: object, pids: object, reads: object) -> SlotReading:
        assert self.open
        self.at += 1
        self.local += 500 if view.armed else 0
        said = NOTHING | {"packets": self.at, "bytes": self.at * 1000}
        read = ReadBytes(self.local, self.at * 1000 - self.local)
        return SlotReading(at_ns=self.at * 10**6, daemon_ns=0, reads=read, **said)

    def close(self) -> None:
        self.open = False


class Measured:
    """The operator's bed with a measurement on it."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        for session in bed.sessions.values():
            session.watch.lives = 0
            session.watch.addresses = frozenset  # type: ignore[method-assign]
        engine: Any = SimpleNamespace(memory=SimpleNamespace(table=bed.table))
        observer: Any = SimpleNamespace(reads=lambda nic: None)
        nics: Any = SimpleNamespace(sessions=bed.sessions)
        self.in_force = InForce(Policy((), (RULE,), "auto", 64, 0, ()))
        self.puts: list[Policy] = []
        self.measuring = Measuring(
            nics, bed.operator, bed.orders, engine, observer, self.in_force, self.put, bed.log
        )
        bed.operator.end_measurement = self.measuring.end

    def put(self, policy: Policy) -> None:
        self.puts.append(policy)
        self.in_force.policy = policy

    def run(
        self,
        then: Callable[[MeasuringStep], object] = lambda step: None,
        against: Path | None = None,
    ) -> Measurement:
        """Four pairs; `then` is done at each step. Returns the result."""
        file = None if against is None else str(against)

        async def whole() -> Measurement:
            last: Measurement | None = None
            steps = self.measuring.measure("eth0", 8 * SLOT_S, SLOT_S, 0.0, file)
            async with aclosing(steps):
                async for step in steps:
                    if isinstance(step, Measurement):
                        last = step
                    else:
                        then(step)
            assert last is not None
            return last

        return asyncio.run(whole())

    def says(self) -> list[str]:
        said = [each for each in self.bed.log.after(0, 1000) if each.kind == "measure"]
        return [each.what for each in said] + [said[-1].why]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    monkeypatch.setattr("atfnd.daemon.comparing.Costs", _Costs)
    bed = Bed(tmp_path)
    yield Measured(bed)
    bed.orders.close()
    bed.undo_journal.close()


def test_as_many_slots_of_each_and_the_state_before(measured: Measured) -> None:
    seen = dict[int, tuple[bool, tuple[bool, bool]]]()
    found = measured.run(lambda step: seen.update({step.slot: (step.armed, measured.bed.view())}))
    assert sorted(seen) == list(range(1, 9))
    assert sum(armed for armed, _ in seen.values()) == 4
    assert all(state == (armed, not armed) for armed, state in seen.values())
    assert (found.pairs, found.lost) == (4, 0)
    (locality,) = (each for each in found.figures if each.figure is Figure.READ_LOCALITY)
    assert (locality.armed, locality.paused) == (0.5, 0.0)
    assert measured.bed.view() == (True, False)
    assert measured.bed.recorded() == (None, False)
    assert measured.says()[:2] == ["begun", "ended"]


def test_a_kernel_that_refuses_to_undo_ends_it(measured: Measured) -> None:
    measured.bed.result = [Restored("eth0", "xps-cpus:0", 16, "is left")]
    with pytest.raises(OperatorError, match="the kernel refused to undo xps-cpus:0"):
        measured.run()
    assert measured.bed.view() == (True, False)
    assert measured.bed.recorded() == (None, False)
    assert measured.says()[-1] == "the kernel refused to undo xps-cpus:0"


def test_a_nic_that_cannot_be_changed_ends_it(measured: Measured) -> None:
    measured.bed.refuses_take_out = "eth0"
    with pytest.raises(OperatorError, match="it cannot be changed: Input/output error"):
        measured.run()
    assert measured.bed.view() == (True, False)


def test_a_nic_that_goes_ends_it_and_is_left_alone(measured: Measured) -> None:
    def go(step: MeasuringStep) -> None:
        if not step.armed and "eth0" in measured.bed.sessions:
            del measured.bed.sessions["eth0"]
            measured.bed.calls.clear()

    with pytest.raises(OperatorError, match="the interface is gone"):
        measured.run(go)
    assert measured.bed.calls == []


def test_a_slot_in_which_the_link_was_down_or_reset_is_lost(measured: Measured) -> None:
    watch = measured.bed.sessions["eth0"].watch

    def flap(step: MeasuringStep) -> None:
        if step.slot == 3:
            watch.lives += 1
        watch.facts = replace(watch.facts, up=step.slot != 6)
        measured.bed.engine.handle(NicRead(watch.facts), 0)

    found = measured.run(flap)
    assert (found.pairs, found.lost) == (4, 2)
    (locality,) = (each for each in found.figures if each.figure is Figure.READ_LOCALITY)
    assert locality.pairs == 2


def test_it_is_armed_again_even_if_not_all_can_be_set_again(measured: Measured) -> None:
    def refuse(session: object) -> None:
        raise OSError(5, "Input/output error")

    measured.bed.operator._arming.meet = refuse  # type: ignore[method-assign]
    with pytest.raises(OperatorError, match="it cannot be changed"):
        measured.run()
    assert measured.bed.view() == (True, False)


def test_the_next_one_can_begin_after_each_end(measured: Measured) -> None:
    """Also when its client has gone at once."""

    async def begin_and_go() -> None:
        steps = measured.measuring.measure("eth0", 8 * SLOT_S, SLOT_S, 0.0)
        await anext(steps)
        with pytest.raises(OperatorError, match="eth0 is being measured"):
            await anext(measured.measuring.measure("eth1", 1.0, SLOT_S, 0.0))
        await steps.aclose()

    asyncio.run(begin_and_go())
    assert measured.says()[-1] == "the client that asked for it has gone"
    assert measured.bed.view() == (True, False)
    assert measured.run().pairs == 4


@pytest.mark.parametrize("verb", ["arm", "disarm", "pause", "resume", "restore"])
@pytest.mark.parametrize("slot_is_armed", [True, False])
def test_an_order_ends_it_and_counts(measured: Measured, verb: str, slot_is_armed: bool) -> None:
    given = list[asyncio.Task[object]]()

    def order(step: MeasuringStep) -> None:
        if step.armed is slot_is_armed and not given:
            coroutine = getattr(measured.bed.operator, verb)("eth0")
            given.append(asyncio.get_running_loop().create_task(coroutine))

    with pytest.raises(OperatorError, match="the operator gave another order"):
        measured.run(order)
    assert (
        measured.bed.view()
        == {
            "arm": (True, False),
            "resume": (True, False),
            "pause": (False, True),
            "disarm": (False, False),
            "restore": (False, False),
        }[verb]
    )
    assert measured.bed.recorded()[1] is (verb == "pause")


@pytest.mark.parametrize(
    ("total_s", "slot_s", "settle_s", "why"),
    [
        (7.0, 1.0, 0.0, "there is time for 3 pairs of slots, and it takes 4"),
        (4000.0, 1.0, 0.0, "there is time for 2000 pairs of slots, more than 1000"),
        (100.0, 2.0, 2.0, "nothing is left of a slot"),
    ],
)
def test_what_cannot_be_compared_does_not_begin(
    measured: Measured, total_s: float, slot_s: float, settle_s: float, why: str
) -> None:
    async def begin() -> None:
        await anext(measured.measuring.measure("eth0", total_s, slot_s, settle_s))

    with pytest.raises(OperatorError, match=why) as raised:
        asyncio.run(begin())
    assert raised.value.exit_code == 2
    assert measured.bed.calls == []
    assert measured.run().pairs == 4


def test_an_order_for_another_nic_does_not(measured: Measured) -> None:
    def order(step: MeasuringStep) -> None:
        tasks.append(asyncio.ensure_future(measured.bed.operator.disarm("eth1")))

    tasks = list[asyncio.Future[None]]()
    assert measured.run(order).pairs == 4
    assert [each.exception() for each in tasks] == [None] * len(tasks)
    assert measured.bed.view("eth1") == (False, False)


OTHER = """\
version: 1
daemon: { observer: sock_diag, settle: { hold_down: 7ms } }
interfaces: [{ match: { name: "*" }, armed: false }]
flows:
  - name: other
    match: { protocol: tcp }
    placement: leave
"""


def test_two_policies_in_turns_and_the_one_in_force_afterwards(
    measured: Measured, tmp_path: Path
) -> None:
    """It is never paused; of the other policy count the rules for flows and how often they move."""
    file, ours = tmp_path / "other.yaml", measured.in_force.policy
    file.write_text(OTHER)
    seen = dict[int, tuple[bool, Policy]]()
    found = measured.run(
        lambda step: seen.update({step.slot: (step.armed, measured.in_force.policy)}), file
    )
    others = [policy for armed, policy in seen.values() if not armed]
    assert all(policy is ours for armed, policy in seen.values() if armed)
    assert len(others) == 4
    assert "other" in {rule.name for rule in others[0].flows}
    assert (others[0].observer, others[0].hold_down_ns) == ("auto", 7_000_000)
    assert others[0].interfaces == ours.interfaces
    assert measured.in_force.policy is ours
    assert measured.bed.view() == (True, False)
    assert ("take out", "eth0", False) not in measured.bed.calls
    assert found.against == str(file)


@pytest.mark.parametrize("text", [None, "", "flows: [", "version: 1\nflowz: []\n"])
def test_a_wrong_policy_changes_nothing(
    measured: Measured, tmp_path: Path, text: str | None
) -> None:
    file, ours = tmp_path / "other.yaml", measured.in_force.policy
    if text is not None:
        file.write_text(text)
    with pytest.raises(OperatorError) as raised:
        measured.run(against=file)
    assert raised.value.exit_code == 2
    assert measured.in_force.policy is ours
    assert (measured.puts, measured.bed.calls) == ([], [])
    assert measured.run().pairs == 4


def test_a_policy_that_another_user_may_change_is_refused(
    measured: Measured, tmp_path: Path
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(OTHER)
    file.chmod(0o666)
    with pytest.raises(OperatorError, match="not to be trusted"):
        measured.run(against=file)


@pytest.mark.parametrize("slot_is_armed", [True, False])
def test_a_policy_that_is_loaded_meanwhile_stays(
    measured: Measured, tmp_path: Path, slot_is_armed: bool
) -> None:
    file, third = tmp_path / "other.yaml", Policy((), (), "auto", 64, 0, ())
    file.write_text(OTHER)

    def load(step: MeasuringStep) -> None:
        if step.armed is slot_is_armed:
            measured.in_force.policy = third

    with pytest.raises(OperatorError, match="another policy is in force"):
        measured.run(load, file)
    assert measured.in_force.policy is third


def test_ended_early_the_policy_is_the_one_before(measured: Measured, tmp_path: Path) -> None:
    file, ours = tmp_path / "other.yaml", measured.in_force.policy
    file.write_text(OTHER)

    def stop(step: MeasuringStep) -> None:
        if not step.armed:
            measured.measuring.stop()

    with pytest.raises(OperatorError, match="atfnd stops"):
        measured.run(stop, file)
    assert measured.in_force.policy is ours


def test_a_shortage_of_the_kernel_ends_it(measured: Measured, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(OTHER)
    ours = measured.in_force.policy

    def refuse(policy: Policy) -> None:
        measured.in_force.policy = policy
        if policy is not ours:
            raise OperatorError("in force only in part", exit_code=2)

    measured.measuring._put = refuse
    with pytest.raises(OperatorError, match="in force only in part") as raised:
        measured.run(against=file)
    assert raised.value.exit_code == 1
    assert measured.in_force.policy is ours
