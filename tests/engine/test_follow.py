# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread that keeps its flows in order owns a queue: what is decided when it migrates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import Action, ActionKind, Migrant, Mode, Move, NicView, Outcome, Plan, Thread
from atfnd.model.reason import Code
from atfnd.move.plan import in_order
from tests.values import NIC, RULE, THREAD, key, memory_of, one_rule, seen

REST_NS = follow.TERMS.rest_ns
LATER_NS = 1_000_000_000
STRICT = replace(RULE, order=Mode.STRICT)
ONLINE = frozenset(range(4))
LISTENER = Thread(tid=1, pid=1, comm="app", cgroup=7)
WORKER = Thread(tid=2, pid=1, comm="app", cgroup=7)


class Machine:
    """A NIC that does what is decided, and the memory of who decides."""

    def __init__(self, owner: Migrant = Migrant.THREAD) -> None:
        in_force = one_rule(0, LATER_NS, Mode.STRICT, owner)
        self.memory, self.nic, self.now_ns = memory_of(FlowTable(4096), in_force), NIC, LATER_NS

    def carry_out(self, plan: Plan) -> list[Action]:
        plan = in_order(plan)
        for number, action in enumerate(plan):
            location = action.location
            if action.kind is ActionKind.INSERT:
                location = 1000 + len(self.memory.table) * 10 + number
            audit.record(Outcome(action, self.now_ns, 0, location, ""), self.memory)
            if action.queue is not None and action.new is not None:
                self.nic = on_cpu(self.nic, action.queue, action.new)
                follow.arrived(action, self.memory)
                follow.followed("nic", action.queue, action.new, self.memory)
        return list(plan)

    def uses(self, number: int, cpu: int, thread: Thread = WORKER) -> list[Action]:
        event = seen(number, cpu, rx_cpu=7, thread=thread, off_since_ns=self.now_ns)
        return self.carry_out(steer.seen(event, self.nic, STRICT, self.memory, self.now_ns))

    def later(self, wait_ns: int = LATER_NS) -> list[Action]:
        self.now_ns += wait_ns
        return self.carry_out(steer.due({"nic": self.nic}, self.memory, self.now_ns))

    def audits(self) -> list[Action]:
        return self.carry_out(steer.own(self.nic, ONLINE, self.memory, self.now_ns))

    def queue_of(self, number: int) -> int | None:
        flow = self.memory.table.get(key(number))
        return None if flow is None else flow.target_queue


def on_cpu(nic: NicView, queue: int, cpu: int) -> NicView:
    moved = (replace(q, cpu=cpu) if q.index == queue else q for q in nic.queues)
    return replace(nic, queues=tuple(moved))


def kinds(actions: list[Action]) -> list[ActionKind]:
    return [action.kind for action in actions]


def test_a_migration_is_one_write_whatever_the_number_of_flows() -> None:
    machine = Machine()
    for number in range(100):
        assert kinds(machine.uses(number, 1)) == [ActionKind.INSERT]
    machine.later()
    [moved] = machine.uses(0, 2)
    assert (moved.kind, moved.queue, moved.old, moved.new) == (ActionKind.QUEUE_CPU, 1, 1, 2)
    assert {machine.queue_of(number) for number in range(100)} == {1}
    assert {flow.target_cpu for flow in machine.memory.table} == {2}
    assert all(machine.uses(number, 2) == [] for number in range(100))  # they all went along


def test_a_queue_rests_before_it_follows_again() -> None:
    machine = Machine()
    machine.uses(0, 1)
    assert kinds(machine.uses(0, 2)) == [ActionKind.QUEUE_CPU]
    assert machine.uses(0, 3) == []
    assert kinds(machine.later(REST_NS)) == [ActionKind.QUEUE_CPU]
    assert machine.nic.queues[1].cpu == 3


def test_a_second_thread_on_a_cpu_is_a_guest_where_no_queue_can_be_spared() -> None:
    machine = Machine()
    machine.nic = replace(NIC, queues=NIC.queues[1:3])
    machine.uses(2, 2, THREAD)
    machine.uses(0, 1, LISTENER)
    machine.uses(1, 1, WORKER)
    machine.later()
    assert machine.queue_of(1) == 1  # it shares the queue, and owns none
    [moved] = machine.uses(1, 2, WORKER)
    assert (moved.kind, moved.new) == (ActionKind.REWRITE, 2)  # to queue 2, by itself


def test_a_guest_that_runs_where_no_queue_is_takes_one() -> None:
    machine = Machine()
    machine.nic = replace(NIC, queues=NIC.queues[:2])
    machine.uses(0, 1, LISTENER)
    actions = machine.uses(1, 3, WORKER)
    assert kinds(actions) == [ActionKind.QUEUE_CPU, ActionKind.INSERT]
    assert machine.nic.queues[0].cpu == 3


def test_a_flow_that_could_not_be_moved_stays_and_is_tried_again_later_each_time() -> None:
    machine = Machine()
    event = seen(0, 1, thread=WORKER, off_since_ns=machine.now_ns)
    [action] = in_order(steer.seen(event, machine.nic, STRICT, machine.memory, machine.now_ns))
    move = Move("none", "deferred", Code.KERNEL("hold: queue 1 has no NAPI thread"), 0, 0)
    waits: list[int] = []
    for _ in range(12):
        news = audit.moved(key(0), move, machine.memory, machine.now_ns, deferred=True, barred=True)
        assert news == (not waits)
        at_ns = machine.memory.next_due_ns()
        assert at_ns is not None
        waits.append(at_ns - machine.now_ns)
        machine.now_ns = at_ns
        assert steer.due({"nic": machine.nic}, machine.memory, machine.now_ns) == (action,)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (100_000_000, 30_000_000_000)
    flow = machine.memory.table.get(key(0))
    assert flow is not None
    assert flow.why == "not moved yet: hold: queue 1 has no NAPI thread"


@pytest.mark.parametrize(
    ("migrant", "owner"), [(Migrant.PROCESS, ("process", 1)), (Migrant.CGROUP, ("cgroup", 7))]
)
def test_a_process_or_cgroup_is_followed_by_its_busiest_thread(
    migrant: Migrant, owner: tuple[str, int]
) -> None:
    machine = Machine(migrant)
    machine.uses(0, 1, LISTENER)
    machine.uses(1, 1, WORKER if migrant is Migrant.PROCESS else replace(WORKER, pid=2))
    assert {each.owner for each in machine.memory.nics["nic"].owned.values()} == {owner}
    machine.later()
    busy = machine.memory.table.get(key(1))
    assert busy is not None
    machine.memory.table.put(busy._replace(app_cpu=3, bytes=10_000_000, used_ns=machine.now_ns))
    assert [(each.kind, each.new) for each in machine.audits()] == [(ActionKind.QUEUE_CPU, 3)]


def test_flows_that_may_be_moved_at_once_have_no_owner() -> None:
    machine = Machine()
    machine.memory.in_force = one_rule(0, LATER_NS)
    machine.uses(0, 1)
    assert kinds(machine.uses(0, 2)) == [ActionKind.REWRITE]
    assert not machine.memory.nics["nic"].owned


def test_a_queue_that_somebody_else_moved_is_nobody_s() -> None:
    machine = Machine()
    machine.nic = replace(NIC, manual=frozenset({"queue-cpu:1"}))
    machine.uses(0, 1)
    assert 1 not in machine.memory.nics["nic"].owned
    machine.later()
    [moved] = machine.uses(0, 2)
    assert (moved.kind, moved.queue) == (ActionKind.QUEUE_CPU, 0)
