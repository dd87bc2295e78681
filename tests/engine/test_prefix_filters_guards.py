# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a rule for many flows from being written, and what ends one, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.filters import prefix_filters
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import RulesInForce
from atfnd.engine.table.wide_key import overlap
from atfnd.model import (
    Action,
    ActionKind,
    Filter,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Match,
    Mode,
    NicView,
    Rss,
    SocketUse,
    SteeringMethod,
)
from atfnd.move.event import Wanted
from tests.engine.test_birth import owning
from tests.engine.test_port_filters import EXACT_WINS, OTHER
from tests.prefixed import ORDERED, SHAPES
from tests.values import RULE, THREAD, flow, key, memory_of

__all__: list[str] = []

SECOND_NS = 10**9
NOW_NS = 100 * SECOND_NS
CAPS = replace(EXACT_WINS.caps, shapes=SHAPES, filter_slots=64)
NIC = replace(EXACT_WINS, caps=CAPS, budget=4, foreign=0, rss=Rss(bytes(40), (0, 1, 2, 3) * 32))
NET = key(0)._replace(remote=bytes([10, 1, 0, 0]), remote_port=0, remote_prefix=24)
HERE = key(0).local
WAITS = flow(900, state=FlowState.OVERFLOW, thread=OTHER, key=key(900)._replace(local=bytes(4)))


def ruled(number: int, queue: int = 1, **changes: Any) -> Flow:
    """Flow `number`, with a rule of its own: 10.0.0.1:443 from 10.1.0.NUMBER:1000."""
    known = flow(number, state=FlowState.STEERED, location=number, target_queue=queue, moved_ns=1)
    return known._replace(**{"app_cpu": queue, **changes})


def prefix_rule(prefix: FlowKey = NET, queue: int = 1, **changes: Any) -> Flow:
    """One that has its rule."""
    known = ruled(50, queue, key=prefix, cookie=0, thread=None)
    return known._replace(**changes)


class Bed:
    """Filters are short; thread 100 owns queue 1, thread 200's is 2."""

    def __init__(self, *flows: Flow, room: int = 4) -> None:
        rule = replace(RULE, order=Mode.STRICT, t_delete_ns=1 << 60)
        rules = {"rest": rule, "another": replace(rule, name="another")}
        self.memory = memory_of(FlowTable(1000), RulesInForce(100, 1 << 60, rules))
        self.memory.nics["nic"].owned = owning({1: THREAD, 2: OTHER})
        self.nic: NicView = replace(NIC, budget=room)
        self.rule: FlowRule | None = ORDERED
        self.uses: list[SocketUse] = []
        for each in (WAITS, *flows):
            self.memory.table.put(each)

    def look(self, now_ns: int = NOW_NS, **changes: Any) -> tuple[Wanted, ...]:
        listened: Callable[[FlowKey], bool] = changes.pop("listened", lambda key: False)
        nic = replace(self.nic, **changes)
        rule_of = lambda key: self.rule  # noqa: E731
        return prefix_filters.look(nic, rule_of, listened, self.uses, self.memory, now_ns)

    def found(self, **changes: Any) -> list[FlowKey]:
        return [key for key in map(inserted, self.look(**changes)) if key is not None]

    def used(self, prefix: FlowKey, napi_id: int = 101) -> None:
        """A socket comes by that rule."""
        one = prefix._replace(remote=bytes([10, 1, 0, 200]), remote_port=9, remote_prefix=0)
        self.uses = [SocketUse(99, one, 1, napi_id, 1, 0)]


def inserted(birth: Wanted) -> FlowKey | None:
    return birth.action.key if birth.action.kind is ActionKind.INSERT else None


def deleted(births: tuple[Wanted, ...]) -> list[FlowKey | None]:
    return [each.action.key for each in births if each.action.kind is ActionKind.DELETE]


TWO = ruled(1), ruled(2)


def test_two_flows_of_one_network_come_by_one_rule_and_every_ring_is_to_drain() -> None:
    bed = Bed(*TWO, room=3)
    [birth] = bed.look()
    assert inserted(birth) is not None
    every = frozenset({0, 1, 2, 3})
    assert (birth.origins, birth.rss, birth.mode) == (every, every, Mode.STRICT)
    assert (birth.action.new, birth.action.rule_name) == (1, "rest")
    assert bed.memory.table.inserting("nic") == {birth.action.key: birth.action}
    assert bed.look() == ()  # while it is written


def test_where_the_nic_does_not_say_how_rss_is_nothing_is_said_of_its_rings() -> None:
    [birth] = Bed(*TWO, room=3).look(rss=None)
    assert (birth.origins, birth.rss) == (None, None)


@pytest.mark.parametrize(
    ("changes", "is_wanted"),
    [
        ({}, True),
        ({"armed": False}, False),
        ({"method": SteeringMethod.RSS}, False),
        ({"caps": replace(CAPS, exact_wins=False)}, False),
        ({"caps": replace(CAPS, shapes=frozenset())}, False),
    ],
)
def test_where_there_is_something_to_look_at(changes: dict[str, Any], is_wanted: bool) -> None:
    assert prefix_filters.wanted(replace(NIC, **changes), Bed(*TWO).memory) is is_wanted


def test_a_prefix_rule_is_looked_at_however_many_filters_there_are() -> None:
    bed = Bed(prefix_rule())
    bed.memory.table.remove(WAITS.key)
    assert prefix_filters.wanted(replace(NIC, budget=1000), bed.memory)
    bed.memory.table.remove(NET)
    assert not prefix_filters.wanted(replace(NIC, budget=1000), bed.memory)


@pytest.mark.parametrize(
    "changes",
    [
        {"caps": replace(CAPS, exact_wins=False)},
        {"caps": replace(CAPS, shapes=frozenset())},
        {"listened": lambda key: True},
    ],
)
def test_none_where_nobody_knows_which_of_two_rules_wins(changes: dict[str, Any]) -> None:
    assert Bed(*TWO, room=3).found(**changes) == []


def test_none_until_what_was_put_off_has_rested() -> None:
    bed = Bed(*TWO, room=3)
    bed.memory.nics["nic"].spending.prefixes_later = 1, NOW_NS + 1
    assert bed.found() == []
    assert len(bed.found(now_ns=NOW_NS + 1)) == 1


def test_without_a_filter_left_one_is_asked_for() -> None:
    bed = Bed(*TWO, room=2)
    assert bed.found() == []
    spending = bed.memory.nics["nic"].spending
    [asked] = spending.covers
    spending.promised = {NET._replace(remote_prefix=12)}
    assert bed.found() == []
    assert spending.promised == set()  # nobody wants that one any more
    spending.promised = {asked}
    assert bed.found(budget=3) == [asked]  # a slot was cleared for it


@pytest.mark.parametrize(
    "other",
    [
        ruled(2, nic="other"),
        ruled(2, thread=OTHER),  # its thread owns another queue
        ruled(2, target_queue=3),  # it is not where it belongs yet
        ruled(2, state=FlowState.MANUAL),
        ruled(2, rule_name="another"),
        ruled(2, key=key(2)._replace(local=bytes(4))),
        ruled(2, key=key(2)._replace(protocol=17, remote_port=0)),
    ],
    ids=["nic", "owner", "queue", "manual", "policy", "any address", "any remote"],
)
def test_one_flow_alone_is_not_many(other: Flow) -> None:
    assert Bed(ruled(1), other, room=3).found() == []


def test_a_socket_that_hears_everyone_is_of_no_prefix() -> None:
    first, second = (ruled(n, key=key(n)._replace(protocol=17)) for n in (2, 3))
    waits = WAITS._replace(key=WAITS.key._replace(protocol=17))
    assert Bed(waits, first, second, room=4).found() != []
    anyone = second._replace(key=second.key._replace(remote_port=0))
    assert Bed(first, anyone, room=3).found() == []


@pytest.mark.parametrize("under_way", ["REWRITE", "INSERT", "swaps"])
def test_none_for_flows_that_are_being_written(under_way: str) -> None:
    bed = Bed(*TWO, room=4)
    action = Action(ActionKind.REWRITE, "nic", key(2), 2, 1, 1, "", "rest")
    if under_way == "swaps":
        bed.memory.table.gives(key(2), (None,))
    else:
        bed.memory.table.ask(replace(action, kind=ActionKind[under_way]))
    assert bed.found() == []


def test_none_of_a_rule_that_is_another_ones_or_none() -> None:
    bed = Bed(*TWO, room=3)
    bed.rule = replace(ORDERED, name="another")
    assert bed.found() == []
    bed.rule = None
    assert bed.found() == []


def test_none_in_a_full_table() -> None:
    bed = Bed(*TWO, room=3)
    bed.memory.table.capacity = len(bed.memory.table)
    assert bed.found() == []


def test_none_that_the_nic_was_not_shown_to_take() -> None:
    shapes = frozenset(each for each in SHAPES if each.protocol == 17)
    assert Bed(*TWO, room=3).found(caps=replace(CAPS, shapes=shapes)) == []


@pytest.mark.parametrize(("queue", "may"), [(1, True), (2, False)])
def test_none_that_crosses_somebody_elses_filter_to_another_queue(queue: int, may: bool) -> None:
    theirs = (Filter(0, Match(4, 6, bytes([10, 1, 0, 0]), 16, None, 0, None, None), queue),)
    assert bool(Bed(*TWO, room=3).found(theirs=theirs)) is may


@pytest.mark.parametrize(
    ("location", "queue", "may"), [(7, 1, True), (None, 1, False), (7, 2, False)]
)
def test_none_that_crosses_a_rule_for_many_that_leads_elsewhere(
    location: int | None, queue: int, may: bool
) -> None:
    """It is for neighbours of these flows; without a location it is being written."""
    near = NET._replace(remote=bytes([10, 1, 0, 240]), remote_prefix=28)
    bed = Bed(prefix_rule(near, queue, location=location), *TWO, room=4)
    bed.used(near)
    action = Action(ActionKind.INSERT, "nic", near, None, None, queue, "", "rest")
    if location is None:
        bed.memory.table.ask(action)
    [found] = bed.found(budget=5)
    assert overlap(found, near) is may


@pytest.mark.parametrize(
    ("napi_id", "policy", "may"),
    [(101, "rest", True), (102, "rest", False), (101, "another", False)],
)
def test_none_that_would_move_a_socket_without_a_rule(napi_id: int, policy: str, may: bool) -> None:
    unfiltered = flow(3, state=FlowState.RSS, rule_name=policy)
    bed = Bed(*TWO, unfiltered, room=3)
    bed.uses = [SocketUse(unfiltered.cookie, unfiltered.key, 1, napi_id, 1, 0)]
    assert bool(bed.found()) is may


def test_a_prefix_is_not_shorter_than_eight_bits() -> None:
    shapes = frozenset(each for each in SHAPES if each.part)
    far = [ruled(n, key=key(n)._replace(remote=bytes([8 + n, 0, 0, 1]))) for n in (2, 3)]
    assert Bed(*far, room=3).found(caps=replace(CAPS, shapes=shapes)) == []
    near = [ruled(n, key=key(n)._replace(remote=bytes([10, n, 0, 1]))) for n in (2, 3)]
    [found] = Bed(*near, room=3).found(caps=replace(CAPS, shapes=shapes))
    assert (found.remote, found.remote_prefix) == (bytes([10, 0, 0, 0]), 8)


def test_a_few_at_a_time_and_none_that_crosses_another() -> None:
    def at(net: int, number: int) -> Flow:
        local, remote = bytes([10, 0, 0, 1 + net]), bytes([10, 1 + net, 0, number])
        port = 8 * net + number
        where = FlowKey(6, local, 5000 + port, remote, 2000 + port)
        return ruled(port, key=where)

    flows = [at(net, number) for net in range(6) for number in range(2)]
    found = Bed(*flows, room=19).found()  # room for one of each network
    assert len(found) == 4
    assert len({each.local for each in found}) == 4


# A prefix rule that there is.


@pytest.mark.parametrize(("queue", "goes"), [(1, True), (2, False)])
def test_one_that_a_wider_one_makes_needless_goes(queue: int, goes: bool) -> None:
    wider = NET._replace(remote=bytes([10, 1, 0, 0]), remote_prefix=16)
    bed = Bed(prefix_rule(), prefix_rule(wider, queue), room=64)
    bed.used(NET)
    births = bed.look()
    assert deleted(births) == ([NET] if goes else [])
    assert all((each.origins, each.rss) == (frozenset({1}),) * 2 for each in births)


def test_one_that_nobody_comes_by_goes_after_ten_seconds_and_is_asked_for_again() -> None:
    bed = Bed(prefix_rule(), room=64)

    def at(seconds: int) -> bool:
        return deleted(bed.look(now_ns=NOW_NS + seconds * SECOND_NS)) == [NET]

    assert [at(each) for each in (0, 9, 10, 11, 19, 20)] == [False, False, True, False, False, True]


def test_ten_seconds_are_counted_from_its_last_use() -> None:
    bed = Bed(prefix_rule(), room=64)
    assert bed.look() == ()
    bed.used(NET)
    assert bed.look(now_ns=NOW_NS + 5 * SECOND_NS) == ()
    bed.uses = []
    assert bed.look(now_ns=NOW_NS + 11 * SECOND_NS) == ()
    assert bed.look(now_ns=NOW_NS + 20 * SECOND_NS) == ()
    assert deleted(bed.look(now_ns=NOW_NS + 21 * SECOND_NS)) == [NET]


def test_who_has_a_rule_of_its_own_does_not_come_by_it() -> None:
    bed = Bed(prefix_rule(), ruled(1, queue=2, thread=OTHER), room=64)
    bed.uses = [SocketUse(1001, key(1), 1, 101, 1, 0)]
    assert bed.look() == ()
    assert deleted(bed.look(now_ns=NOW_NS + 10 * SECOND_NS)) == [NET]


def test_one_that_somebody_else_changed_is_left() -> None:
    bed = Bed(prefix_rule(state=FlowState.MANUAL), room=64)
    assert bed.look() == ()
    assert bed.look(now_ns=NOW_NS + 10 * SECOND_NS) == ()


def test_one_without_a_rule_is_forgotten_unless_it_is_being_written() -> None:
    bed = Bed(prefix_rule(location=None, target_queue=None, state=FlowState.WANTED), room=64)
    action = Action(ActionKind.INSERT, "nic", NET, None, None, 1, "", "rest")
    bed.memory.table.ask(action)
    bed.look()
    assert bed.memory.table.get(NET) is not None
    bed.memory.table.answered(NET)
    bed.look()
    assert bed.memory.table.get(NET) is None


def test_rules_of_flows_that_come_by_it_anyway_go() -> None:
    foreign = ruled(4, nic="other")
    bed = Bed(prefix_rule(), *TWO, foreign, room=3)
    bed.used(NET)
    assert set(deleted(bed.look())) == {key(1), key(2)}


@pytest.mark.parametrize("changes", [{"rule_name": "another"}, {"rule_name": ""}])
def test_an_earlier_runs_is_its_rules_and_another_rules_serves_none(
    changes: dict[str, Any],
) -> None:
    bed = Bed(prefix_rule(**changes), *TWO, room=3)
    bed.used(NET)
    gone = deleted(bed.look())
    entry = bed.memory.table.get(NET)
    assert entry is not None
    if changes["rule_name"]:
        assert (gone, entry.rule_name) == ([], "another")
    else:
        assert (set(gone), entry.rule_name) == ({key(1), key(2)}, "rest")


def test_rules_of_the_policys_other_rule_stay() -> None:
    bed = Bed(
        prefix_rule(rule_name="another"),
        *[each._replace(rule_name="another") for each in TWO],
        room=3,
    )
    bed.used(NET)
    assert deleted(bed.look()) == []  # `rest` is the rule for every flow that comes by it now
