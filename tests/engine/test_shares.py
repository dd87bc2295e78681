# SPDX-License-Identifier: GPL-2.0-or-later
"""What one user or control group may have of a NIC: nobody takes it all, whichever comes
first."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.filters import budget, port_filters
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.ownership.owner import Owner, OwnerTerms, assign
from atfnd.engine.ownership.shares import Tenant, tenants_of
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.engine.turns import Turns, decision_every_ns
from atfnd.model import (
    Action,
    ActionKind,
    Connecting,
    Flow,
    FlowState,
    InterfaceRule,
    Listening,
    Mode,
    Outcome,
    Policy,
    Share,
    SocketUse,
    Thread,
)
from atfnd.move.event import Wanted
from tests.engine.simulated import SECOND_NS, Load, Simulated
from tests.engine.test_port_filters import EXACT_WINS, PORT
from tests.values import NIC, RULE, flow, key, memory_of, seen

__all__: list[str] = []

ROOM = 512
ALL = Share()
ATTACKER, VICTIM = 1000, 1001
RATE = 100_000
NOW_NS = 10 * SECOND_NS


def policy(share: Share = ALL, **others: object) -> Policy:
    anywhere = InterfaceRule("*", "test:1", True, None, 0)
    return Policy((anywhere,), (RULE,), "auto", 16384, 0, ("test",), user_share=share, **others)  # type: ignore[arg-type]


def of(uid: int, tid: int | None = None, cgroup: int | None = None) -> Thread:
    tid = uid if tid is None else tid
    return Thread(tid, tid, "app", cgroup, uid)


def load(number: int, thread: Thread, rate: int = RATE) -> Load:
    """On CPU 1, and delivered by RSS on CPU 3."""
    return Load(key(number), 1, rate, 3, thread)


def bed(loads: Sequence[Load], room: int = ROOM, share: Share = ALL) -> Simulated:
    terms = RulesInForce.of(policy(share))
    rules = {RULE.name: replace(RULE, t_delete_ns=1 << 60)}
    terms = replace(terms, t_delete_ns=1 << 60, by_name=rules, move_every_ns={})
    made = Simulated(replace(NIC, budget=room), RULE, memory_of(FlowTable(16384), terms), loads)
    made.start()
    return made


def filters(made: Simulated) -> Counter[int | None]:
    """By user."""
    threads = {each.key: each.thread for each in made.loads}
    users = (threads[held] for held, _ in made.held.values())
    return Counter(None if each is None else each.uid for each in users)


def settled(made: Simulated, milliseconds: int = 10) -> Counter[int | None]:
    """What is due is done, without a look."""
    for _ in range(milliseconds):
        made.now_ns += 1_000_000
        made.carry_out(steer.due({"nic": made.nic}, made.memory, made.now_ns))
    return filters(made)


@pytest.mark.parametrize("rate", [RATE // 10, 5 * RATE])
def test_a_victim_gets_its_filters_at_once_though_an_attacker_came_first(rate: int) -> None:
    attacks = [load(n, of(ATTACKER, tid=2000 + n % 40)) for n in range(4000)]
    made = bed(attacks)
    assert filters(made) == {ATTACKER: ROOM}
    made.arrive(load(n, of(VICTIM), rate) for n in range(4000, 4020))
    assert settled(made) == {ATTACKER: ROOM - 20, VICTIM: 20}
    for _ in range(3):  # and keeps them
        made.look()
        assert filters(made) == {ATTACKER: ROOM - 20, VICTIM: 20}


@pytest.mark.parametrize("many", ["users", "groups"])
def test_who_has_many_users_or_many_groups_is_one_all_the_same(many: str) -> None:
    attacks = [
        load(n, of(n, tid=n, cgroup=7) if many == "users" else of(ATTACKER, tid=n, cgroup=n))
        for n in range(10_000, 11_000)
    ]
    made = bed(attacks, room=100)
    made.arrive(load(n, of(VICTIM, cgroup=1)) for n in range(2000))
    settled(made)
    for _ in range(5):
        made.look()
    assert filters(made)[VICTIM] == 50


def test_within_its_users_share_a_flow_takes_the_filter_of_another_at_once() -> None:
    """The slot that was cleared for it does not count against it."""
    rates = [RATE] * 6 + [100 * RATE] * 6
    made = bed([load(n, of(ATTACKER), rate) for n, rate in enumerate(rates)], 10, Share(filters=60))
    for _ in range(5):
        made.look()
        assert filters(made) == {ATTACKER: 6}
    assert {held for held, _ in made.held.values()} == {key(n) for n in range(6, 12)}


def test_a_user_that_has_its_share_takes_no_filter_from_others() -> None:
    """However much its flow is worth, and although a group of others has more: the flow would wait
    for its share even then."""
    others = [load(n, of(uid, cgroup=7)) for n, uid in enumerate([2001, 2002, 2003, 2004] * 2)]
    rich = [load(n, of(ATTACKER, cgroup=1), 100 * RATE) for n in range(8, 11)]
    made = bed([*others, *rich], 10, Share(filters=20))
    for _ in range(8):
        made.look()
    assert filters(made) == {ATTACKER: 2, 2001: 2, 2002: 2, 2003: 2, 2004: 2}
    assert made.deleted == 0


def test_on_a_nic_that_does_not_say_its_room_a_flow_of_more_worth_takes_a_filter() -> None:
    made = bed([load(n, of(VICTIM if n < 5 else ATTACKER)) for n in range(9)])
    made.nic = replace(NIC, budget=None, caps=replace(NIC.caps, filter_slots=None))
    made.slots = 9
    made.arrive([load(20, of(ATTACKER), 100 * RATE)])  # by its share it would get nothing
    for _ in range(8):
        made.look()
    assert key(20) in {held for held, _ in made.held.values()}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 60), st.data())
def test_filters_are_shared_equally_whoever_comes_first(
    wanted: list[int], room: int, data: st.DataObject
) -> None:
    users = [uid for uid, count in enumerate(wanted) for _ in range(count)]
    order = data.draw(st.permutations(users))
    made = bed([], room=room)
    for number, uid in enumerate(order):
        made.arrive([load(number, of(uid))])
        settled(made, 1)
    for _ in range(8):
        made.look()
    held = filters(made)
    assert held.total() == min(room, sum(wanted))
    most = max(held.values(), default=0)
    for uid, count in enumerate(wanted):  # one with fewer than another wants no more
        assert held[uid] >= min(count, most - 1)
    for each in made.memory.table:  # what is kept is what is there
        ruled = each.key in made.memory.table.filters_of("nic").get(("user", each.thread.uid), ())  # type: ignore[union-attr]
        assert ruled == (each.location is not None)


def test_in_a_full_table_a_newcomer_takes_the_place_of_who_has_most() -> None:
    made = bed([load(n, of(ATTACKER)) for n in range(100)], room=10)
    made.memory.table.capacity = 100
    made.arrive(load(n, of(VICTIM)) for n in range(200, 205))
    settled(made)
    assert filters(made) == {ATTACKER: 5, VICTIM: 5}
    assert len(made.memory.table) == 100
    made.arrive([load(300, of(ATTACKER))])
    assert made.memory.table.get(key(300)) is None


class Idle:
    """Users that listen on many ports of one NIC, and whom nobody connects to."""

    def __init__(self, room: int = ROOM, share: Share = ALL) -> None:
        terms = replace(RulesInForce.of(policy(share)), move_every_ns={})
        self.memory = memory_of(FlowTable(16384), terms)
        self.nic = replace(EXACT_WINS, budget=room)
        self.listeners = self.memory.nics["nic"].listeners = Listeners()
        self.now_ns, self.cookies = NOW_NS, 0
        self.live: list[SocketUse] = []

    def listen(self, thread: Thread, count: int) -> None:
        for _ in range(count):
            self.cookies += 1
            port = PORT._replace(local_port=2000 + self.cookies)
            event = Listening(self.now_ns, self.cookies, port, 1, thread, 2, alone=True)
            self.listeners.opened(event, self.memory.table)

    def look(self) -> list[Wanted]:
        self.now_ns += SECOND_NS
        births = port_filters.look(
            self.nic, lambda _, thread: STRICT, self.listeners, self.live, self.memory, self.now_ns
        )
        self.done([each.action for each in births])
        return list(births)

    def done(self, actions: Iterable[Action]) -> None:
        for action in actions:
            at = action.location or 10_000 + hash(action.key) % 50_000
            audit.record(Outcome(action, self.now_ns, 0, at, ""), self.memory)

    def uses(self, number: int, thread: Thread) -> Flow:
        """A flow is used, and moved if it may be."""
        event = seen(number, 1, thread=thread, off_since_ns=0)
        self.done(steer.seen(event, self.nic, RULE, self.memory, self.now_ns))
        flow = self.memory.table.get(key(number))
        assert flow is not None
        return flow

    def filters(self) -> Counter[Tenant]:
        held = self.memory.table.filters_of("nic")
        return Counter({who: len(keys) for who, keys in held.items()})


STRICT = replace(RULE, order=Mode.STRICT)
HALF = "its {} has 50 % of the filters for its ports: delivered by RSS"


def test_who_only_listens_has_half_of_the_filters_at_most() -> None:
    idle = Idle()
    idle.listen(of(ATTACKER), ROOM)
    for _ in range(3):
        idle.look()
    assert idle.filters() == {("user", ATTACKER): ROOM // 2}
    assert HALF.format("user") in map(str, idle.listeners.why_not.values())
    victims = [idle.uses(n, of(VICTIM)) for n in range(20)]
    assert {each.state for each in victims} == {FlowState.STEERED}


def test_a_control_group_is_bounded_whoever_its_users_are() -> None:
    idle = Idle(room=10)
    for uid in range(10):
        idle.listen(of(uid, cgroup=7), 2)
    idle.look()
    assert idle.filters()["cgroup", 7] == 5
    assert HALF.format("control group") in map(str, idle.listeners.why_not.values())


def test_a_victim_gets_the_filters_of_idle_ports_though_many_listened_first() -> None:
    idle = Idle()
    for uid in (2000, 2001):
        idle.listen(of(uid), ROOM)
    idle.look()
    assert idle.filters().total() == ROOM
    for number in range(20):
        assert idle.uses(number, of(VICTIM)).state is FlowState.OVERFLOW
    waits = idle.memory.table.get(key(0))
    assert waits is not None
    assert (
        str(waits.why)
        == "it waits for a filter of a user or control group that has more than its share"
    )
    deletes = idle.look()
    assert [each.action.kind for each in deletes] == [ActionKind.DELETE] * 20
    assert all(each.live and each.first_data_ns is not None for each in deletes)  # in order
    idle.look()  # what was freed is promised: the ports do not take it back
    idle.done(steer.due({"nic": idle.nic}, idle.memory, idle.now_ns))
    assert idle.filters() == {("user", 2000): 246, ("user", 2001): 246, ("user", VICTIM): 20}
    assert idle.look() == []
    assert len(idle.memory.table.ports("nic")) == ROOM - 20


def test_a_port_that_goes_for_another_user_is_not_moved_as_well() -> None:
    idle = Idle(room=4)
    for uid in (2000, 2001):
        idle.listen(of(uid), 2)
    idle.look()
    idle.uses(50, of(VICTIM))
    (port,) = idle.memory.table.swaps("nic")
    ends = key(9)._replace(local_port=port.local_port)
    idle.memory.table.put(
        flow(9, key=ends, thread=of(2000), app_cpu=1, location=77, target_queue=1)
    )
    assert [each.action.kind for each in idle.look()] == [ActionKind.DELETE]


def test_a_refused_filter_of_the_last_port_of_a_share_is_tried_again() -> None:
    idle = Idle(room=2)
    idle.listen(of(VICTIM), 1)
    (refused,) = port_filters.look(
        idle.nic, lambda _, thread: STRICT, idle.listeners, (), idle.memory, idle.now_ns
    )
    outcome = Outcome(refused.action, idle.now_ns, errno.EINVAL, None, "refused")
    audit.record(outcome, idle.memory)
    assert len(idle.look()) == 1


def test_a_port_that_delivers_connections_keeps_its_rule() -> None:
    """To delete it would move them: others give theirs up."""
    idle = Idle(room=4)
    for uid in (2000, 2001):
        idle.listen(of(uid), 2)
    idle.look()
    idle.live = [
        SocketUse(n, key(n)._replace(local_port=2000 + n), 1, 102, 2, 0) for n in (1, 2, 3)
    ]
    idle.look()
    assert idle.uses(50, of(VICTIM)).state is FlowState.OVERFLOW
    (delete,) = idle.look()
    assert delete.action.key == PORT._replace(local_port=2004)
    idle.live = []
    assert idle.uses(51, of(3000)).state is FlowState.OVERFLOW  # as of the last look
    idle.live = [SocketUse(1, key(9)._replace(local_port=2001), 1, 102, 2, 0)]
    kept = PORT._replace(local_port=2001)
    idle.look()
    assert idle.memory.table.get(kept) is not None


def test_a_port_whose_filter_was_asked_for_in_vain_keeps_it() -> None:
    """A connection came, or the flow that needed it has ended."""
    idle = Idle(room=4)
    for uid in (2000, 2001):
        idle.listen(of(uid), 2)
    idle.look()
    idle.uses(50, of(VICTIM))
    (port,) = idle.memory.table.swaps("nic")
    idle.live = [SocketUse(1, key(9)._replace(local_port=port.local_port), 1, 102, 2, 0)]
    assert idle.look() == []
    assert idle.memory.table.swaps("nic") == {}
    idle.live = []
    idle.look()
    waits = idle.memory.table.get(key(50))
    assert waits is not None
    assert budget.make_room(waits, idle.nic, idle.memory, idle.now_ns) == ()
    assert budget.promised(waits, idle.memory)
    idle.memory.table.remove(key(50))
    assert idle.look() == []
    assert idle.filters().total() == 4


def test_what_the_policy_says_of_filters_holds_for_ports() -> None:
    idle = Idle(room=100, share=Share(filters=20))
    idle.listen(of(ATTACKER), 50)
    idle.look()
    assert idle.filters() == {("user", ATTACKER): 20}


def test_the_ports_of_a_listener_found_later_count_for_who_uses_them() -> None:
    idle = Idle()
    idle.listeners.opened(Listening(5, 1, PORT, 1), idle.memory.table)
    idle.memory.table.put(flow(1, thread=of(VICTIM), app_cpu=3))
    idle.look()
    assert idle.filters() == {("user", VICTIM): 1}


def test_a_port_counts_for_who_listens_now() -> None:
    idle = Idle()
    idle.listen(of(ATTACKER), 1)
    idle.look()
    idle.listeners.closed(1, idle.now_ns)
    port = PORT._replace(local_port=2001)
    event = Listening(idle.now_ns, 2, port, 1, of(VICTIM), 2, alone=True)
    idle.listeners.opened(event, idle.memory.table)
    assert idle.filters() == {("user", VICTIM): 1}


def connects(memory: Memory, number: int, thread: Thread, room: int | None = None) -> bool:
    """Its flow is placed at its birth."""
    distances = Distances()
    distances.learn(key(number).remote, SECOND_NS)
    event = Connecting(NOW_NS, number, key(number), 1, thread, 1)
    nic = replace(EXACT_WINS, budget=room)
    return birth.connecting(event, nic, STRICT, 3, distances, memory, NOW_NS) is not None


def test_a_connect_gets_no_filter_above_its_users_share() -> None:
    terms = replace(RulesInForce.of(policy(Share(filters=10))), move_every_ns={})
    memory = memory_of(FlowTable(16384), terms)
    assert sum(connects(memory, n, of(ATTACKER), room=100) for n in range(20)) == 10


def owner(tid: int, uid: int, cpu: int = 0, load: int = 100) -> Owner:
    return Owner(("thread", tid), cpu, load, NOW_NS, tenants=tenants_of(of(uid, tid)))


QUEUES: dict[int, int | None] = {0: 0, 1: 1, 2: 0, 3: 1}
ONLINE = frozenset({0, 1})


def owners_of(owned: object) -> set[int]:
    return {each.owner[1] for each in owned.values()}  # type: ignore[attr-defined]


def test_queues_are_shared_by_users_not_by_threads() -> None:
    loads = [100_000] * 4 + [1000] * 16  # not so many as to share all queues
    hogs = [owner(100 + n, ATTACKER, n % 2, load) for n, load in enumerate(loads)]
    both = [owner(1, VICTIM), owner(2, VICTIM, 1)]
    owned, _ = assign({}, [*hogs, *both], QUEUES, ONLINE, OwnerTerms(), NOW_NS)
    assert owners_of(owned) >= {1, 2}
    first, _ = assign({}, hogs, QUEUES, ONLINE, OwnerTerms(), NOW_NS - SECOND_NS)
    assert len(first) == 4
    owned, _ = assign(first, [*hogs, *both], QUEUES, ONLINE, OwnerTerms(), NOW_NS)
    assert owners_of(owned) >= {1, 2}
    again, _ = assign(owned, [*hogs, *both], QUEUES, ONLINE, OwnerTerms(), NOW_NS + SECOND_NS // 2)
    assert owners_of(again) == owners_of(owned)  # however much busier the attacker is
    alone, _ = assign({}, hogs, QUEUES, ONLINE, OwnerTerms(), NOW_NS, shares={"user": 50})
    assert len(alone) == 2


def machine(share: Share = ALL) -> Memory:
    return memory_of(FlowTable(16384), RulesInForce.of(policy(share, moves_per_s=100)))


def moves(memory: Memory, at_ns: int, *numbers: int, thread: Thread) -> int:
    """How many are moved at once."""
    plan = [
        steer.seen(seen(n, 1, thread=thread, off_since_ns=0), NIC, RULE, memory, at_ns)
        for n in numbers
    ]
    return sum(map(len, plan))


def test_decisions_are_taken_in_turns() -> None:
    turns, every_ns = Turns(), decision_every_ns(policy(Share(decisions=1000)))
    for number in range(4000):
        turns.add(seen(number, 1, thread=of(ATTACKER, tid=number)))
    turns.add(seen(4000, 1, thread=of(VICTIM)))
    first = list(chain.from_iterable(turns.take(every_ns, NOW_NS)))
    assert VICTIM in [each.thread.uid for each in first[:2] if each.thread]
    assert len(first) == 64 + 1
    assert list(chain.from_iterable(turns.take(every_ns, NOW_NS))) == []
    taken, now_ns = 0, NOW_NS
    while (due_ns := turns.due_ns(every_ns)) is not None and due_ns < NOW_NS + SECOND_NS:
        now_ns = max(now_ns, due_ns)
        taken += len(list(chain.from_iterable(turns.take(every_ns, now_ns))))
    assert 999 <= taken <= 1000


def test_of_a_socket_the_last_event_waits_and_none_of_a_closed_one() -> None:
    turns = Turns()
    for cpu in (1, 2):
        turns.add(seen(1, cpu, thread=of(VICTIM)))
    turns.add(seen(2, 1, thread=of(VICTIM)))
    turns.add(seen(2, 3, thread=of(ATTACKER)))
    turns.add(seen(3, 1, thread=None))
    turns.gone(1003)
    turns.gone(9)
    assert len(turns) == 2
    assert sorted((each.cookie, each.app_cpu) for [each] in turns.take({}, 0)) == [
        (1001, 2), (1002, 3),
    ]  # fmt: skip
    assert turns.due_ns({}) is None


def test_what_waits_is_bounded() -> None:
    turns, every_ns = Turns(), {"user": SECOND_NS}
    for number in range(5000):
        turns.add(seen(number, 1, thread=of(ATTACKER)))
    assert (len(turns), turns.dropped) == (4096, 904)
    assert next(turns.take(every_ns, 0))[0].key == key(904)
