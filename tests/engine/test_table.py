# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table: bounded, aged faster as it fills, consistent under any use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.table.flow_table import FlowTable, t_delete_in_force_ns
from tests.values import flow, key


@given(st.integers(1, 10**12), st.integers(0, 5000), st.integers(1, 4096))
def test_t_delete_never_grows_as_the_table_fills(t_delete: int, entries: int, room: int) -> None:
    now = t_delete_in_force_ns(t_delete, entries, room)
    assert t_delete_in_force_ns(t_delete, entries + 1, room) <= now <= t_delete
    assert now > 0


def test_t_delete_is_whole_to_half_full_and_a_sixteenth_when_full() -> None:
    assert t_delete_in_force_ns(16_000, 0, 100) == 16_000
    assert t_delete_in_force_ns(16_000, 50, 100) == 16_000
    assert t_delete_in_force_ns(16_000, 75, 100) == 8_500
    assert t_delete_in_force_ns(16_000, 100, 100) == 1_000


def test_a_page_of_slots_keeps_its_place_while_flows_come_and_go() -> None:
    table = FlowTable(100)
    for number in range(10):
        table.put(flow(number))
    first = [f.key for f in table.slots()[:5] if f]
    table.remove(key(0))
    table.remove(key(7))
    table.put(flow(50))
    rest = [f.key for f in table.slots()[5:] if f]
    assert not set(first) & set(rest)
    assert {key(n) for n in (1, 2, 3, 4, 5, 6, 8, 9)} <= set(first) | set(rest)
