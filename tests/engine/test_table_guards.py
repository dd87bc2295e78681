# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table of two NICs: what is counted, and of which."""

from __future__ import annotations

from typing import Any

from atfnd.engine.table.flow_table import FlowTable, t_delete_in_force_ns
from atfnd.model import Action, ActionKind, FlowState
from tests.values import THREAD, flow, key

__all__: list[str] = []

PORT = key(0)._replace(remote=bytes(4), remote_port=0)
RULED: dict[str, Any] = {"state": FlowState.STEERED, "location": 1, "target_queue": 2}


def test_t_delete_is_shorter_as_soon_as_the_table_is_more_than_half_full() -> None:
    assert t_delete_in_force_ns(1600, 50, 100) == 1600
    assert t_delete_in_force_ns(1600, 75, 100) == 850


def test_what_was_promised_to_a_flow_and_asked_of_it_ends_with_it() -> None:
    table = FlowTable(9)
    for number in (1, 2):
        table.put(flow(number, **RULED))
        table.promise(key(number), True)
        table.gives(key(number), (None,))
    table.remove(key(1))
    assert {*table.promised("nic")} == {key(2)}
    assert dict(table.swaps("nic")) == {key(2): None}


def test_a_promise_is_kept_by_the_insert_that_is_asked_for() -> None:
    table = FlowTable(9)
    table.put(flow(1))
    table.promise(key(1), True)
    table.ask(Action(ActionKind.REWRITE, "nic", key(1), 1, 1, 2, "", ""))
    assert {*table.promised("nic")} == {key(1)}
    table.ask(Action(ActionKind.INSERT, "nic", key(1), None, None, 2, "", ""))
    assert not table.promised("nic")


def test_a_table_is_full_with_its_last_entry() -> None:
    table = FlowTable(2)
    table.put(flow(1))
    assert not table.full()
    table.put(flow(2))
    assert table.full()


def test_the_rules_of_one_nic_are_counted_without_those_of_another() -> None:
    table = FlowTable(9)
    for number, nic in ((1, "nic"), (2, "nic"), (3, "other")):
        table.put(flow(number, nic=nic, **RULED))
    table.put(flow(4))
    assert (table.filters_in("nic"), table.filters_in("other"), table.filters_in("none")) == (
        2,
        1,
        0,
    )
    assert {each.key for each in table.steered("nic")} == {key(1), key(2)}
    assert {each.key for each in table.steered("other")} == {key(3)}


def test_the_ports_of_one_nic_are_not_those_of_another() -> None:
    table = FlowTable(9)
    table.put(ours := flow(0, key=PORT, cookie=0))
    table.put(theirs := flow(0, key=PORT._replace(local_port=81), cookie=0, nic="other"))
    assert (table.ports("nic"), table.ports("other")) == ([ours], [theirs])


def test_a_rule_that_goes_is_not_counted_any_more() -> None:
    table = FlowTable(9)
    table.put(flow(1, **RULED))
    assert table.filters_on("nic", 2) == 1
    table.put(flow(1))
    assert table.filters_on("nic", 2) == 0
    table.put(flow(1, **RULED))
    table.remove(key(1))
    assert (table.filters_on("nic", 2), table.filters_in("nic")) == (0, 0)


def test_a_flow_is_covered_by_its_port_only_once_that_has_its_filter() -> None:
    table = FlowTable(9)
    table.put(flow(0, key=PORT, cookie=0))
    assert table.covering(key(7)) is None
    table.put(filtered := flow(0, key=PORT, cookie=0, **RULED))
    assert table.covering(key(7)) == filtered
    table.remove(PORT)
    assert table.covering(key(7)) is None


def test_the_flows_of_a_thread_are_told_in_the_order_in_which_they_came() -> None:
    """In every run: what is decided of one of them depends on those before it."""
    table, numbers = FlowTable(99), [7, 3, 60, 1, *range(10, 40)]
    for number in numbers:
        table.put(flow(number, **RULED))
    assert [each.key for each in table.of_thread(THREAD.tid)] == [*map(key, numbers)]
    assert [*table.filters_of("nic")["user", None]] == [*map(key, numbers)]


def test_a_slot_that_is_free_is_taken_again() -> None:
    """Else a table through which flows come and go would grow for ever."""
    table = FlowTable(9)
    table.put(flow(1))
    for number in range(2, 9):
        table.put(flow(number))
        table.remove(key(number))
    assert len(table.slots()) == 2


def test_a_table_that_was_empty_begins_anew() -> None:
    table = FlowTable(9)
    for number in range(1, 50):
        table.put(flow(number))
        table.put(flow(number + 100))
        table.remove(key(number))
        table.remove(key(number + 100))
    assert len(table.slots()) == 0
