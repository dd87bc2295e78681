# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions by what is known: a queue follows its owner, a move is taken back or put off, filters
of an earlier run are kept or deleted, and what a filter is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.command import Adopt
from atfnd.engine.engine import Engine
from atfnd.engine.event import FiltersLeft, NicAttached, PolicyLoaded
from atfnd.engine.filters import budget
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.plan import changed
from atfnd.engine.table.flow_table import FlowTable, t_delete_in_force_ns
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    Filter,
    Flow,
    FlowState,
    Match,
    Migrant,
    Mode,
    Move,
    Node,
    Outcome,
    Placement,
    PlacementKind,
    Plan,
    Policy,
    SocketUse,
    Thread,
    Topology,
)
from atfnd.model.reason import Code, Why
from atfnd.move.plan import in_order
from atfnd.move.timer import in_ms
from tests.values import NIC, RULE, THREAD, flow, key, memory_of, one_rule, seen

HOLD_NS = 100
LATER_NS = 1_000_000_000
STRICT = replace(RULE, order=Mode.STRICT)
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
                self.nic = changed(self.nic, action)
                follow.arrived(action, self.memory)
                follow.followed("nic", action.queue, action.new, self.memory)
        return list(plan)

    def uses(self, number: int, cpu: int, thread: Thread = WORKER) -> list[Action]:
        event = seen(number, cpu, rx_cpu=7, thread=thread, off_since_ns=self.now_ns)
        return self.carry_out(steer.seen(event, self.nic, STRICT, self.memory, self.now_ns))

    def audits(self) -> list[Action]:
        every = frozenset(range(4))
        return self.carry_out(steer.own(self.nic, every, self.memory, self.now_ns))


def memory(capacity: int = 100) -> Memory:
    return memory_of(FlowTable(capacity), one_rule(HOLD_NS, 10_000))


def test_a_guest_that_runs_where_no_queue_is_takes_one() -> None:
    machine = Machine()
    machine.nic = replace(NIC, queues=NIC.queues[:2])
    machine.uses(0, 1, replace(WORKER, tid=1))
    actions = machine.uses(1, 3, WORKER)
    assert [each.kind for each in actions] == [ActionKind.QUEUE_CPU, ActionKind.INSERT]
    assert machine.nic.queues[0].cpu == 3


def test_a_move_that_waited_until_it_was_decided_otherwise_is_taken_back() -> None:
    """Its thread went to CPU 2 and came back before the move there had its turn."""
    known = memory()
    [first] = steer.seen(seen(1, 1), NIC, RULE, known, 1)
    audit.record(Outcome(first, 1, 0, 7, ""), known)
    [late] = steer.seen(seen(1, 2), NIC, RULE, known, 1000)
    assert steer.seen(seen(1, 1), NIC, RULE, known, 1001) == ()

    def is_done(action: Action, at_ns: int) -> None:
        done = Outcome(action, at_ns, 0, 7, "")
        audit.record(done, known)
        audit.overtaken(done, NIC, known)

    is_done(late, 1002)
    [back] = steer.due({"nic": NIC}, known, 1002 + HOLD_NS)
    assert (back.kind, back.old, back.new) == (ActionKind.REWRITE, 2, 1)
    is_done(back, 2000)
    assert not known.table.deferred()


OURS = Filter(7, Match.of(key(1)), 1)
USE = SocketUse(1001, key(1), 1, 101, 1, 0)


def test_an_earlier_runs_rule_stays_on_a_queue_whose_cpu_went_offline() -> None:
    """The kernel lets that queue run on several."""
    known = memory()
    known.cpus = {n: Cpu(n, n != 1, 0, 0, n, (n,), (n,)) for n in (1, 2, 3)}
    nic = replace(NIC, queues=tuple(replace(each, cpu=None) for each in NIC.queues))
    [flow_of], plan = audit.adopt(nic, [OURS], {Match.of(key(1)): USE}, known, LATER_NS)
    assert plan == ()
    assert (flow_of.location, flow_of.target_queue, flow_of.target_cpu) == (7, 1, None)
    assert flow_of.app_cpu == 2


@pytest.mark.parametrize(("queue", "room"), [(9, 100), (1, 0)], ids=["no queue", "no room"])
def test_an_earlier_runs_rule_that_cannot_be_kept_is_deleted(queue: int, room: int) -> None:
    known = memory(room)
    rule, sockets = OURS._replace(queue=queue), {Match.of(key(1)): USE}
    adopted, [delete] = audit.adopt(NIC, [rule], sockets, known, LATER_NS)
    assert (adopted, known.table.get(key(1))) == ([], None)
    assert (delete.kind, delete.location, delete.old) == (ActionKind.DELETE, 7, queue)
    assert not delete.live


def test_an_adopted_flow_is_reported_anew_when_another_policy_wants_flows_elsewhere() -> None:
    """It is used where it arrives: that is no news to an observer, but not where it belongs now."""
    before = Policy((), (RULE,), "auto", 64, 0, ())
    engine, use = Engine(Memory.of(before)), SocketUse(1001, key(1), None, None, None, 0)
    engine.handle(NicAttached(NIC, armed=True), 0)
    engine.handle(FiltersLeft("nic", (Filter(7, Match.of(key(1)), 2),), (use,)), 0)
    cpus = Placement(PlacementKind.CPUS, frozenset({1}))
    for rule, said in ((RULE, []), (replace(RULE, placement=cpus), [Adopt({1001: 2})])):
        policy = replace(before, flows=(rule,))
        [adopted] = engine.memory.table
        rules = {(adopted.cookie, adopted.key): adopted.rule_name}
        assert engine.handle(PolicyLoaded(policy, rules, frozenset()), 1) == said


def test_a_full_table_forgets_only_as_many_idle_flows_as_make_it_less_full() -> None:
    """T_delete grows as the table empties: one audit does not forget them all."""
    known = memory_of(FlowTable(100), one_rule(100, LATER_NS))
    for number in range(100):
        known.table.put(flow(number, used_ns=99 * LATER_NS + LATER_NS // 2))
    uses = [SocketUse(1000 + number, key(number), 1, 101, 1, 0) for number in range(100)]
    audit.check_sockets(uses, {"nic": NIC}, known, 100 * LATER_NS)
    left = len(known.table)
    rests_ns = [t_delete_in_force_ns(LATER_NS, count, 100) for count in (left, left + 1)]
    assert rests_ns[1] < LATER_NS // 2 <= rests_ns[0]


def test_a_filter_is_worth_more_from_another_node_than_from_another_core() -> None:
    cpus = tuple(Cpu(n, True, n // 2, n // 2, n, (n,), (n,)) for n in range(4))
    nodes = (Node(0, (0, 1), {0: 10, 1: 31}), Node(1, (2, 3), {0: 31, 1: 10}))
    known = memory()
    small = replace(NIC, budget=0)
    for number, cpu in ((1, 2), (2, 0)):
        thread = replace(THREAD, tid=number)
        steer.seen(seen(number, cpu, thread=thread), small, RULE, known, 1)
    near = {key(1): 3, key(2): 3}.get
    for at_ns in (10**9, 2 * 10**9):
        budget.weigh(small, Topology(cpus, nodes), near, known, at_ns)
    records = [known.table.record(key(n)) for n in (1, 2)]
    assert [r.pending.weight.mismatch for r in records if r and r.pending.weight] == [1.0, 3.1]


# Moves that were put off: when they are tried again.

NOW_NS, MS = 10**11, 1_000_000
HELD = Code.NOT_HELD(0, "queue 1 is polled on CPU 1, which is held")


def remembering(*flows: Flow) -> Memory:
    known = memory_of(FlowTable(100), one_rule(10 * MS, 1 << 60))
    for each in flows:
        known.table.put(each)
    return known


def wanted(number: int) -> Flow:
    return flow(number, state=FlowState.WANTED, app_cpu=1)._replace(rule_name="rest")


def put_off(
    known: Memory, number: int, why: Why = HELD, *, barred: bool = False, now_ns: int = NOW_NS
) -> int:
    """Milliseconds until it is looked at again."""
    move = Move("none" if barred else "hold", "deferred", why, 0, 0)
    audit.moved(key(number), move, known, now_ns, deferred=True, barred=barred)
    return (known.table.deferred()[key(number)] - now_ns) // MS


def test_other_numbers_are_the_same_reason_and_other_words_are_not() -> None:
    known = remembering(wanted(1))
    whys = [Code.NEVER_IDLE(in_ms(ns), in_ms(10**9)) for ns in (284_700, 300_000, 12_000_000)]
    assert [put_off(known, 1, why) for why in whys] == [100, 200, 400]
    assert put_off(known, 1) == 100
    whys = [Code.DATA_IN_FLIGHT(), Code.ASYNCHRONOUS()]
    assert [put_off(known, 1, why, barred=True) for why in whys] == [200, 400]


def test_a_flow_whose_thread_has_moved_is_tried_at_once_and_then_no_more_often() -> None:
    known = remembering(wanted(1))
    assert [put_off(known, 1) for _ in range(3)] == [100, 200, 400]
    for app_cpu, pause_ms in ((1, 800), (2, 1600)):
        event = seen(1, app_cpu=app_cpu, rx_cpu=3)
        assert [each.key for each in steer.seen(event, NIC, RULE, known, NOW_NS)] == [key(1)]
        assert put_off(known, 1) == pause_ms


def test_when_a_queue_has_another_cpu_what_was_put_off_is_looked_at() -> None:
    known = remembering(wanted(1), wanted(2), wanted(3)._replace(nic="other"))
    for number in (1, 3):
        put_off(known, number)
    follow.followed("nic", 1, 3, known)
    assert known.table.take_due(NOW_NS) == [key(1)]
    assert put_off(known, 1) == 200  # the same stands in its way
    assert known.table.noted(key(3)).deferrals == 1
