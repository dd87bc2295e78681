# SPDX-License-Identifier: GPL-2.0-or-later
"""A connect is placed on its thread's queue when RSS will not, and when there is time for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.handshake import birth
from atfnd.engine.handshake.connects import Connects
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Connected,
    Connecting,
    FlowKey,
    FlowRule,
    Mode,
    NicView,
    Placement,
    SocketGone,
    Thread,
)
from atfnd.move.event import Wanted
from tests.engine.held import held
from tests.values import NIC, RULE, THREAD, key, memory_of

STRICT = replace(RULE, order=Mode.STRICT)
FAR_NS = 1_000_000


def syn(number: int = 1, cpu: int = 2) -> Connecting:
    return Connecting(50, 1000 + number, key(number), 1, THREAD, cpu)


def answer(number: int = 1, handshake_ns: int = FAR_NS) -> Connected:
    return Connected(60, 1000 + number, key(number), handshake_ns)


def known(*numbers: int) -> Distances:
    distances = Distances()
    for number in numbers:
        distances.learn(key(number).remote, FAR_NS)
    return distances


def memory(capacity: int = 100) -> Memory:
    """Of a policy that is strict, so that threads own queues."""
    return memory_of(FlowTable(capacity), RulesInForce(100, 10**12))


def owning(threads: dict[int, Thread]) -> dict[int, Owned]:
    """Whose the queues are."""
    return {queue: Owned(("thread", each.tid), 0) for queue, each in threads.items()}


def placed(
    known_to: Memory, event: Connecting | None = None, *, nic: NicView = NIC,
    rule: FlowRule | None = STRICT, rss_queue: int | None = 0, distances: Distances | None = None,
) -> Wanted | None:  # fmt: skip
    distances = known(1) if distances is None else distances
    return birth.connecting(event or syn(), nic, rule, rss_queue, distances, known_to, 70)


def test_the_queue_a_thread_owns_goes_before_that_of_its_cpu() -> None:
    memory_ = memory()
    memory_.nics["nic"].owned = owning({3: THREAD})
    born = placed(memory_)
    assert born is not None
    assert born.action.new == 3
    assert born[1:5] == (Mode.STRICT, frozenset({0}), frozenset({0}), True)
    assert born.first_data_ns == 50 + FAR_NS
    memory_ = memory()
    memory_.nics["nic"].owned = owning({0: THREAD})
    assert placed(memory_) is None  # RSS delivers there by itself


NOT_WANTED: dict[str, dict[str, Any]] = {
    "no rule": {"rule": None},
    "left": {"rule": replace(STRICT, placement=Placement.LEAVE)},
    "no budget": {"nic": replace(NIC, budget=0)},
    "no filters": {"nic": replace(NIC, caps=replace(NIC.caps, filters=False))},
    "RSS has it right": {"rss_queue": 2},
    "no queue is delivered there": {"event": syn(cpu=9)},
}


@pytest.mark.parametrize("change", NOT_WANTED)
def test_what_is_not_wanted_or_possible_leaves_no_trace(change: str) -> None:
    memory_ = memory()
    assert placed(memory_, **NOT_WANTED[change]) is None
    assert len(memory_.table) == 0


def test_of_a_connect_that_was_left_to_rss_nothing_is_kept_once_it_is_answered() -> None:
    """A busy client makes thousands of them a second."""
    connects, memory_ = Connects(), memory()
    connects.heard([syn(1)], memory_)
    connects.heard([answer(1)], memory_)
    assert held(connects, FlowKey) == []


def test_a_socket_that_closed_after_its_answer_is_neither_alive_nor_adopted() -> None:
    """Its filter would stay for good: an audit would take it for one in use."""
    connects, memory_ = Connects(), memory()
    [event] = connects.heard([syn(1)], memory_)
    placed(memory_, event)
    connects.heard([answer(1)], memory_)
    connects.heard([SocketGone(70, 1001)], memory_)
    assert memory_.table.get(key(1)) is not None
    assert connects.uses(memory_, 80) == []
    assert not connects.waiting(memory_)
    assert connects.adopt(memory_) == {}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99))))
def test_distances_are_the_least_and_bounded(reported: list[tuple[int, int]]) -> None:
    distances = Distances(5)
    for number, took_ns in reported:
        distances.learn(bytes([number]), took_ns)
        assert len(distances) <= 5
    for number in [*dict.fromkeys(number for number, _ in reversed(reported))][:5]:
        least_ns = distances.least_ns(bytes([number]))
        assert least_ns is not None
        assert least_ns >= min(took_ns for each, took_ns in reported if each == number)
