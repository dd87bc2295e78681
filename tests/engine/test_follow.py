# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread that keeps its flows in order owns a queue: what is decided when it migrates."""

from __future__ import annotations

from dataclasses import replace

from atfnd.engine import audit
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import (
    Action,
    ActionKind,
    Migrant,
    Mode,
    NicView,
    Outcome,
    Plan,
    Thread,
)
from atfnd.move.plan import in_order
from tests.values import NIC, RULE, memory_of, one_rule, seen

LATER_NS = 1_000_000_000
STRICT = replace(RULE, order=Mode.STRICT)
ONLINE = frozenset(range(4))
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


def on_cpu(nic: NicView, queue: int, cpu: int) -> NicView:
    moved = (replace(q, cpu=cpu) if q.index == queue else q for q in nic.queues)
    return replace(nic, queues=tuple(moved))


def test_a_guest_that_runs_where_no_queue_is_takes_one() -> None:
    machine = Machine()
    machine.nic = replace(NIC, queues=NIC.queues[:2])
    machine.uses(0, 1, replace(WORKER, tid=1))
    actions = machine.uses(1, 3, WORKER)
    assert [each.kind for each in actions] == [ActionKind.QUEUE_CPU, ActionKind.INSERT]
    assert machine.nic.queues[0].cpu == 3
