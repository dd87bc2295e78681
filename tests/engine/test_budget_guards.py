# SPDX-License-Identifier: GPL-2.0-or-later
"""What is counted of a NIC's filters, and when one is taken, each rule of `engine.filters.budget`
by itself."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.filters import budget
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.table.flow_table import FlowTable, Weight
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    Flow,
    FlowKey,
    FlowState,
    Listening,
    Node,
    Outcome,
    SteeringMethod,
    Thread,
    Topology,
)
from atfnd.model.reason import Code
from tests.values import NIC, flow, key, memory_of

__all__: list[str] = []

SECOND_NS = 10**9
NOW_NS = 100 * SECOND_NS
MACHINE = Topology(tuple(Cpu(n, True, 0, 0, n, (n,), (n,)) for n in range(4)), (Node(0, (), {}),))


def steered(number: int, **changes: Any) -> Flow:
    known = flow(number, state=FlowState.STEERED, location=number, target_queue=1, app_cpu=1)
    return known._replace(**changes)


def waiting(number: int, **changes: Any) -> Flow:
    return flow(number, state=FlowState.OVERFLOW, app_cpu=1)._replace(**changes)


def memory(*flows: Flow) -> Memory:
    known = memory_of(FlowTable(100), RulesInForce(0, 1 << 60))
    for each in flows:
        known.table.put(each)
    return known


def action(kind: ActionKind, number: int, **changes: Any) -> Action:
    return replace(Action(kind, "nic", key(number), number, None, 1, "", "rest"), **changes)


def settled(known: Memory, done: Action, code: int = 0, at_ns: int = NOW_NS) -> bool:
    return budget.record(Outcome(done, at_ns, code, done.location, ""), known)


def test_what_is_about_to_be_inserted_and_what_is_promised_counts_but_not_against_itself() -> None:
    nic = replace(NIC, budget=2)
    for promised in (False, True):
        known = memory(steered(1), waiting(2))
        if promised:
            known.table.promise(key(2), True)
        else:
            budget.ask(action(ActionKind.INSERT, 2), known)
        assert budget.no_room(nic, known, key(2)) is None
        assert budget.no_room(nic, known, key(3)) == (
            "our 2 filters of this NIC are in use: delivered by RSS"
        )


def test_nobody_takes_a_promised_slot_of_a_nic_that_does_not_say_how_many_it_has() -> None:
    nic = replace(NIC, caps=replace(NIC.caps, filter_slots=None), budget=None)
    known = memory(steered(1), waiting(2))
    assert budget.no_room(nic, known, key(3)) is None
    known.table.promise(key(2), True)
    assert budget.no_room(nic, known, key(2)) is None
    assert budget.no_room(nic, known, key(3)) == "the NIC's filter table is full: delivered by RSS"


@pytest.mark.parametrize(
    ("foreign", "most", "share"), [(None, 6, 6), (1, 6, 6), (5, 6, 3), (9, 6, 0), (5, None, 3)]
)
def test_the_lower_of_two_bounds_holds(foreign: int | None, most: int | None, share: int) -> None:
    caps = replace(NIC.caps, filter_slots=8)
    assert budget.share(replace(NIC, caps=caps, budget=most, foreign=foreign)) == share


@pytest.mark.parametrize("kind", [ActionKind.INSERT, ActionKind.REWRITE])
def test_what_was_wanted_since_is_still_under_way_when_an_earlier_action_ends(
    kind: ActionKind,
) -> None:
    known = memory(steered(1))
    earlier, later = action(kind, 1, why="earlier"), action(kind, 1, why="later")
    budget.ask(earlier, known)
    budget.ask(later, known)
    inserts = kind is ActionKind.INSERT
    asked = known.table.inserting if inserts else known.table.rewriting
    budget.ended(earlier, known)
    assert asked("nic") == {key(1): later}
    budget.ended(later, known)
    assert asked("nic") == {}


@pytest.mark.parametrize("kind", [ActionKind.INSERT, ActionKind.REWRITE])
def test_a_filter_is_kept_for_the_last_action_of_a_flow_only(kind: ActionKind) -> None:
    """An insert was decided again while the first was written: then the filter there is moved, and
    of the second insert no end is reported."""
    known = memory(steered(1))
    other = ActionKind.REWRITE if kind is ActionKind.INSERT else ActionKind.INSERT
    budget.ask(action(kind, 1), known)
    last = action(other, 1)
    budget.ask(last, known)
    table = known.table
    assert table.inserting("nic").keys() ^ table.rewriting("nic").keys() == {key(1)}
    budget.ended(last, known)
    assert (table.inserting("nic"), table.rewriting("nic")) == ({}, {})


def test_an_insert_that_finds_the_nic_full_is_remembered_until_the_next_look() -> None:
    known = memory(flow(1))
    settled(known, action(ActionKind.INSERT, 1))
    assert not known.nics["nic"].spending.refused
    settled(known, action(ActionKind.INSERT, 1), errno.ENOSPC)
    assert known.nics["nic"].spending.refused
    settled(known, action(ActionKind.INSERT, 1))
    assert known.nics["nic"].spending.refused
    budget.weigh(NIC, MACHINE, lambda key: None, known, NOW_NS)
    assert not known.nics["nic"].spending.refused


def swapped(newcomer: Flow, code: int, **changes: Any) -> tuple[bool, Memory]:
    """Flow 1's rule was to go for this one, and this became of it."""
    known = memory(steered(1), newcomer)
    known.table.gives(key(1), (newcomer.key,))
    return settled(known, action(ActionKind.DELETE, 1, **changes), code), known


@pytest.mark.parametrize("code", [0, errno.ENOENT])  # the latter: another program deleted it first
def test_a_slot_that_was_cleared_is_promised_to_the_one_it_was_cleared_for(code: int) -> None:
    made_room, known = swapped(waiting(2), code)
    assert made_room
    assert {*known.table.promised("nic")} == {key(2)}
    assert known.table.deferred() == {key(2): NOW_NS}
    assert known.table.swaps("nic") == {}


def test_a_slot_that_was_not_cleared_is_promised_to_nobody() -> None:
    made_room, known = swapped(waiting(2), errno.EIO)
    assert not made_room
    assert not known.table.promised("nic")
    assert known.table.deferred() == {}


def test_who_waits_no_more_is_promised_nothing() -> None:
    made_room, known = swapped(steered(2), 0)
    assert made_room
    assert not known.table.promised("nic")
    assert known.table.deferred() == {}


def test_a_flow_whose_socket_ended_meanwhile_does_not_go_on() -> None:
    made_room, known = swapped(waiting(2), 0, live=False)
    assert not made_room
    assert {*known.table.promised("nic")} == {key(2)}


def weighed(rates: Mapping[FlowKey, float], *flows: Flow) -> Memory:
    known = memory(*flows)
    for each, rate in rates.items():
        record = known.table.record(each)
        assert record is not None
        record.own().weight = Weight(0, 0, rate, 1.0)
    return known


def swaps(
    known: Memory, now_ns: int = NOW_NS, **changes: Any
) -> dict[FlowKey | None, FlowKey | None]:
    """Whose rule goes, for whom."""
    nic = replace(NIC, budget=known.table.filters_in("nic"), **changes)
    plan = budget.swaps(nic, known, now_ns)
    assert all(each.kind is ActionKind.DELETE for each in plan)
    for_whom = known.table.swaps("nic")
    return {each.key: for_whom[each.key] for each in plan if each.key is not None}


@pytest.mark.parametrize(
    ("loss", "gain", "is_taken"),
    [
        (100_000, 200_001, True),
        (100_000, 200_000, False),  # not clearly more
        (0, 10_000, True),
        (0, 9_999, False),  # not worth two moves
    ],
)
def test_a_filter_goes_to_who_is_worth_clearly_more_and_two_moves(
    loss: float, gain: float, is_taken: bool
) -> None:
    known = weighed({key(1): loss, key(2): gain}, steered(1), waiting(2))
    assert swaps(known) == ({key(1): key(2)} if is_taken else {})


@pytest.mark.parametrize("number", [1, 2])
def test_who_was_moved_of_late_neither_gives_nor_takes(number: int) -> None:
    rates = {key(1): 0.0, key(2): 1e6}
    for since_ns, is_taken in ((5 * SECOND_NS - 1, False), (5 * SECOND_NS, True)):
        flows = [steered(1), waiting(2)]
        flows[number - 1] = flows[number - 1]._replace(moved_ns=NOW_NS - since_ns)
        assert swaps(weighed(rates, *flows)) == ({key(1): key(2)} if is_taken else {})


@pytest.mark.parametrize("changes", [{"armed": False}, {"method": SteeringMethod.RSS}])
def test_no_filter_is_taken_in_a_nic_that_is_not_ours_to_write(changes: dict[str, Any]) -> None:
    known = weighed({key(1): 0.0, key(2): 1e6}, steered(1), waiting(2))
    assert swaps(known, **changes) == {}


def test_a_rule_that_is_being_written_is_not_taken() -> None:
    known = weighed({key(1): 0.0, key(2): 1e6, key(3): 1.0}, steered(1), waiting(2), steered(3))
    budget.ask(action(ActionKind.REWRITE, 1), known)
    assert swaps(known) == {key(3): key(2)}  # the next to the least worthy


def weigh(known: Memory, at_ns: int, queue: int = 3) -> dict[FlowKey, Weight]:
    """RSS delivers every flow on this queue."""
    budget.weigh(NIC, MACHINE, lambda key: queue, known, at_ns)
    return weights(known)


def weights(known: Memory) -> dict[FlowKey, Weight]:
    """By the last look."""
    records = {key: known.table.record(key) for key in [flow.key for flow in known.table]}
    look = known.nics["nic"].spending.look
    return {
        key: record.pending.weight._replace(look=0)
        for key, record in records.items()
        if record is not None
        and record.pending.weight is not None
        and record.pending.weight.look == look
    }


def carried(known: Memory, total: int) -> None:
    for each in list(known.table):
        known.table.put(each._replace(bytes=total))


def test_a_rate_is_measured_over_a_second_and_what_came_before_counts_half() -> None:
    known = memory(waiting(1))
    assert weigh(known, NOW_NS)[key(1)] == Weight(0, NOW_NS, None, 1.0)
    carried(known, 1000)
    soon = weigh(known, NOW_NS + SECOND_NS - 1)
    assert soon[key(1)] == Weight(0, NOW_NS, None, 1.0)  # too soon
    assert weigh(known, NOW_NS + SECOND_NS)[key(1)].bytes_per_s == 1000
    assert weigh(known, NOW_NS + 2 * SECOND_NS)[key(1)].bytes_per_s == 500
    assert weigh(known, NOW_NS + 3 * SECOND_NS)[key(1)].bytes_per_s == 250


def test_what_rss_delivers_on_its_own_core_needs_no_filter() -> None:
    known = memory(waiting(1))
    assert weigh(known, NOW_NS, queue=1)[key(1)].mismatch == 0.0
    assert weigh(memory(waiting(1)), NOW_NS, queue=2)[key(1)].mismatch == 1.0


@pytest.mark.parametrize(
    ("distances", "mismatch"), [({0: 32, 1: 10}, 3.2), ({}, 2.0), ({0: 5}, 1.0)]
)
def test_another_node_is_as_far_as_its_firmware_says_in_times_of_one_node(
    distances: dict[int, int], mismatch: float
) -> None:
    cpus = tuple(Cpu(n, True, n // 2, n // 2, n, (n,), (n,)) for n in range(4))
    topology = Topology(cpus, (Node(0, (0, 1), {}), Node(1, (2, 3), distances)))
    known = memory(waiting(1))
    budget.weigh(NIC, topology, lambda key: 3, known, NOW_NS)
    assert weights(known)[key(1)].mismatch == mismatch


def test_flows_of_another_nic_are_weighed_there() -> None:
    known = memory(steered(1), waiting(2, nic="other"))
    assert weigh(known, NOW_NS) == {}  # nobody waits here
    known.table.put(waiting(3))
    assert weigh(known, NOW_NS).keys() == {key(1), key(3)}


def test_what_cannot_be_had_is_tried_again_ever_later() -> None:
    known, port = memory(), key(0)._replace(remote=bytes(4), remote_port=0)
    waits_ns = []
    for _ in range(12):
        budget.put_off(port, "nic", known, NOW_NS)
        waits_ns.append(known.nics["nic"].spending.later[port][1] - NOW_NS)
    assert waits_ns[:3] == [SECOND_NS, 2 * SECOND_NS, 4 * SECOND_NS]
    assert waits_ns[-2:] == [64 * SECOND_NS] * 2


def test_a_filter_is_taken_for_a_port_however_often_it_could_not_be_written() -> None:
    known = weighed({key(1): 1.0, key(2): 1.0}, steered(1), waiting(2))
    port = key(0)._replace(remote=bytes(4), remote_port=0)
    for _ in range(5):
        budget.put_off(port, "nic", known, NOW_NS)
    known.nics["nic"].spending.covers.add(port)  # its wait is over
    assert swaps(known) == {key(1): port}


def test_when_a_port_may_be_tried_is_forgotten_with_its_last_listener() -> None:
    known, port = memory(), key(0)._replace(remote=bytes(4), remote_port=0)
    listens = Listening(NOW_NS, 1, port, 0, None, None)
    known.nics["nic"].listeners = Listeners({port: {1: listens}})
    budget.put_off(port, "nic", known, NOW_NS)
    weigh(known, NOW_NS)
    assert known.nics["nic"].spending.later.keys() == {port}
    assert not known.knows_flows()
    known.nics["nic"].listeners = Listeners()
    assert known.knows_flows()  # else no audit comes, and nothing is weighed
    weigh(known, NOW_NS)
    assert not known.nics["nic"].spending.later
    assert not known.knows_flows()


def put_off(known: Memory, each: Flow, times: int) -> None:
    for _ in range(times):
        known.put_off(each, Code.KERNEL("its queue cannot be quiesced"), NOW_NS, barred=True)
    known.table.defer(each.key, None)  # it was looked at


def test_a_filter_that_could_not_be_deleted_is_left_for_a_while_longer_each_time() -> None:
    for times, rests_s in ((1, 1), (3, 4), (20, 64)):
        known = weighed({key(1): 0.0, key(2): 1e6}, steered(1), waiting(2))
        put_off(known, steered(1), times)
        assert swaps(known, NOW_NS + rests_s * SECOND_NS - 1) == {}
        assert swaps(known, NOW_NS + rests_s * SECOND_NS) == {key(1): key(2)}


def test_nor_is_it_asked_for_by_a_user_who_has_fewer() -> None:
    users = [Thread(n, n, "app", None, uid) for n, uid in ((1, 1), (2, 1), (3, 2))]
    flows = [steered(1, thread=users[0]), steered(2, thread=users[1])]
    known = memory(*flows, asks := waiting(3, thread=users[2]))
    for each in flows:
        put_off(known, each, 3)
    nic = replace(NIC, armed=True)
    assert not budget.make_room(asks, nic, known, NOW_NS + 4 * SECOND_NS - 1)
    assert budget.make_room(asks, nic, known, NOW_NS + 4 * SECOND_NS)


def test_of_filters_that_are_worth_the_same_the_oldest_flow_gives_up_its_own() -> None:
    """Not the one whose key happens to be first in memory: the same events decide the same."""
    rich = [Thread(n, n, "app", None, 1) for n in range(40)]
    flows = [steered(n, thread=thread) for n, thread in enumerate(rich)]
    known = memory(*flows, asks := waiting(50, thread=Thread(99, 99, "app", None, 2)))
    known.table.put(flows[0]._replace(used_ns=NOW_NS))  # it was looked at, and is as old
    (delete,) = budget.make_room(asks, replace(NIC, armed=True), known, NOW_NS)
    assert delete.key == key(0)
