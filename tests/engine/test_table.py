# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table: bounded, aged faster as it fills, consistent under any use."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atfnd.engine.table.flow_table import FlowTable, t_delete_in_force_ns
from atfnd.model import FlowState
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


class TableMachine(RuleBasedStateMachine):
    """Against a plain dictionary: same flows, same sockets, same load per queue."""

    def __init__(self) -> None:
        super().__init__()
        self.table = FlowTable(8)
        self.plain: dict[int, tuple[int, int | None]] = {}

    @rule(
        number=st.integers(0, 11),
        cookie=st.integers(1, 6),
        queue=st.none() | st.integers(0, 2),
        state=st.sampled_from([FlowState.STEERED, FlowState.WANTED]),
    )
    def put(self, number: int, cookie: int, queue: int | None, state: FlowState) -> None:
        if number not in self.plain and self.table.full():
            assert len(self.plain) == 8
            return
        location = None if queue is None else number
        self.table.put(
            flow(number, cookie=cookie, target_queue=queue, location=location, state=state)
        )
        self.plain[number] = cookie, queue

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.plain)))
        self.table.remove(key(number))
        del self.plain[number]

    @invariant()
    def agrees(self) -> None:
        assert {f.key for f in self.table} == {key(number) for number in self.plain}
        assert len(self.table) == len(self.plain) <= self.table.capacity
        for cookie in range(1, 7):
            expected = {key(n) for n, (owner, _) in self.plain.items() if owner == cookie}
            assert set(self.table.keys_of(cookie)) == expected
        for queue in range(3):
            expected_load = sum(q == queue for _, q in self.plain.values())
            assert self.table.filters_on("nic", queue) == expected_load
        assert self.table.filters_in("nic") == sum(q is not None for _, q in self.plain.values())
        stand = Counter((f.nic, f.state, f.rule_name) for f in self.table)
        assert dict(self.table.standing()) == stand
        assert sum(self.table.by_state().values()) == len(self.table)


TestTableMachine = TableMachine.TestCase


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
