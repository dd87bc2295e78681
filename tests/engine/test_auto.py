# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions for flows under `auto`, while their application is on its core and off it; and the
windows of an application, from two looks at CPUs, threads and sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.compare.window import Window
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.placement.auto import applications, placement_of
from atfnd.engine.trials.placing import application_looks
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.engine.trials.usage import UsageReading, windows
from atfnd.model import (
    ActionKind,
    Connecting,
    CpuTime,
    FlowKey,
    FlowState,
    Mode,
    Placement,
)
from atfnd.model.reason import UNSAID, Code
from tests.engine.test_steer_placements import Machine
from tests.values import NIC, RULE, THREAD, key, seen

__all__: list[str] = []

AUTO = replace(RULE, placement=Placement.AUTO)
STRICT = replace(AUTO, order=Mode.STRICT)
APP = Application("nic", "rest", "app", None)
AGAIN = replace(THREAD, tid=200, pid=200)  # the same application, started anew


def away(machine: Machine, phase: TrialPhase = TrialPhase.KEPT) -> None:
    side = Placement.CORE if phase is TrialPhase.AGAIN else LLC
    trials = machine.memory.nics["nic"].trials
    trials.states[APP] = Trial(PLACING, side, UNSAID, phase)


def test_it_is_remembered_for_a_process_that_is_started_anew() -> None:
    machine = Machine(AUTO)
    away(machine)
    (action,) = machine.uses(cpu=2, thread=AGAIN, rx_cpu=2)
    assert action.new == 3
    assert str(action.why) == "its thread runs on CPU 2; near llc: queue 3 is delivered on CPU 3"


@pytest.mark.parametrize("changes", [{"comm": "other"}, {"cgroup": 7}], ids=["name", "cgroup"])
def test_an_application_is_known_by(changes: dict[str, object]) -> None:
    machine = Machine(AUTO)
    away(machine)
    (action,) = machine.uses(cpu=0, thread=replace(THREAD, **changes))  # type: ignore[arg-type]
    assert action.new == 0


def test_on_its_core_a_queue_follows_its_thread_and_off_it_none_does() -> None:
    machine = Machine(STRICT)

    def owners() -> list[object]:
        return [each.owner for each in machine.memory.nics["nic"].owned.values()]

    def look() -> None:
        machine.carry_out(steer.take_up(NIC, machine.memory, machine.now_ns))
        machine.carry_out(steer.own(NIC, frozenset(range(4)), machine.memory, machine.now_ns))

    machine.uses(cpu=0)
    assert owners() == [follow.owner_of(machine.flow(), machine.memory)] == [("thread", THREAD.tid)]
    away(machine)
    assert follow.owner_of(machine.flow(), machine.memory) is None
    look()
    assert (owners(), machine.flow().target_cpu) == ([], 1)
    assert all(action.kind is not ActionKind.QUEUE_CPU for action in machine.uses(cpu=2))
    del machine.memory.nics["nic"].trials.states[APP]
    look()
    assert (owners(), machine.flow().target_cpu) == ([("thread", THREAD.tid)], 2)


def test_a_flow_is_born_where_its_application_was_kept() -> None:
    machine = Machine(replace(AUTO, order=Mode.BOUNDED))
    away(machine)
    event = Connecting(0, 9, key(1), 0, THREAD, 0)
    made = birth.connecting(
        event, NIC, machine.rule, 3, Distances(), machine.memory, machine.now_ns
    )
    assert made is not None
    assert made.action.new == 1


def test_flows_that_are_manual_or_left_alone_are_no_applications() -> None:
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1)
    machine.uses(cpu=0, number=2)
    machine.memory.table.put(machine.flow(1)._replace(state=FlowState.MANUAL))
    machine.memory.table.leave(key(2))
    assert applications(machine.memory, {"nic"}) == {}
    assert applications(machine.memory, set()) == {}


def test_an_adopted_flow_is_on_its_core_until_its_thread_is_known() -> None:
    machine = Machine(AUTO)
    away(machine)
    machine.uses(cpu=0)
    machine.memory.table.put(machine.flow()._replace(thread=None, rule_name=""))
    assert placement_of(machine.flow(), machine.memory) is Placement.CORE
    steer.seen(seen(1, 0), NIC, AUTO, machine.memory, machine.now_ns)
    assert placement_of(machine.flow(), machine.memory) == LLC


# Windows of an application.

SECOND_NS = 10**9
NAPI0, NAPI1 = 1000, 1001  # threads of queues 0 and 1
MB = 1_000_000
CARRIED = {key(1): MB}


def look(
    at_s: float, cpus_ms: Mapping[int, tuple[int, int]], ran_ms: Mapping[int, int],
    carried: Mapping[FlowKey, int] = CARRIED, lost: int = 0,
    waited_ms: Mapping[int, int] | None = None,
) -> UsageReading:  # fmt: skip
    """By CPU: busy, and of it in softirqs. A thread that is not reported to have waited has not."""
    spent = CpuTime(
        int(at_s * SECOND_NS),
        {cpu: busy * MB for cpu, (busy, _) in cpus_ms.items()},
        {cpu: softirq * MB for cpu, (_, softirq) in cpus_ms.items()},
        {tid: ran * MB for tid, ran in ran_ms.items()},
        {tid: ran * MB for tid, ran in {**dict.fromkeys(ran_ms, 0), **(waited_ms or {})}.items()},
        {},
    )
    return UsageReading(spent, carried, lost)


BEFORE = look(10, {0: (500, 100), 1: (0, 0)}, {THREAD.tid: 50, NAPI0: 5, NAPI1: 0})


def reported(now: UsageReading, machine: Machine | None = None) -> Window:
    if machine is None:
        machine = Machine(AUTO)
        machine.uses(cpu=0)
    flows = applications(machine.memory, {"nic"})
    return windows(BEFORE, now, NIC, flows, machine.memory)[APP]


def test_its_threads_softirqs_and_napi_threads_are_what_it_costs() -> None:
    now = look(
        12,
        {0: (2400, 200), 1: (900, 300)},
        {THREAD.tid: 1250, NAPI0: 305, NAPI1: 400},
        {key(1): 7 * MB},
        waited_ms={THREAD.tid: 300, NAPI0: 20, NAPI1: 7},
    )
    window = reported(now)
    assert (window.began_ns, window.ended_ns) == (10 * SECOND_NS, 12 * SECOND_NS)
    assert window.bytes == 6 * MB
    assert window.spent_ns == {0: (1200 + 100 + 300) * MB, 1: (300 + 400) * MB}
    assert window.waited_ns == {0: (300 + 20) * MB, 1: 7 * MB}
    assert window.fullest(window.app_cpus) == (0, 0.8)
    assert (set(window.app_cpus), set(window.rx_cpus)) == ({0}, {0})
    assert (window.there, window.void) == (True, None)


def test_nothing_goes_backwards() -> None:
    now = look(12, {0: (400, 50), 1: (0, 0)}, {THREAD.tid: 40, NAPI0: 0, NAPI1: 0}, {key(1): 5})
    window = reported(now)
    assert (window.bytes, window.spent_ns[0]) == (0, 0)


def test_lost_events_other_flows_and_other_threads_make_it_void() -> None:
    usual = {THREAD.tid: 60, NAPI0: 5, NAPI1: 0}
    cpus = {0: (600, 100), 1: (0, 0)}
    assert reported(look(12, cpus, usual)).void is None
    assert reported(look(12, cpus, usual, lost=1)).void == Code.EVENTS_LOST()
    assert reported(look(12, cpus, usual, {})).void == Code.FLOWS_CHANGED()
    assert reported(look(12, cpus, {})).void == Code.TIMES_UNKNOWN()
    machine = Machine(AUTO)
    machine.uses(cpu=0, number=1)
    machine.uses(cpu=0, number=2)
    both = {key(1): MB, key(2): MB}
    assert reported(look(12, cpus, usual, both), machine).void == Code.FLOWS_CHANGED()


def test_it_is_there_when_every_flow_is_led_where_its_placement_in_force_asks() -> None:
    machine, now = Machine(AUTO), look(12, {0: (600, 100)}, {THREAD.tid: 60})
    machine.uses(cpu=0)
    assert reported(now, machine).there
    trials = machine.memory.nics["nic"].trials
    trials.states[APP] = Trial(PLACING, LLC, UNSAID, TrialPhase.TRIED)
    assert not reported(now, machine).there
    led = machine.flow()._replace(target_queue=1)
    machine.memory.table.put(led)
    window = reported(now, machine)
    assert window.there
    assert (set(window.rx_cpus), set(window.cpus)) == ({1}, {0, 1})
    machine.memory.table.put(led._replace(location=None))
    assert not reported(now, machine).there


def test_where_no_queue_is_under_its_cache_nothing_can_be_tried() -> None:
    for nic, able in ((NIC, (LLC,)), (replace(NIC, queues=(NIC.queues[0], NIC.queues[2])), ())):
        machine, now = Machine(AUTO, nic=nic), look(12, {0: (600, 100)}, {THREAD.tid: 60})
        machine.uses(cpu=0)
        flows = applications(machine.memory, {"nic"})
        assert application_looks(BEFORE, now, nic, flows, machine.memory)[APP].able == able
