# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves that were put off: when they are tried again, and what they keep from others meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.engine import Engine
from atfnd.engine.event import MovesReported, NicAttached
from atfnd.engine.filters import budget
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable, Weight
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, Flow, FlowState, Mode, Move
from atfnd.model.reason import Code, Why
from atfnd.move.command import Ended
from atfnd.move.event import PortChanged, TimerDue
from atfnd.move.timer import in_ms
from atfnd.move.verdict import Verdict
from tests.move.check import PORT
from tests.move.stepped import TIMES, SteppedNic, to
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


def test_what_was_decided_too_early_is_decided_again_soon() -> None:
    """Nine times no move could be tried; then one waits while its flow's queue changes."""
    known, nic, wish = memory(wanted(1)), SteppedNic(), to(1, Mode.STRICT)
    engine = Engine(known)
    engine.handle(NicAttached(NIC, armed=True), NOW_NS)

    def put_off_ms() -> int:
        ends = [each for each in nic.commands if isinstance(each, Ended)]
        engine.handle(MovesReported(ends), NOW_NS)
        return (known.table.deferred()[key(1)] - NOW_NS) // MS

    nic(PortChanged(PORT._replace(asynchronous=True)))
    pauses = []
    for _ in range(9):
        nic(wish)
        pauses.append(put_off_ms())
    assert pauses == [100 << times for times in range(9)]
    nic(PortChanged(PORT))
    now = to(1, Mode.IMMEDIATE)
    nic(now)
    nic(wish)
    nic.written(now)
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [Verdict.QUIET, Verdict.DEFERRED]
    assert put_off_ms() == 100


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


def test_a_flow_that_was_put_off_has_a_filter_after_those_that_were_not() -> None:
    """A NIC with one free filter; flow 1 cannot be moved."""
    one = replace(NIC, budget=1)
    known = memory(waiting(1), waiting(2))
    assert put_off(known, 1) == 100
    known.table.take_due(NOW_NS + 100 * MS)
    assert [each.key for each in steer.retry({"nic": one}, known, NOW_NS)] == [key(2)]


def test_a_flow_that_waits_for_a_filter_is_not_tried_before_others_when_it_is_due() -> None:
    known = memory(waiting(1), wanted(2))
    for number in (1, 2):
        put_off(known, number)
    plan = steer.due({"nic": NIC}, known, NOW_NS + 100 * MS)
    assert [each.key for each in plan] == [key(2)]
    known.table.promise(key(1), True)
    put_off(known, 1)
    plan = steer.due({"nic": NIC}, known, NOW_NS + 300 * MS)
    assert [each.key for each in plan] == [key(1)]


def test_a_flow_that_is_put_off_is_not_tried_by_the_way() -> None:
    known = memory(waiting(1))
    put_off(known, 1)
    assert steer.retry({"nic": NIC}, known, NOW_NS) == ()


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


def test_with_its_delete_ends_what_waited_for_an_entry_and_not_what_came_after() -> None:
    known = memory(wanted(1))
    before = Action(ActionKind.REWRITE, "nic", key(1), 7, 1, 2, Code.UNSAID(), "rest", generation=4)
    delete = replace(before, kind=ActionKind.DELETE, new=None)
    after = replace(before, generation=5)
    for asked, left in ((before, {}), (after, {key(1): after})):
        budget.ask(asked, known)
        budget.ended(delete, known)
        assert known.table.rewriting("nic") == left


@pytest.mark.parametrize("kind", [ActionKind.INSERT, ActionKind.REWRITE])
def test_a_filter_is_kept_for_the_last_action_of_a_flow_only(kind: ActionKind) -> None:
    """An insert was decided again while the first was written: then the filter there is moved, and
    of the second insert no end is reported."""
    known = memory(wanted(1))
    first = Action(kind, "nic", key(1), 7, None, 1, Code.UNSAID(), "rest")
    inserts = kind is ActionKind.INSERT
    last = replace(first, kind=ActionKind.REWRITE if inserts else ActionKind.INSERT)
    budget.ask(first, known)
    budget.ask(last, known)
    table = known.table
    assert table.inserting("nic").keys() ^ table.rewriting("nic").keys() == {key(1)}
    budget.ended(last, known)
    assert (table.inserting("nic"), table.rewriting("nic")) == ({}, {})
