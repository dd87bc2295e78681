# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials of several applications and NICs beside each other, and what a window counts."""

from __future__ import annotations

from dataclasses import replace

from atfnd.compare.trial import Rest, Trial, TrialPhase
from atfnd.compare.trials import Trials
from atfnd.compare.window import paid
from atfnd.engine.placement.auto import applications
from atfnd.engine.trials.placing import looked
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.engine.trials.usage import windows
from atfnd.model import FlowState, Placement
from tests.compare.trying import APP, SECOND_NS, Load, World
from tests.engine.test_steer_placements import Machine
from tests.engine.test_usage import AUTO, BEFORE, MB, NAPI0, NAPI1, look
from tests.values import NIC, THREAD, key

__all__: list[str] = []

OTHER = APP._replace(nic="other")
BUSY = APP._replace(comm="busy")
NOW_NS = 10**12


def test_a_trial_on_one_nic_does_not_keep_another_from_its_own() -> None:
    world = World()
    world.until("trial")
    while not world.on("other").trying:
        world.look(APP, OTHER)
        assert world.state.trying  # all the time
    assert world.on().trying
    world.on().abandon("events were lost", world.now_ns)
    assert not world.on().trying
    assert world.on("other").trying


def test_a_core_counts_as_full_only_in_windows_in_a_row() -> None:
    """Without flows for a look, it begins again."""
    world = World()
    for _ in range(2):
        world.look()
    assert world.state.count == 1
    world.look(BUSY)
    assert world.state.count == 0
    assert not world.state.in_place


def test_a_trial_begins_with_a_window_as_short_as_its_own() -> None:
    """Looks are rare until it is pressing: the window in which the pause ends may be long."""
    world = World()
    begun_ns = world.on().begun_ns = world.now_ns
    while world.now_ns < begun_ns + PLACING.between_ns:
        assert not world.on().pressing(world.now_ns)
        assert world.look() == []
    assert world.on().pressing(world.now_ns)
    assert world.look() == ["trial"]


def test_a_trial_is_never_forgotten() -> None:
    """Its flows would stay where it put them."""
    trials: Trials[Application, Placement] = Trials(PLACING)
    plain = Load(1e9, 0.1)
    apps = [APP._replace(comm=f"app{number}") for number in range(1100)]
    first, window = apps[0], plain.window(NOW_NS, None, there=False)
    trials.states[first] = Trial(PLACING, LLC, "", TrialPhase.TRIED, since_ns=NOW_NS, before=window)
    trials.look({each: looked(trials.state(each), window, True) for each in apps}, NOW_NS)
    assert trials.states.keys() == {first, *apps[77:]}
    assert trials.states[first].trying


def test_what_was_good_for_long_is_tried_again_soon() -> None:
    world = World()
    world.until("kept")
    state = replace(world.state, rests={LLC: Rest(3, 0)})
    for kept_ns, wait_ns in (
        (PLACING.back_off_max_ns, PLACING.back_off_ns),
        (0, 8 * PLACING.back_off_ns),
    ):
        world.on().states[APP] = replace(state, since_ns=world.now_ns - kept_ns, count=0)
        world.core = world.llc = Load(1e8, 0.1)
        world.until("back")
        assert world.rest_ns == wait_ns


def test_windows_are_of_one_nic() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0)
    flows = applications(machine.memory, {"nic"})
    assert windows(BEFORE, BEFORE, replace(NIC, name="other"), flows, machine.memory) == {}


def test_what_was_not_counted_before_costs_nothing_yet() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0)
    flows = applications(machine.memory, {"nic"})
    before = look(10, {0: (500, 100), 1: (0, 0)}, {})
    softirq = replace(before.time, softirq_ns={1: 0})
    now = look(12, {0: (2500, 1100), 1: (0, 0)}, {THREAD.tid: 900, NAPI0: 700, NAPI1: 0})
    found = windows(replace(before, time=softirq), now, NIC, flows, machine.memory)
    assert [each.spent_ns[0] for each in found.values()] == [0]


def test_a_flow_that_comes_by_the_filter_of_its_port_is_led() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0)
    flow = machine.memory.table.get(key(1))
    assert flow is not None
    led = flow._replace(state=FlowState.PORT, location=None, target_queue=0, target_cpu=0)
    machine.memory.table.put(led)
    now = look(12, {0: (600, 100), 1: (0, 0)}, {THREAD.tid: 60, NAPI0: 5, NAPI1: 0}, {key(1): MB})
    (found,) = windows(BEFORE, now, NIC, applications(machine.memory, {"nic"}),
                       machine.memory).values()  # fmt: skip
    assert found.there


def test_the_fullest_cpu_is_that_of_the_most_work() -> None:
    window = Load(1e9, 0.5).window(NOW_NS, Placement.CORE, app_cpus=frozenset({0, 1}))
    busy = window._replace(spent_ns={0: SECOND_NS, 1: SECOND_NS // 2})
    assert busy.fullest({0, 1}) == (0, 0.5)


def test_a_wait_for_a_cpu_counts_as_time_that_a_byte_took() -> None:
    waits, plain = (Load(1e9, 1.0, each).window(NOW_NS, None) for each in (1.0, 0.0))
    took = [each.figures({0}).ns_per_byte for each in (waits, plain)]
    assert took == [2.0, 1.0]


def test_both_are_charged_for_all_cpus_of_either() -> None:
    """On the core, CPU 2 did other work of it that is not there when it is off the core."""
    core = Load(1e9, 0.5).window(NOW_NS, None, rx_cpus=frozenset({2}))
    core = core._replace(spent_ns={0: SECOND_NS, 2: SECOND_NS})
    compared = paid(PLACING.margin, Load(1e9, 0.5).window(NOW_NS, LLC), core)
    assert compared.usual.bytes_per_cpu_s == 1e9
