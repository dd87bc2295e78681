# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table: its indexes know what its records do. (That nothing outlives
a flow is checked at the end of each run of the simulation.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.table.flow_table import (
    FlowNotes,
    FlowRecord,
    FlowTable,
    Hashed,
    Writing,
    waits,
)
from atfnd.model import Action, ActionKind, Flow, FlowKey, FlowState
from atfnd.model.reason import Code
from tests.engine.held import held
from tests.values import THREAD, flow, key

PORT = key(0)._replace(remote=bytes(4), remote_port=0)
KEYS = [key(1), key(2), key(3), PORT]
NICS = "nic", "other"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=30), st.integers(0, 60))
def test_what_is_due_is_taken_in_time_once(deferrals: list[tuple[int, int]], now_ns: int) -> None:
    table, wanted = FlowTable(100), {}
    for number, at_ns in deferrals:
        table.put(flow(number))
        table.defer(key(number), at_ns)
        wanted[key(number)] = at_ns
    assert table.next_due_ns() == min(wanted.values(), default=None)
    due = table.take_due(now_ns)
    assert sorted(due) == sorted(k for k, at_ns in wanted.items() if at_ns <= now_ns)
    assert [wanted[k] for k in due] == sorted(wanted[k] for k in due)
    assert table.take_due(now_ns) == []
    assert table.deferred() == {k: at_ns for k, at_ns in wanted.items() if at_ns > now_ns}


def asked(kind: ActionKind, of: FlowKey) -> Action:
    return Action(kind, "nic", of, None, None, 1, Code.UNSAID(), "rest")


FLOWS = st.builds(
    flow,
    st.just(1),
    key=st.sampled_from(KEYS),
    cookie=st.integers(1, 3),
    nic=st.sampled_from(NICS),
    state=st.sampled_from([FlowState.STEERED, FlowState.OVERFLOW, FlowState.PORT]),
    location=st.sampled_from([None, 5]),
    target_queue=st.sampled_from([None, 1, 2]),
    target_cpu=st.sampled_from([None, 1]),
    rx_queue=st.sampled_from([None, 1, 2]),
    rule_name=st.sampled_from(["", "rest"]),
    thread=st.sampled_from([None, THREAD, replace(THREAD, tid=7, uid=5)]),
)
CALLS: st.SearchStrategy[Callable[[FlowTable, FlowKey], None]] = st.sampled_from(
    [
        lambda table, of: table.note(of, FlowNotes(deferrals=1)),
        lambda table, of: table.note(of, FlowNotes()),
        lambda table, of: table.ask(asked(ActionKind.INSERT, of)),
        lambda table, of: table.ask(asked(ActionKind.REWRITE, of)),
        lambda table, of: table.answered(of),
        lambda table, of: table.gives(of, (None,)),
        lambda table, of: table.gives(of, None),
        lambda table, of: table.promise(of, True),
        lambda table, of: table.promise(of, False),
        lambda table, of: table.writes(of, Writing.CONNECT),
        lambda table, of: table.writes(of, None),
        lambda table, of: table.leave(of),
        lambda table, of: table.close(of, True),
        lambda table, of: table.hash(of, Hashed(1)),
        lambda table, of: table.hash(of, None),
        lambda table, of: table.plan(of, True),
        lambda table, of: table.plan(of, False),
        lambda table, of: table.remove(of) if table.get(of) else None,
    ]
)


def is_asked(record: FlowRecord, kind: ActionKind) -> bool:
    return record.pending.asked is not None and record.pending.asked.kind is kind


def judge(table: FlowTable) -> None:
    """Each index is what a reading of all records finds."""
    every = [(each, record) for each in table if (record := table.record(each.key))]
    assert table.notes().keys() == {f.key for f, r in every if r.notes != FlowNotes()}
    assert {*table.leaving()} == {f.key for f, r in every if r.pending.leaves}
    connects = {f.key for f, r in every if r.pending.writing is Writing.CONNECT}
    assert {*table.writing(Writing.CONNECT)} == connects
    assert dict(table.standing()) == Counter((f.nic, f.state, f.rule_name) for f, _ in every)
    for cookie in range(1, 4):
        assert {*table.keys_of(cookie)} == {f.key for f, _ in every if f.cookie == cookie}
    steered = [f for f, _ in every if f.location is not None and f.state is FlowState.STEERED]
    astray = {f.key for f in steered if f.rx_queue not in (None, f.target_queue)}
    assert {each.key for each in table.astray()} == astray
    for nic in NICS:
        here = [(f, r) for f, r in every if f.nic == nic]
        with_filter = [f for f, _ in here if f.location is not None]
        flows = {
            table.steered: {f.key for f in with_filter},
            table.adopted: {f.key for f in with_filter if not f.rule_name},
            table.waiting: {f.key for f, _ in here if waits(f)},
            table.led: {f.key for f, _ in here if f.state is FlowState.PORT},
            table.aimless: {
                f.key for f, _ in here if f.location is None or f.target_cpu is None
            },
            table.ports: {f.key for f, _ in here if f.key.listens},
        }  # fmt: skip
        for index, wanted in flows.items():
            assert Counter(each.key for each in index(nic)) == Counter(wanted)
        keys = {
            table.inserting: {f.key for f, r in here if is_asked(r, ActionKind.INSERT)},
            table.rewriting: {f.key for f, r in here if is_asked(r, ActionKind.REWRITE)},
            table.swaps: {f.key for f, r in here if r.pending.swap},
            table.promised: {f.key for f, r in here if r.pending.promised},
            table.planned: {f.key for f, r in here if r.pending.planned},
        }
        for named, wanted in keys.items():
            assert {*named(nic)} == wanted
        hashed = {f.key for f, r in here if r.pending.hashed and r.pending.hashed.entry == 1}
        assert {*table.hashed(nic).get(1, ())} == hashed
        ruled = [f for f in with_filter if f.target_queue is not None]
        assert table.filters_in(nic) == len(ruled)
        for queue in (1, 2):
            led = {f.key for f in ruled if f.target_queue == queue}
            assert {each.key for each in table.led_to(nic, queue)} == led
            assert table.filters_on(nic, queue) == len(led)
        of_tenants = {k for some in table.filters_of(nic).values() for k in some}
        assert of_tenants == {f.key for f in with_filter}


@given(st.lists(st.one_of(FLOWS, st.tuples(CALLS, st.sampled_from(KEYS)))))
def test_every_index_is_that_of_a_whole_reading_and_ends_with_the_last_flow(steps: Any) -> None:
    table = FlowTable(100)
    for step in steps:
        if isinstance(step, Flow):
            table.put(step)
        else:
            step[0](table, step[1])
        judge(table)
    for each in [*table]:
        table.remove(each.key)
    assert held(table, FlowKey) == []
