# SPDX-License-Identifier: GPL-2.0-or-later
"""A filter that the NIC lists and does not obey is written anew, and at last left alone; a filter
that may well have an effect is not touched."""

from __future__ import annotations

from dataclasses import replace

from atfnd.engine.filters.ineffective import ineffective
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import ActionKind, Flow, FlowState, NicView, Plan
from tests.values import NIC, flow, key, memory_of

__all__: list[str] = []

SECOND_NS = 10**9


class Bed:
    """One flow whose filter leads to queue 1, and that arrives on queue 2."""

    def __init__(self, moved_ns: int = 1) -> None:
        self.memory: Memory = memory_of(FlowTable(100), RulesInForce(100, 10**12))
        self.nic: NicView = NIC
        self.now_ns = 10 * SECOND_NS
        steered = flow(1, state=FlowState.STEERED, location=7, target_queue=1, target_cpu=1)
        self.memory.table.put(steered._replace(rx_queue=2, rx_cpu=2, moved_ns=moved_ns))

    def look(self, more: int = 1000) -> Plan:
        """An audit later; it has received so many bytes more."""
        self.now_ns += SECOND_NS
        found = self.flow
        self.memory.table.put(found._replace(bytes=found.bytes + more))
        return ineffective({"nic": self.nic}, self.memory, self.now_ns)

    @property
    def flow(self) -> Flow:
        found = self.memory.table.get(key(1))
        assert found is not None
        return found


def test_it_is_written_anew_to_its_queue_after_two_looks() -> None:
    bed = Bed()
    bed.look()
    assert bed.look() == ()
    (action,) = bed.look()
    assert (action.kind, action.location) == (ActionKind.REWRITE, 7)
    assert (action.old, action.new) == (1, 1)


def test_after_three_attempts_it_is_left_alone_and_the_reason_is_shown() -> None:
    bed = Bed()
    written = [len(bed.look()) for _ in range(9)]
    assert sum(written) == 3
    assert bed.flow.state is FlowState.MANUAL
    assert bed.flow.why == "its filter is in the NIC, but the NIC delivers on queue 2"
    assert bed.flow.location == 7  # it is deleted with the flow
    assert bed.memory.table.notes() == {}


def test_a_filter_that_has_just_moved_is_not_judged_yet() -> None:
    """What was observed may be from before the move."""
    bed = Bed(moved_ns=14 * SECOND_NS)
    assert [bed.look() for _ in range(5)] == [()] * 5
    assert bed.look() == ()
    assert len(bed.look()) == 1


def test_a_flow_without_traffic_says_nothing() -> None:
    bed = Bed()
    bed.look()
    assert [bed.look(more=0) for _ in range(6)] == [()] * 6
    bed.look()
    assert len(bed.look()) == 1


def test_one_that_arrived_where_it_should_meanwhile_begins_anew() -> None:
    bed = Bed()
    bed.look()
    bed.look()
    astray = bed.flow
    bed.memory.table.put(astray._replace(rx_queue=1))
    bed.look()
    bed.memory.table.put(bed.flow._replace(rx_queue=2))
    assert [bed.look() for _ in range(2)] == [(), ()]
    assert len(bed.look()) == 1


def test_on_a_nic_that_is_not_armed_nothing_is_written() -> None:
    bed = Bed()
    bed.nic = replace(NIC, armed=False)
    assert [bed.look() for _ in range(6)] == [()] * 6
    assert bed.flow.state is FlowState.STEERED
