# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves that were put off: when they are tried again, and what they keep from others meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.filters import budget
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable, Weight
from atfnd.engine.table.memory import Memory
from atfnd.model import Flow, FlowState, Move
from atfnd.model.reason import Code, Why
from atfnd.move.timer import in_ms
from tests.values import NIC, RULE, flow, key, memory_of, one_rule, seen

__all__: list[str] = []

NOW_NS, MS = 10**11, 1_000_000
HELD = Code.NOT_HELD(0, "queue 1 is polled on CPU 1, which is held")


def memory(*flows: Flow) -> Memory:
    known = memory_of(FlowTable(100), one_rule(10 * MS, 1 << 60))
    for each in flows:
        known.table.put(each)
    return known


def wanted(number: int) -> Flow:
    return flow(number, state=FlowState.WANTED, app_cpu=1)._replace(rule_name="rest")


def waiting(number: int) -> Flow:
    return wanted(number)._replace(state=FlowState.OVERFLOW)


def put_off(
    known: Memory, number: int, why: Why = HELD, *, barred: bool = False, now_ns: int = NOW_NS
) -> int:
    """Milliseconds until it is looked at again."""
    move = Move("none" if barred else "hold", "deferred", why, 0, 0)
    audit.moved(key(number), move, known, now_ns, deferred=True, barred=barred)
    return (known.table.deferred()[key(number)] - now_ns) // MS


@pytest.mark.parametrize(("barred", "most_ms"), [(False, 4000), (True, 30_000)])
def test_a_move_is_tried_more_seldom_as_long_as_the_same_stands_in_its_way(
    barred: bool, most_ms: int
) -> None:
    known = memory(wanted(1))
    pauses = [put_off(known, 1, barred=barred) for _ in range(12)]
    doubled = [min(100 << times, most_ms) for times in range(12)]
    assert pauses == doubled


def test_other_numbers_are_the_same_reason_and_other_words_are_not() -> None:
    known = memory(wanted(1))
    whys = [Code.NEVER_IDLE(in_ms(ns), in_ms(10**9)) for ns in (284_700, 300_000, 12_000_000)]
    assert [put_off(known, 1, why) for why in whys] == [100, 200, 400]
    assert put_off(known, 1) == 100
    whys = [Code.DATA_IN_FLIGHT(), Code.ASYNCHRONOUS()]
    assert [put_off(known, 1, why, barred=True) for why in whys] == [200, 400]


def test_a_flow_whose_thread_has_moved_is_tried_at_once_and_then_no_more_often() -> None:
    known = memory(wanted(1))
    assert [put_off(known, 1) for _ in range(3)] == [100, 200, 400]
    for app_cpu, pause_ms in ((1, 800), (2, 1600)):
        event = seen(1, app_cpu=app_cpu, rx_cpu=3)
        assert [each.key for each in steer.seen(event, NIC, RULE, known, NOW_NS)] == [key(1)]
        assert put_off(known, 1) == pause_ms


def test_when_a_queue_has_another_cpu_what_was_put_off_is_looked_at() -> None:
    known = memory(wanted(1), wanted(2), wanted(3)._replace(nic="other"))
    for number in (1, 3):
        put_off(known, number)
    follow.followed("nic", 1, 3, known)
    assert known.table.take_due(NOW_NS) == [key(1)]
    assert put_off(known, 1) == 200  # the same stands in its way
    assert known.table.noted(key(3)).deferrals == 1


def test_a_filter_is_taken_ever_later_for_one_that_cannot_be_moved() -> None:
    one = replace(NIC, budget=1)
    steered = wanted(1)._replace(state=FlowState.STEERED, location=7, target_queue=1)
    known = memory(steered, waiting(2))
    for number, rate in ((1, 0.0), (2, 1e6)):
        record = known.table.record(key(number))
        assert record is not None
        record.own().weight = Weight(0, 0, rate, 1.0)
    now_ns = NOW_NS
    for rests_s in (1, 2, 4, 8, 16, 32, 64, 64):
        [taken] = budget.swaps(one, known, now_ns)
        assert taken.key == key(1)
        known.table.gives(key(1), None)
        put_off(known, 2, now_ns=now_ns)
        known.table.take_due(1 << 60)
        now_ns += rests_s * 1000 * MS
        assert budget.swaps(one, known, now_ns - 1) == ()
