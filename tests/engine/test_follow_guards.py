# SPDX-License-Identifier: GPL-2.0-or-later
"""What a queue follows and what it does not, each rule of `engine.ownership.follow` by itself."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.engine import Engine
from atfnd.engine.event import MovesDropped, MovesReported, QueuesLooked
from atfnd.engine.ownership import follow
from atfnd.engine.ownership.owner import Lent, Owned, OwnerId
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
    SteeringMethod,
    Thread,
)
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.verdict import Mechanism, Verdict
from tests.values import NIC, RULE, THREAD, flow, key, memory_of

__all__: list[str] = []

SECOND_NS = 10**9
NOW_NS = 100 * SECOND_NS
ONLINE = frozenset(range(4))
OTHER = Thread(tid=200, pid=200, comm="app", cgroup=None)
MINE: OwnerId = ("thread", THREAD.tid)
RULES = {
    "rest": replace(RULE, order=Mode.STRICT, t_delete_ns=1 << 60),
    "at once": replace(RULE, name="at once", t_delete_ns=1 << 60),
}


def memory(*flows: Flow, owned: Mapping[int, OwnerId] | None = None, **changes: Any) -> Memory:
    known = memory_of(FlowTable(100), RulesInForce(0, 1 << 60, **{"by_name": RULES, **changes}))
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


def along(known: Memory, nic: NicView = NIC, cpu: int = 2) -> Plan:
    """Its owner's flow is used on this CPU, and queue 1 is delivered on CPU 1."""
    known.table.put(led(1, cpu))
    return follow.along(led(1, cpu), NIC.queues[1], nic, known, NOW_NS)


def owners(known: Memory, nic: NicView = NIC, online: frozenset[int] = ONLINE) -> dict[int, int]:
    """Whose the queues are, after a look."""
    follow.look(nic, online, known, NOW_NS)
    return {queue: each.owner[1] for queue, each in known.nics["nic"].owned.items()}


def test_a_queue_goes_along_and_rests_then() -> None:
    known = memory(owned={1: MINE})
    [action] = along(known)
    assert (action.kind, action.queue, action.old, action.new) == (ActionKind.QUEUE_CPU, 1, 1, 2)
    assert known.nics["nic"].lent.moved_ns == {1: NOW_NS}
    assert along(known, cpu=3) == ()
    assert known.table.deferred() == {key(1): NOW_NS + follow.TERMS.rest_ns}


@pytest.mark.parametrize(
    "nic",
    [
        replace(NIC, armed=False),
        replace(NIC, manual=frozenset({"queue-cpu:1"})),
        replace(NIC, caps=replace(NIC.caps, queue_cpu=False)),
    ],
)
def test_a_queue_that_is_not_ours_to_move_stays(nic: NicView) -> None:
    assert along(memory(owned={1: MINE}), nic) == ()


def test_a_queue_that_is_there_already_stays() -> None:
    assert along(memory(owned={1: MINE}), cpu=1) == ()


def test_no_queue_of_a_nic_that_is_only_watched_is_anybodys() -> None:
    known = memory(used(1, 1), owned={1: MINE})
    known.lent_of(NIC)
    assert follow.look(replace(NIC, armed=False), ONLINE, known, NOW_NS) == (set(), ())
    assert (known.nics["nic"].owned, known.nics["nic"].lent) == ({}, Lent())


@pytest.mark.parametrize(
    "changes", [{"method": SteeringMethod.RSS}, {"caps": replace(NIC.caps, queue_cpu=False)}]
)
def test_nobody_owns_a_queue_where_it_could_not_be_led_there(changes: dict[str, Any]) -> None:
    assert owners(memory(used(1, 1))) == {1: 100}
    assert owners(memory(used(1, 1)), replace(NIC, **changes)) == {}


def test_an_owner_with_one_flow_gets_the_queue_that_it_is_led_to() -> None:
    assert owners(memory(led(1, 1, queue=2))) == {2: 100}
    port = key(0)._replace(remote=bytes(4), remote_port=0)
    serves = led(0, 2, queue=2, key=port, cookie=9, thread=None)
    assert owners(memory(serves, used(1, 1))) == {2: 100}


def test_an_owner_that_was_in_use_at_the_last_audit_counts_as_in_use() -> None:
    known = memory(used(1, 1, used_ns=NOW_NS - 3 * SECOND_NS))
    known.audited_ns = NOW_NS - 3 * SECOND_NS
    assert owners(known) == {1: 100}
    known.audited_ns = NOW_NS
    assert owners(known) == {}


@pytest.mark.parametrize(
    "flow_of",
    [
        used(1, 1, state=FlowState.MANUAL),
        used(1, 1, nic="other"),
        used(1, 1, rule_name="at once"),
        used(1, 1, left=Code.LEFT_GROUP()),
        used(1, 1, thread=None),
    ],
)
def test_who_has_no_flow_that_may_follow_owns_nothing(flow_of: Flow) -> None:
    assert owners(memory(flow_of)) == {}


def test_a_flow_that_is_to_go_or_is_used_on_a_dedicated_cpu_has_no_owner() -> None:
    known = memory()
    assert follow.owner_of(used(1, 1), known) == MINE
    known.table.put(used(1, 1))
    known.table.leave(key(1))
    assert follow.owner_of(used(1, 1), known) is None
    assert follow.owner_of(used(2, 1), memory(dedicated=frozenset({1}))) is None


def test_an_owner_loses_its_queue_where_its_new_cpu_has_no_room() -> None:
    crowd = replace(NIC, queues=tuple(replace(q, cpu=1 if q.index == 1 else 2) for q in NIC.queues))
    known = memory(owned={1: MINE, 2: ("thread", 200)})
    assert follow.may_follow(used(1, 1), crowd.queues[1], crowd, known)
    assert not follow.may_follow(used(1, 2), crowd.queues[1], crowd, known)  # three are there
    assert known.nics["nic"].owned.keys() == {2}
    assert follow.may_follow(used(1, 2), NIC.queues[1], NIC, memory(owned={1: MINE}))


def test_a_queue_on_its_way_to_a_cpu_counts_there() -> None:
    """Two owners that went to one CPU at once brought their queues there. That was one queue too
    many, so one was sent home, and came again: without end (seed 487 of the whole daemon)."""
    known = memory(owned={1: MINE, 3: ("thread", 200)})
    queues = NIC.queues
    shared = replace(NIC, queues=(replace(queues[0], cpu=2), *queues[1:]))  # CPU 2 takes one more
    [_] = along(known, shared)
    newcomer = used(2, 2)._replace(thread=replace(THREAD, pid=200, tid=200))
    assert not follow.may_follow(newcomer, shared.queues[3], shared, known)
    known.nics["nic"].lent.sent.clear()  # it was not moved
    known.nics["nic"].owned = {3: Owned(("thread", 200), 0)}
    assert follow.may_follow(newcomer, shared.queues[3], shared, known)


def test_a_look_counts_a_queue_where_it_is_sent() -> None:
    known = memory(led(1, 2), owned={1: MINE})
    known.lent_of(NIC).sent[1] = 2
    assert follow.look(NIC, ONLINE, known, NOW_NS)[1] == ()  # it is on its way already
    known.nics["nic"].lent.sent.clear()
    assert [each.new for each in follow.look(NIC, ONLINE, known, NOW_NS)[1]] == [2]
    assert known.nics["nic"].lent.sent == {1: 2}


SENT = Action(ActionKind.QUEUE_CPU, "nic", None, None, 1, 2, "", "", 1)


@pytest.mark.parametrize(
    "end",
    [
        MovesReported((Outcome(SENT, NOW_NS, 0, None, ""),)),
        MovesReported((Outcome(SENT, NOW_NS, errno.EIO, None, "it stays"),)),
        MovesReported(
            (Ended(1, SENT, Mechanism.FOLLOW, Verdict.DEFERRED, Code.KERNEL("put off"), 0, 1),)
        ),
        MovesDropped("nic", ()),
    ],
)
def test_a_queue_is_on_its_way_until_that_ends(end: MovesReported | MovesDropped) -> None:
    known = memory(owned={1: MINE})
    along(known)
    lent = known.nics["nic"].lent
    assert lent.sent == {1: 2}
    Engine(known).handle(end, NOW_NS)
    assert lent.sent == {}


def test_what_stays_is_tried_later_until_it_has_followed_or_nothing_hinders_it() -> None:
    ended = Ended(
        1, SENT, Mechanism.FOLLOW, Verdict.DEFERRED, Code.KERNEL("RPS hands its packets on"), 0, 1
    )
    known = memory(owned={1: MINE})
    engine, lent = Engine(known), known.lent_of(NIC)
    for times, wait_ns in ((1, follow.TERMS.rest_ns), (2, 2 * follow.TERMS.rest_ns)):
        engine.handle(MovesReported((ended,)), NOW_NS)
        assert lent.put_off == {1: (times, NOW_NS + wait_ns)}
    assert along(known) == ()
    engine.handle(MovesReported((ended._replace(why=Code.KERNEL("busy polling")),)), NOW_NS)
    assert lent.put_off == {1: (1, NOW_NS + follow.TERMS.rest_ns)}
    engine.handle(MovesReported((Outcome(SENT, NOW_NS, 0, None, ""),)), NOW_NS)
    assert lent.put_off == {}
    engine.handle(MovesReported((ended,)), NOW_NS)
    follow.unhindered("nic", known)
    assert lent.put_off == {}


def test_what_ends_late_does_not_end_the_way_to_a_newer_cpu() -> None:
    known = memory(owned={1: MINE})
    lent = known.lent_of(NIC)
    lent.sent[1] = 3
    follow.arrived(SENT, known)  # to CPU 2, where it was to go before
    assert lent.sent == {1: 3}
    follow.arrived(replace(SENT, new=3), known)
    assert lent.sent == {}


def test_a_queue_that_is_to_leave_a_cpu_makes_room_there() -> None:
    crowd = replace(NIC, queues=tuple(replace(q, cpu=1 if q.index == 1 else 2) for q in NIC.queues))
    known = memory(owned={1: MINE})
    known.lent_of(crowd).sent.update({0: 0, 3: 3})
    assert follow.may_follow(used(1, 2), crowd.queues[1], crowd, known)


def test_only_the_owners_flows_that_are_led_to_the_queue_went_along() -> None:
    known = memory(
        led(1, 2),
        led(2, 2, nic="other"),
        led(3, 2, queue=2),
        led(4, 2, rule_name="at once"),
        used(5, 2, target_queue=1, state=FlowState.OBSERVED, target_cpu=1),
        used(6, 2, target_queue=1, state=FlowState.PORT, target_cpu=1),
        used(7, 2, target_queue=3, state=FlowState.PORT, target_cpu=3),
        owned={1: MINE},
    )
    follow.followed("nic", 1, 2, known)
    cpus = {number: known.table.get(key(number)) for number in range(1, 8)}
    assert {n: each.target_cpu for n, each in cpus.items() if each is not None} == {
        1: 2, 2: 1, 3: 2, 4: 1, 5: 1, 6: 2, 7: 3,
    }  # fmt: skip


def test_flows_that_wait_for_a_queue_on_its_new_cpu_are_placed_again() -> None:
    """It is of another owner, but it is delivered where their thread runs; a queue of its own owner
    is no reason to place the others again."""
    flows = (
        used(1, 2),
        used(2, 2, target_queue=3, target_cpu=3),
        led(3, 2, queue=0, target_cpu=None),
        led(4, 2, queue=0),
        used(5, 3),
        used(6, 2, nic="other"),
        led(7, 1, queue=1),
        used(8, 2, used_ns=0),
    )
    again = {OTHER.tid: {1, 3}, None: {1, 2, 7}}
    for owner, numbers in again.items():
        known = memory(*flows, owned={1: ("thread", owner)} if owner else {})
        follow.followed("nic", 1, 2, known)
        assert {n for n in range(1, 9) if known.table.due_ns(key(n)) == 0} == numbers


def test_where_it_was_delivered_before_its_queue_followed_is_not_known_any_more() -> None:
    known = memory(led(1, 2, rx_queue=1, rx_cpu=1), led(2, 2, rx_queue=3, rx_cpu=3),
                   owned={1: MINE})  # fmt: skip
    follow.followed("nic", 1, 2, known)
    rx_cpus = [each.rx_cpu for each in map(known.table.get, map(key, (1, 2))) if each]
    assert rx_cpus == [None, 3]


def test_a_queue_that_loses_its_cpu_goes_to_none_that_is_dedicated() -> None:
    online = frozenset({0, 1, 2})  # and all have one queue
    for dedicated, cpu in ((frozenset[int](), 0), (frozenset({0}), 1)):
        _, plan = follow.look(NIC, online, memory(dedicated=dedicated), NOW_NS)
        assert [(each.queue, each.new) for each in plan] == [(3, cpu)]


def test_a_thread_is_where_it_was_last_and_a_process_where_it_carries_most() -> None:
    busy = used(1, 1, bytes=1000, used_ns=NOW_NS - 20)
    last = used(2, 2, bytes=1, used_ns=NOW_NS - 10)
    assert owners(memory(busy, last)) == {2: 100}
    by_process = {"rest": replace(RULES["rest"], owner=Migrant.PROCESS)}
    assert owners(memory(busy, last, by_name=by_process)) == {1: 100}


def test_a_load_is_what_was_carried_of_late_and_half_of_what_came_before() -> None:
    known = memory(used(1, 1, bytes=1000))
    loads = []
    for carried in (1000, 1500, 1500, 1600):
        known.table.put(used(1, 1, bytes=carried))
        owners(known)
        loads.append(known.nics["nic"].load[MINE])
    assert loads == [(1000, 1000), (1500, 1000), (1500, 500), (1600, 350)]


def test_who_owns_a_queue_now_and_did_not_is_placed_again_and_nobody_else() -> None:
    known = memory(used(1, 1), used(2, 2, thread=OTHER), owned={1: MINE})
    assert follow.look(NIC, ONLINE, known, NOW_NS)[0] == {("thread", 200)}
    assert follow.look(NIC, ONLINE, known, NOW_NS)[0] == set()
    for number in (1, 2):
        known.table.remove(key(number))
    assert follow.look(NIC, ONLINE, known, NOW_NS)[0] == {MINE, ("thread", 200)}


def port_of(other: Thread, queue: int) -> Flow:
    """The entry of a port whose filter leads to this queue, and whose listener is `other`."""
    port = key(9)._replace(remote=bytes(4), remote_port=0)
    return led(9, queue, queue)._replace(key=port, listener=other, thread=None)


def in_use(number: int, queue: int, thread: Thread = OTHER, **changes: Any) -> Flow:
    """It has no filter, and RSS brings it to this queue."""
    return used(number, queue, thread=thread, rx_queue=queue, **changes)


@pytest.mark.parametrize(
    "others",
    [
        led(2, 1, thread=OTHER),
        port_of(OTHER, 1),
        in_use(2, 1),
        in_use(2, 1, home=Distance.MACHINE, left=Code.LEFT_WANDERS("it wanders")),
    ],
    ids=["a filter", "a port's filter", "RSS", "a thread that wanders"],
)
def test_a_thread_that_is_not_pinned_owns_no_queue_that_others_use(others: Flow) -> None:
    mine = led(1, 1)
    assert owners(memory(mine._replace(pinned=False))) == {1: THREAD.tid}
    assert owners(memory(mine._replace(pinned=False), others)).get(1) != THREAD.tid
    assert owners(memory(mine._replace(pinned=True), others))[1] == THREAD.tid
    assert owners(memory(mine, others))[1] == THREAD.tid  # it is not known whether it is pinned


def test_a_thread_that_lost_queues_to_others_waits_for_none_once_it_is_pinned() -> None:
    """As long as it may leave, others come to each queue that follows it. It runs on CPUs without
    a queue."""
    known = memory(led(1, 4, pinned=False), in_use(2, 1), owned={1: MINE})
    engine = Engine(known)

    def owns_one(after_s: int) -> bool:
        engine.handle(QueuesLooked(frozenset(range(6))), NOW_NS + after_s * SECOND_NS)
        return MINE in {each.owner for each in known.nics["nic"].owned.values()}

    assert owns_one(0)
    [(queue, _)] = known.nics["nic"].lent.sent.items()
    known.table.put(used(2, 1, thread=OTHER, rx_queue=queue))
    assert not owns_one(1)
    known.table.put(led(1, 5, pinned=False))
    assert not owns_one(2)
    known.table.put(led(1, 5, pinned=True))
    assert owns_one(2)


@pytest.mark.parametrize(
    "idle",
    [
        in_use(2, 1, used_ns=NOW_NS - follow.TERMS.away_ns),
        in_use(2, 1, thread=THREAD),
        port_of(THREAD, 1),
        in_use(2, 1, nic="other"),
    ],
    ids=["idle", "its own", "its own port", "another NIC"],
)
def test_what_is_its_own_or_idle_does_not_keep_it_from_a_queue(idle: Flow) -> None:
    assert owners(memory(led(1, 1, pinned=False), idle))[1] == THREAD.tid
