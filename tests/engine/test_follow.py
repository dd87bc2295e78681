# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread that keeps its flows in order owns a queue: what is decided when it migrates."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine import audit
from atfnd.engine.engine import Engine
from atfnd.engine.event import MovesDropped, MovesReported
from atfnd.engine.ownership import follow
from atfnd.engine.ownership.owner import Owned, OwnerId
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Action,
    ActionKind,
    Distance,
    Flow,
    FlowState,
    Migrant,
    Mode,
    NicView,
    Outcome,
    Plan,
    Thread,
)
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.plan import in_order
from atfnd.move.verdict import Mechanism, Verdict
from tests.values import NIC, RULE, THREAD, flow, key, memory_of, one_rule, seen

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


def on_cpu(nic: NicView, queue: int, cpu: int) -> NicView:
    moved = (replace(q, cpu=cpu) if q.index == queue else q for q in nic.queues)
    return replace(nic, queues=tuple(moved))


def kinds(actions: list[Action]) -> list[ActionKind]:
    return [action.kind for action in actions]


def test_a_guest_that_runs_where_no_queue_is_takes_one() -> None:
    machine = Machine()
    machine.nic = replace(NIC, queues=NIC.queues[:2])
    machine.uses(0, 1, LISTENER)
    actions = machine.uses(1, 3, WORKER)
    assert kinds(actions) == [ActionKind.QUEUE_CPU, ActionKind.INSERT]
    assert machine.nic.queues[0].cpu == 3


def test_a_queue_that_somebody_else_moved_is_nobody_s() -> None:
    machine = Machine()
    machine.nic = replace(NIC, manual=frozenset({"queue-cpu:1"}))
    machine.uses(0, 1)
    assert 1 not in machine.memory.nics["nic"].owned
    machine.later()
    [moved] = machine.uses(0, 2)
    assert (moved.kind, moved.queue) == (ActionKind.QUEUE_CPU, 0)


NOW_NS = 10**11
OTHER = Thread(tid=200, pid=200, comm="app", cgroup=None)
MINE: OwnerId = ("thread", THREAD.tid)
RULES = {
    "rest": replace(STRICT, t_delete_ns=1 << 60),
    "at once": replace(RULE, name="at once", t_delete_ns=1 << 60),
}


def remembered(*flows: Flow, owned: Mapping[int, OwnerId] | None = None) -> Memory:
    """These flows, as they are, and the owners of queues."""
    known = memory_of(FlowTable(100), RulesInForce(0, 1 << 60, RULES))
    for each in flows:
        known.table.put(each)
    if owned is not None:
        known.nics["nic"].owned = {queue: Owned(each, 0) for queue, each in owned.items()}
    known.audited_ns = NOW_NS
    return known


def used(number: int, cpu: int, **changes: Any) -> Flow:
    """In use on this CPU, and led to no queue."""
    return flow(number, app_cpu=cpu, used_ns=NOW_NS)._replace(**changes)


def led(number: int, cpu: int, queue: int = 1, **changes: Any) -> Flow:
    """In use on this CPU, and led to this queue by its own rule."""
    ruled = used(number, cpu, state=FlowState.STEERED, location=number, target_queue=queue)
    return ruled._replace(**{"target_cpu": queue, **changes})


def owners(*flows: Flow) -> dict[int, int]:
    """Whose the queues are, after a look."""
    known = remembered(*flows)
    follow.look(NIC, ONLINE, known, NOW_NS)
    return {queue: each.owner[1] for queue, each in known.nics["nic"].owned.items()}


@pytest.mark.parametrize(
    "flow_of",
    [
        used(1, 1, state=FlowState.MANUAL),
        used(1, 1, nic="other"),
        used(1, 1, rule_name="at once"),
        used(1, 1, left="its packets come by another way"),
        used(1, 1, thread=None),
    ],
)
def test_who_has_no_flow_that_may_follow_owns_nothing(flow_of: Flow) -> None:
    assert owners(flow_of) == {}


def port_of(other: Thread, queue: int) -> Flow:
    """The entry of a port whose filter leads to this queue, and whose listener is `other`."""
    port = key(9)._replace(remote=bytes(4), remote_port=0)
    return led(9, queue, queue)._replace(key=port, listener=other, thread=None)


def in_use(number: int, queue: int, thread: Thread = OTHER, **changes: Any) -> Flow:
    """It has no filter, and RSS brings it to this queue."""
    return used(number, queue, thread=thread, rx_queue=queue, **changes)


@pytest.mark.parametrize(
    ("other", "keeps_it_off"),
    [
        (led(2, 1, thread=OTHER), True),
        (port_of(OTHER, 1), True),
        (in_use(2, 1), True),
        (in_use(2, 1, home=Distance.MACHINE, left="it wanders"), True),
        (in_use(2, 1, used_ns=NOW_NS - follow.TERMS.away_ns), False),
        (in_use(2, 1, thread=THREAD), False),
        (port_of(THREAD, 1), False),
        (in_use(2, 1, nic="other"), False),
    ],
)
def test_a_thread_that_is_not_pinned_owns_no_queue_that_others_use(
    other: Flow, keeps_it_off: bool
) -> None:
    mine = led(1, 1)
    assert owners(mine._replace(pinned=False)) == {1: THREAD.tid}
    assert (owners(mine._replace(pinned=False), other).get(1) != THREAD.tid) is keeps_it_off
    assert owners(mine._replace(pinned=True), other)[1] == THREAD.tid
    assert owners(mine, other)[1] == THREAD.tid  # it is not known whether it is pinned


SENT = Action(ActionKind.QUEUE_CPU, "nic", None, None, 1, 2, Code.UNSAID(), "", 1)
PUT_OFF = Ended(1, SENT, Mechanism.FOLLOW, Verdict.DEFERRED, Code.HANDED_ON(1), 0, 1)


@pytest.mark.parametrize(
    "end",
    [
        MovesReported((Outcome(SENT, NOW_NS, 0, None, ""),)),
        MovesReported((Outcome(SENT, NOW_NS, errno.EIO, None, "it stays"),)),
        MovesReported((PUT_OFF,)),
        MovesDropped("nic", ()),
    ],
)
def test_a_queue_is_on_its_way_until_that_ends(end: MovesReported | MovesDropped) -> None:
    known = remembered(led(1, 2), owned={1: MINE})
    assert follow.along(led(1, 2), NIC.queues[1], NIC, known, NOW_NS) != ()
    assert known.nics["nic"].lent.sent == {1: 2}
    Engine(known).handle(end, NOW_NS)
    assert known.nics["nic"].lent.sent == {}


def test_what_stays_is_tried_later_until_it_has_followed_or_nothing_hinders_it() -> None:
    known = remembered(led(1, 2), owned={1: MINE})
    engine, lent = Engine(known), known.lent_of(NIC)
    for times in (1, 2):
        engine.handle(MovesReported((PUT_OFF,)), NOW_NS)
        assert lent.put_off == {1: (times, NOW_NS + times * REST_NS)}
    assert follow.along(led(1, 2), NIC.queues[1], NIC, known, NOW_NS) == ()
    engine.handle(MovesReported((PUT_OFF._replace(why=Code.BUSY_POLLED(1)),)), NOW_NS)
    assert lent.put_off == {1: (1, NOW_NS + REST_NS)}
    engine.handle(MovesReported((Outcome(SENT, NOW_NS, 0, None, ""),)), NOW_NS)
    assert lent.put_off == {}
    engine.handle(MovesReported((PUT_OFF,)), NOW_NS)
    follow.unhindered("nic", known)
    assert lent.put_off == {}
