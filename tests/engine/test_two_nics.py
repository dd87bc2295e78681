# SPDX-License-Identifier: GPL-2.0-or-later
"""A machine with two NICs: what concerns one does nothing to the flows, queues and rules of the
other, be it that both have the same queue numbers and locations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.filters.lost import lost
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Connecting,
    Filter,
    Flow,
    FlowState,
    Match,
    Mode,
    NicView,
    Outcome,
    Plan,
    SocketUse,
    SteeringMethod,
    Thread,
)
from tests.values import NIC, RULE, THREAD, flow, key, memory_of, one_rule, seen

__all__: list[str] = []

ONE, TWO = replace(NIC, name="one"), replace(NIC, name="two", ifindex=2)
BOTH = {"one": ONE, "two": TWO}
STRICT = replace(RULE, order=Mode.STRICT)
ONLINE = frozenset(range(4))
REST_NS = follow.TERMS.rest_ns


def memory(order: Mode = Mode.IMMEDIATE) -> Memory:
    return memory_of(FlowTable(100), one_rule(100, 10_000, order))


def settled(plan: Plan, known: Memory, at_ns: int = 1, location: int = 7) -> Plan:
    for action in plan:
        audit.record(Outcome(action, at_ns, 0, action.location or location, ""), known)
    return plan


def steered(known: Memory, number: int, nic: NicView, cpu: int = 1, **event: object) -> Flow:
    reported = seen(number, cpu, **event)
    settled(steer.seen(reported, nic, RULE, known, 1), known)
    entry = known.table.get(key(number))
    assert entry is not None
    return entry


def of(known: Memory, number: int) -> Flow:
    entry = known.table.get(key(number))
    assert entry is not None
    return entry


def test_a_socket_with_the_addresses_of_another_nics_flow_changes_nothing_of_it() -> None:
    """Two namespaces with the same addresses: the first one keeps the filter."""
    known = memory()
    first = steered(known, 1, ONE)
    event = seen(1, 2)._replace(cookie=99)
    assert steer.seen(event, TWO, RULE, known, 5000) == ()
    assert steer.seen(event, TWO, None, known, 5000) == ()  # nor if it is to be left alone
    assert of(known, 1) == first


def test_a_thread_takes_its_flows_along_on_the_nic_it_was_seen_on() -> None:
    """Each NIC tells of its own: another one's queues are elsewhere."""
    known = memory()
    for number, nic in ((1, ONE), (2, ONE), (3, TWO)):
        steered(known, number, nic)
    event = seen(1, 2, off_since_ns=500)
    plan = steer.seen(event, ONE, RULE, known, 1000)
    assert {(action.nic, action.key) for action in plan} == {("one", key(1)), ("one", key(2))}
    assert of(known, 3).app_cpu == 1


def test_the_report_of_each_nic_takes_the_flows_of_a_pinned_thread_along() -> None:
    known = memory()
    for number, nic in ((1, ONE), (2, TWO), (3, TWO)):
        steered(known, number, nic)
    for number, nic in ((1, ONE), (2, TWO)):
        event = seen(number, 2, off_since_ns=500)._replace(pinned=True)
        steer.seen(event, nic, RULE, known, 1000)
    assert [of(known, number).app_cpu for number in (1, 2, 3)] == [2, 2, 2]


def test_what_is_left_alone_is_not_taken_along() -> None:
    known = memory()
    for number in (1, 2):
        steered(known, number, ONE)
    known.table.put(of(known, 2)._replace(state=FlowState.MANUAL))
    plan = steer.seen(seen(1, 2, off_since_ns=500), ONE, RULE, known, 1000)
    assert [action.key for action in plan] == [key(1)]
    assert of(known, 2).app_cpu == 1


def test_only_the_nic_that_was_armed_is_taken_up() -> None:
    known = memory()
    for number, nic in ((1, ONE), (2, TWO)):
        steer.seen(seen(number, 1), replace(nic, armed=False), RULE, known, 1)
    assert [action.nic for action in steer.take_up(TWO, known, 2)] == ["two"]
    assert of(known, 1).state is FlowState.OBSERVED


def test_a_deferred_move_on_a_nic_that_is_gone_is_none() -> None:
    known = memory()
    steered(known, 1, ONE)
    steered(known, 2, TWO)
    for number, nic in ((1, ONE), (2, TWO)):
        assert steer.seen(seen(number, 2), nic, RULE, known, 50) == ()  # in its hold-down
    plan = steer.due({"two": TWO}, known, 5000)
    assert [action.key for action in plan] == [key(2)]


def test_each_nic_has_its_own_budget() -> None:
    known, small = memory(), {name: replace(nic, budget=1) for name, nic in BOTH.items()}
    for number, name in enumerate(("one", "two", "one", "two")):
        settled(steer.seen(seen(number, 1), small[name], RULE, known, 1), known)
    states = [of(known, number).state for number in range(4)]
    assert states == [FlowState.STEERED] * 2 + [FlowState.OVERFLOW] * 2
    assert known.overflow == 2
    settled(retire.gone(1000, known), known)  # one's
    (again,) = steer.retry(small, known, 2)
    assert (again.nic, again.key) == ("one", key(2))


def test_a_nic_that_goes_takes_its_own_flows_with_it() -> None:
    known = memory()
    steered(known, 1, ONE)
    steered(known, 2, TWO)
    steer.seen(seen(3, 9), ONE, RULE, known, 1)  # without a rule: no queue is delivered there
    for number, name in ((4, "one"), (5, "two")):
        known.turn_away(flow(number, nic=name, state=FlowState.OVERFLOW))
    assert {each.key for each in retire.nic_gone("one", known)} == {key(1), key(3), key(4)}
    assert [each.key for each in known.table] == [key(2)]
    assert [each.key for each in known.table.overflowed.values()] == [key(5)]


def test_what_is_withdrawn_of_one_nic_stays_known_and_the_others_stays_steered() -> None:
    known = memory()
    steered(known, 1, ONE)
    steered(known, 2, TWO)
    plan = settled(retire.withdraw(ONE, known, "it is paused"), known)
    assert [(action.nic, action.kind) for action in plan] == [("one", ActionKind.DELETE)]
    assert (of(known, 1).state, of(known, 1).location) == (FlowState.OBSERVED, None)
    assert of(known, 2).state is FlowState.STEERED


def test_a_rule_that_is_missing_on_one_nic_is_not_looked_for_on_the_other() -> None:
    known = memory()
    steered(known, 1, ONE)
    steered(known, 2, TWO)
    changed = audit.check_filters(ONE, [], known, 5000)
    assert [each.key for each in changed] == [key(1)]
    assert of(known, 1).state is FlowState.MANUAL
    assert of(known, 2).state is FlowState.STEERED
    here = [Filter(7, Match.of(key(2)), 1)]
    assert audit.check_filters(TWO, here, known, 5000) == []
    assert lost(ONE, [], known, disturbed=True) == []


def test_what_a_reset_of_one_nic_lost_is_its_own() -> None:
    known = memory()
    steered(known, 1, ONE)
    steered(known, 2, TWO)
    assert [each.key for each in lost(TWO, [], known, disturbed=True)] == [key(2)]
    assert of(known, 1).location == 7


# A thread that keeps the order of its flows, on two NICs.


class Machine:
    """What is decided is done at once, on the NIC that it names."""

    def __init__(self) -> None:
        self.memory, self.nics, self.now_ns = memory(Mode.STRICT), dict(BOTH), 10**9

    def carry_out(self, plan: Plan) -> list[Action]:
        for action in plan:
            settled((action,), self.memory, self.now_ns, location=10 + len(self.memory.table))
            if action.queue is not None and action.new is not None:
                nic = self.nics[action.nic]
                queues = [
                    replace(q, cpu=action.new) if q.index == action.queue else q for q in nic.queues
                ]
                self.nics[action.nic] = replace(nic, queues=tuple(queues))
                follow.arrived(action, self.memory)
                follow.followed(action.nic, action.queue, action.new, self.memory)
        return list(plan)

    def uses(self, number: int, nic: str, cpu: int, thread: Thread = THREAD) -> list[Action]:
        event = seen(number, cpu, rx_cpu=7, thread=thread, off_since_ns=self.now_ns)
        return self.carry_out(steer.seen(event, self.nics[nic], STRICT, self.memory, self.now_ns))

    def owned(self, nic: str) -> dict[int, str]:
        return {queue: f"{h.owner}" for queue, h in self.memory.nics[nic].owned.items()}


def test_a_thread_owns_a_queue_of_each_nic_that_it_uses() -> None:
    made = Machine()
    made.uses(1, "one", 1)
    assert (made.owned("one"), made.owned("two")) == ({1: "('thread', 100)"}, {})
    made.uses(2, "two", 1)
    assert made.owned("two") == {1: "('thread', 100)"}
    made.now_ns += 10**9
    plan = made.uses(1, "one", 2)
    assert [(each.nic, each.queue, each.new) for each in plan] == [("one", 1, 2)]
    assert made.nics["two"].queues[1].cpu == 1
    assert [of(made.memory, number).target_cpu for number in (1, 2)] == [2, 1]


def test_who_owns_is_counted_by_the_flows_of_that_nic() -> None:
    made, other = Machine(), Thread(tid=200, pid=200, comm="other", cgroup=None)
    made.uses(1, "one", 1)
    made.uses(2, "two", 1, other)
    made.now_ns += 10**9
    made.carry_out(steer.own(made.nics["one"], ONLINE, made.memory, made.now_ns))
    assert made.owned("one") == {1: "('thread', 100)"}
    assert made.owned("two") == {1: "('thread', 200)"}


def test_flows_of_a_new_owner_are_placed_on_the_nic_that_was_looked_at() -> None:
    made = Machine()
    for number, nic in ((1, "one"), (2, "two")):
        off = replace(made.nics[nic], caps=replace(NIC.caps, queue_cpu=False))
        event = seen(number, 1, rx_cpu=7, off_since_ns=made.now_ns)
        assert len(steer.seen(event, off, STRICT, made.memory, made.now_ns)) == 1
    plan = steer.own(made.nics["one"], ONLINE, made.memory, made.now_ns)
    assert {each.nic for each in plan} <= {"one"}
    assert made.owned("two") == {}


@pytest.mark.parametrize(
    "change",
    [
        {"armed": False},
        {"manual": frozenset({"queue-cpu:1"})},
        {"caps": replace(NIC.caps, queue_cpu=False)},
    ],
)
def test_a_queue_that_may_not_be_moved_does_not_follow(change: dict[str, object]) -> None:
    """It may be ours no more since the thread was placed: disarmed, or another program moved it."""
    made = Machine()
    made.uses(1, "one", 1)
    made.now_ns += 10**9
    known, queue = made.memory, made.nics["one"].queues[1]
    known.table.put(of(known, 1)._replace(app_cpu=2))
    now = replace(made.nics["one"], **change)  # type: ignore[arg-type]
    assert follow.along(of(known, 1), queue, now, known, made.now_ns) == ()
    assert follow.along(of(known, 1), queue, made.nics["one"], known, made.now_ns) != ()


@pytest.mark.parametrize("change", [{"armed": False}, {"method": SteeringMethod.RSS}])
def test_nobody_owns_a_queue_of_a_nic_whose_rules_are_not_ours_to_write(
    change: dict[str, object],
) -> None:
    made = Machine()
    made.uses(1, "one", 1)
    now = replace(made.nics["one"], **change)  # type: ignore[arg-type]
    _, plan = follow.look(now, ONLINE, made.memory, made.now_ns)
    assert (plan, made.owned("one")) == ((), {})


def test_a_flow_that_the_policy_leaves_has_no_owner() -> None:
    made = Machine()
    made.uses(1, "one", 1)
    entry = of(made.memory, 1)
    assert follow.owner_of(entry, made.memory) == ("thread", 100)
    made.memory.table.leave(entry.key)
    assert follow.owner_of(entry, made.memory) is None


def test_who_owned_a_queue_before_is_no_new_owner() -> None:
    made = Machine()
    made.uses(1, "one", 1)
    new, _ = follow.look(made.nics["one"], ONLINE, made.memory, made.now_ns)
    assert new == set()


def test_a_connect_with_an_older_rules_addresses_is_that_rules_on_its_nic() -> None:
    known = memory()
    steered(known, 1, ONE)
    born = Connecting(50, 99, key(1), 0, THREAD, 2)
    assert not birth.again(born, TWO, RULE, known, 50)
    assert not birth.again(born._replace(cookie=of(known, 1).cookie), ONE, RULE, known, 50)
    assert birth.again(born, ONE, RULE, known, 50)
    assert (of(known, 1).cookie, of(known, 1).app_cpu) == (99, 2)


def test_a_connect_is_not_placed_where_another_flow_has_its_addresses() -> None:
    known, distances = memory(), Distances()
    steered(known, 1, TWO)
    born = Connecting(50, 99, key(1), 0, THREAD, 2)
    assert birth.connecting(born, ONE, RULE, 3, distances, known, 50) is None
    other = Connecting(50, 99, key(2), 0, THREAD, 2)
    assert birth.connecting(other, ONE, RULE, 3, distances, known, 50) is not None
    full = replace(ONE, budget=0)
    more = Connecting(50, 98, key(3), 0, THREAD, 2)
    assert birth.connecting(more, full, RULE, 3, distances, known, 50) is None
    assert birth.connecting(more, replace(ONE, armed=False), RULE, 3, distances, known, 50) is None


def test_a_socket_of_another_cookie_does_not_keep_a_dead_flow() -> None:
    known = memory()
    steered(known, 1, ONE)
    use = SocketUse(77, key(1), 1, None, None, 1)
    (action,) = audit.check_sockets([use], BOTH, known, 5000)
    assert (action.kind, action.live) == (ActionKind.DELETE, False)


def test_a_queue_does_not_go_back_for_what_a_flow_showed_before_its_thread_moved() -> None:
    """Its own report was lost, or concerned another NIC."""
    made = Machine()
    for number in (1, 2):
        made.uses(number, "one", 1)
    made.now_ns += 10**9
    made.uses(1, "one", 2)
    made.memory.table.put(of(made.memory, 2)._replace(app_cpu=1, pinned=True))
    made.now_ns += 10**9
    made.memory.table.defer(key(2), 0)
    assert steer.due(made.nics, made.memory, made.now_ns) == ()


def test_a_queue_does_not_go_back_for_a_flow_that_showed_its_thread_unpinned() -> None:
    """Another flow has shown since that it is pinned now, and where."""
    made = Machine()
    for number in (1, 2):
        made.uses(number, "one", 1)
    made.now_ns += 10**9
    made.uses(1, "one", 2)
    for number, cpu, pinned in ((1, 2, True), (2, 1, False)):
        made.memory.table.put(of(made.memory, number)._replace(app_cpu=cpu, pinned=pinned))
    made.now_ns += 10**9
    made.memory.table.defer(key(2), 0)
    assert steer.due(made.nics, made.memory, made.now_ns) == ()


def test_a_pinned_thread_that_moves_is_followed_by_its_own_report() -> None:
    """What was known of it before is older."""
    known = memory()
    steered(known, 1, ONE, pinned=True)
    (action,) = steer.seen(seen(1, 2, pinned=True), ONE, RULE, known, 10**9)
    assert (action.kind, action.new, of(known, 1).app_cpu) == (ActionKind.REWRITE, 2, 2)
