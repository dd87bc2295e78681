# SPDX-License-Identifier: GPL-2.0-or-later
"""The reception `auto` in a closed loop: what it chooses on a made-up machine."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.engine.event import Disarmed
from atfnd.engine.trials.subjects import (
    DEFERRED,
    INTERRUPT,
    LLC,
    PLACING,
    SUSPENDED,
    Application,
)
from atfnd.model import Reception, ReceptionMode
from atfnd.model.reason import UNSAID
from atfnd.model.reception import OF_NAPI, TIMEOUT
from tests.engine.piloted import ARMED, FIXED, FULL, ZERO, Machine, carried, delay_us

__all__: list[str] = []

MINUTE_S = 60.0
CAPACITY_PPS = carried(INTERRUPT, FULL, epoll=True)
LOADS = (0.0, 0.2, 0.5, 0.8, 1.0)
AS_BEFORE = pytest.mark.parametrize(
    ("owned", "epoll"), [(True, True), (True, False), (False, True)]
)


def offered(load: float) -> float:
    return FULL if load == 1.0 else load * CAPACITY_PPS


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@AS_BEFORE
@pytest.mark.parametrize("load", LOADS)
def test_it_carries_what_the_best_fixed_mode_carries(load: float, owned: bool, epoll: bool) -> None:
    machine = Machine(offered(load), epoll=epoll, owned=owned, noise=0.01)
    machine.look(5 * MINUTE_S)
    reach = [each for each in FIXED if owned or each.mode is not ReceptionMode.SUSPENDED]
    best = max(carried(each, offered(load), epoll) for each in reach)
    assert mean(machine.carried[-30:]) >= 0.95 * best
    usual = min(1.0, load)  # of the CPU, by interrupts
    assert mean(machine.busy[-30:]) <= 1.05 * usual


@pytest.mark.parametrize("load", [0.0, 0.2, 0.5])
def test_while_its_cpu_has_time_a_queue_has_interrupts_which_delay_least(load: float) -> None:
    machine = Machine(offered(load), noise=0.02)
    machine.look(10 * MINUTE_S)
    assert set(machine.modes) == {INTERRUPT}
    assert machine.events() == {"trial": 0, "kept": 0, "back": 0}
    assert min(FIXED, key=lambda mode: delay_us(mode, True)) == INTERRUPT


@AS_BEFORE
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [0.2, 0.5, 0.68, 0.7, 0.72, 0.8, 0.9, 1.0])
def test_it_does_not_oscillate_at_a_constant_load(
    load: float, seed: int, owned: bool, epoll: bool
) -> None:
    """In ten minutes, whatever is kept is kept, and trials without success become rare."""
    machine = Machine(offered(load), epoll=epoll, owned=owned, noise=0.02, seed=seed)
    machine.look(10 * MINUTE_S)
    events = machine.events()
    begun = sum("compare" not in each.what for _, each in machine.log if each.kind == "trial")
    assert events["kept"] <= 1
    assert begun <= 8  # one or two modes each: after 0, 1, 3 and 7 minutes
    kept = next((at for at, (_, each) in enumerate(machine.log) if each.kind == "kept"), None)
    assert kept is None or kept == len(machine.log) - 1
    if load >= 0.8:
        assert kept is not None


def test_each_switch_says_what_was_before_and_after() -> None:
    machine = Machine(FULL)
    machine.until("kept")
    reported = [(each.kind, each.what) for _, each in machine.log]
    assert reported == [
        ("trial", f"queue 0: interrupt -> {SUSPENDED}"),
        ("trial", f"queue 0: {SUSPENDED} -> {DEFERRED}"),
        ("trial", f"queue 0: {DEFERRED} -> interrupt, to compare"),
        ("kept", f"queue 0: interrupt -> {SUSPENDED}"),
    ]
    first, *_, last = (str(each.why) for _, each in machine.log)
    assert first.startswith("it takes 100% of CPU 0; it carries 2.22 MB/s at ")
    assert "interrupt 2.22 MB/s at 2.22 MB a CPU-second" in last
    assert machine.mode == SUSPENDED
    assert machine.said().startswith("auto: suspended 200 us x 100")
    # the window in which a mode was set does not count
    assert [machine.modes.count(each) for each in (SUSPENDED, DEFERRED)] == [2, 2]


def test_of_two_that_pay_what_carries_most_is_kept() -> None:
    machine = Machine(FULL, costs={SUSPENDED: 1.3})
    machine.until("kept")
    assert machine.mode == DEFERRED
    machine = Machine(FULL, costs={DEFERRED: 1.3})
    machine.until("kept")
    assert machine.mode == SUSPENDED


@pytest.mark.parametrize("cost", [1.4, 1.6])  # as good as interrupts; much worse
def test_what_does_not_pay_goes_back_and_rests_longer_each_time(cost: float) -> None:
    machine = Machine(FULL, owned=False, costs={DEFERRED: cost})
    machine.look(20 * MINUTE_S)
    assert machine.mode == INTERRUPT
    backs = [at_ns for at_ns, each in machine.log if each.kind == "back"]
    between = [round((b - a) / 60e9) for a, b in itertools.pairwise(backs)]
    assert between == [1, 2, 4, 8]
    assert machine.events()["kept"] == 0
    assert "is not tried again within" in machine.said()


def test_a_queue_that_becomes_idle_has_interrupts_at_once() -> None:
    machine = Machine(FULL)
    machine.until("kept")
    machine.offered = 900.0
    assert machine.look() == ["back"]
    assert machine.mode == INTERRUPT
    assert "fewer than 1000 packets a second" in machine.said()


def test_it_follows_the_load() -> None:
    machine = Machine(FULL, noise=0.01)
    machine.until("kept")
    machine.offered = 0.3 * CAPACITY_PPS
    said = machine.until("back", 15)
    assert re.fullmatch(r"with interrupts it would take (29|30|31)% of CPU 0", str(said.why))
    machine.offered = FULL
    machine.until("kept", 2 * MINUTE_S)
    assert machine.mode == SUSPENDED


def test_what_is_kept_and_becomes_worse_than_interrupts_goes_back() -> None:
    """Suspension where the timer comes to be first: both happen to one server."""
    machine = Machine(FULL, noise=0.01)
    machine.until("kept")
    machine.costs[SUSPENDED] = 2.4
    said = machine.until("back", 15)
    assert "x the bytes a CPU-second of interrupts" in str(said.why)
    machine.until("kept", 2 * MINUTE_S)
    assert machine.mode == DEFERRED


def test_a_queue_that_nobody_owns_is_never_suspended() -> None:
    machine = Machine(FULL, owned=False)
    machine.look(5 * MINUTE_S)
    assert set(machine.modes) == {INTERRUPT, DEFERRED}


def test_what_carries_much_less_is_not_tried_for_long() -> None:
    """What senders do not wait with would be late for long."""
    machine = Machine(0.8 * CAPACITY_PPS, owned=False, costs={DEFERRED: 3.0})
    machine.until("back")
    assert machine.modes.count(DEFERRED) == 1
    assert re.match(r"0\.\d+ x the bytes a CPU-second", str(machine.log[-1][1].why))


def test_one_queue_of_a_nic_is_tried_at_a_time_the_one_that_carries_most_first() -> None:
    machine = Machine(FULL, queues=2)
    machine.look(2 * MINUTE_S)
    said = [(each.kind, each.what.split(":")[0]) for _, each in machine.log]
    of_one = ["trial", "trial", "trial", "kept"]
    assert said == [(kind, queue) for queue in ("queue 1", "queue 0") for kind in of_one]


def test_nothing_is_tried_during_a_trial_of_where_flows_belong() -> None:
    machine = Machine(FULL)
    machine.engine._placements_tried = lambda *of: None  # type: ignore[method-assign]
    trials = machine.memory.nics["nic"].trials
    app = Application("nic", "rest", "app", None)
    trying = Trial(PLACING, LLC, UNSAID, TrialPhase.TRIED)
    trials.states[app] = trying
    assert machine.look(MINUTE_S) == []
    assert "another trial goes on" in machine.said()
    del trials.states[app]
    machine.until("trial")
    trials.states[app] = trying
    assert machine.look() == ["back"]
    assert machine.mode == INTERRUPT


def test_a_daemon_begins_with_interrupts_whatever_the_one_before_it_kept() -> None:
    kept = {f"{kind}:0": value for kind, value in DEFERRED.values.items()}
    machine = Machine(
        FULL, view=replace(ARMED, settings=ZERO | kept), found=dict.fromkeys(kept, "0")
    )
    machine.look(2)
    assert machine.mode == INTERRUPT
    machine.until("kept", MINUTE_S)


def test_where_the_kernel_refuses_a_mode_or_another_program_has_its_say_nothing_is_tried() -> None:
    name = f"{TIMEOUT}:0"
    refusing = Machine(FULL, refused={name})
    refusing.look(5 * MINUTE_S)
    assert refusing.events()["trial"] <= 1
    assert refusing.mode == INTERRUPT
    manual = Machine(FULL, view=replace(ARMED, manual=frozenset({name})))
    assert manual.look(5 * MINUTE_S) == []
    assert "nothing else can be had here" in manual.said()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"packets": None}, "does not count packets and bytes by queue"),
        ({"bytes": None}, "does not count packets and bytes by queue"),
        ({"cpu": None}, "is not confined to one CPU"),
    ],
)
def test_what_cannot_be_measured_has_interrupts(changes: dict[str, None], why: str) -> None:
    machine = Machine(FULL)
    assert machine.look(MINUTE_S, **changes) == []
    assert why in machine.said()


def test_a_policy_that_no_longer_asks_ends_it() -> None:
    machine = Machine(FULL)
    machine.until("kept")
    machine.wants(Reception())
    assert machine.look() == ["back"]
    assert machine.log[-1][1].what == f"queue 0: {SUSPENDED} -> as its policy asks"
    assert machine.mode == INTERRUPT
    assert machine.memory.nics["nic"].reception.auto.states == {}


def test_a_trial_ends_with_the_policy_and_with_the_nic() -> None:
    machine = Machine(FULL)
    machine.until("trial")
    machine.memory.in_force = replace(machine.memory.in_force)
    assert machine.look() == ["back"]
    assert str(machine.log[-1][1].why) == "void: another policy is in force"
    machine.until("trial", 2 * MINUTE_S)
    machine.take(Disarmed("nic"))
    assert machine.look() == ["back"]
    assert str(machine.log[-1][1].why) == "void: the NIC is not armed, or down"


def test_a_kernel_that_knows_modes_of_whole_interfaces_only_has_no_autopilot() -> None:
    machine = Machine(FULL, view=replace(ARMED, settings=dict.fromkeys(OF_NAPI, "0")))
    machine.look(MINUTE_S)
    assert machine.events() == {"trial": 0, "kept": 0, "back": 0}
    known = machine.memory.nics["nic"].reception
    assert (
        str(known.why_not[0])
        == "auto: this kernel knows it of the whole interface only (before 6.13)"
    )


def test_what_others_take_of_its_cpu_does_not_count() -> None:
    machine = Machine(0.5 * CAPACITY_PPS, others=True)
    assert machine.look(10 * MINUTE_S) == []
    machine.offered = FULL
    machine.until("kept")
    assert machine.mode == SUSPENDED


def test_a_load_that_comes_and_goes_is_tried_once_a_minute() -> None:
    machine = Machine(FULL, owned=False)
    for _ in range(30):
        machine.offered = FULL
        machine.look(14)
        machine.offered = 0.0
        machine.look(4)
    begun = ("trial", f"queue 0: interrupt -> {DEFERRED}")
    trials = [at for at, each in machine.log if (each.kind, each.what) == begun]
    assert len(trials) > 3
    assert min(b - a for a, b in itertools.pairwise(trials)) >= 60 * 10**9
