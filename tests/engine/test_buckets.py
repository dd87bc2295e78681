# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering by the indirection table: evidence, majority, hold-down, and what is said of it."""

from __future__ import annotations

import errno
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.indirection import entries
from atfnd.engine.placement import steer
from atfnd.engine.plan import copy_of, foreseen
from atfnd.engine.table.memory import Buckets, Memory
from atfnd.model import (
    FlowKey,
    FlowState,
    NicView,
    Outcome,
    Plan,
    Rss,
    SteeringMethod,
    Thread,
    Topology,
)
from atfnd.model.reason import Code
from tests.engine.test_steer import HOLD_NS, memory
from tests.values import NIC, RULE, flow, key, seen

ENTRIES = 8
KEY = (1 << 257).to_bytes(40)  # the hash of flow 1 is 1
VIEW = replace(
    NIC,
    caps=replace(NIC.caps, filters=False),
    method=SteeringMethod.RSS,
    method_why=Code.KERNEL("this NIC has no 5-tuple filters"),
    rss=Rss(KEY, (0, 1, 2, 3) * (ENTRIES // 4)),
)


def entry_of(of: FlowKey) -> int:
    """Flow 9 shares entry 1 with flow 1."""
    return of.remote[-1] % ENTRIES


def table(plan: Plan) -> tuple[int, ...]:
    (action,) = plan
    assert action.setting == "rss"
    assert action.value is not None
    return tuple(map(int, action.value.split()))


def turned(nic: NicView, known: Memory, now_ns: int, refuse: int = 0) -> NicView:
    """One turn of the loop: plan, write, settle. Returns the NIC as it then is."""
    plan = entries.plan(nic, entry_of, known, now_ns)
    after, outcomes = nic, []
    if plan:
        if not refuse:
            after = replace(nic, rss=Rss(KEY, table(plan)))
        outcomes = [Outcome(plan[0], now_ns, refuse, None, "the NIC refused its table")]
    entries.record(nic.rss, after, outcomes, known, now_ns)
    return after


def used(nic: NicView, known: Memory, number: int, cpu: int, now_ns: int, size: int = 1000) -> None:
    """By a thread of its own."""
    thread = Thread(tid=100 + number, pid=100, comm="app", cgroup=None)
    event = seen(
        number, cpu, thread=thread, bytes=size, napi_id=None, rx_cpu=None, off_since_ns=now_ns
    )
    assert steer.seen(event, nic, RULE, known, now_ns) == ()


def line(known: Memory, number: int) -> tuple[FlowState, str]:
    found = known.table.get(key(number))
    assert found is not None
    return found.state, str(found.why)


def test_what_was_seen_before_a_move_is_no_evidence_against_it() -> None:
    known = memory()
    used(VIEW, known, 1, cpu=3, now_ns=1)
    nic = turned(VIEW, known, 10**9)
    found = known.table.get(key(1))
    assert found is not None
    known.table.put(found._replace(rx_queue=1, rx_cpu=1, used_ns=10**9 + 1))
    entries.look(nic, known)
    turned(nic, known, 2 * 10**9)
    assert line(known, 1)[0] is FlowState.RSS
    known.table.put(found._replace(rx_queue=1, rx_cpu=1, used_ns=3 * 10**9))
    entries.look(nic, known)
    turned(nic, known, 3 * 10**9)
    assert "it arrives on queue 1" in line(known, 1)[1]


def test_a_refused_table_is_reported_and_tried_no_more() -> None:
    known = memory()
    used(VIEW, known, 1, cpu=3, now_ns=1)
    turned(VIEW, known, 1, refuse=errno.EOPNOTSUPP)
    assert line(known, 1) == (FlowState.WANTED, "the NIC refused its table")
    entries.look(VIEW, known)
    assert table(entries.plan(VIEW, entry_of, known, 2))[1] == 3  # tried again, not held


def test_it_is_foreseen_what_arming_would_write() -> None:
    known, unarmed = memory(), replace(VIEW, armed=False)
    used(unarmed, known, 1, cpu=3, now_ns=1)
    copied = copy_of(known, "nic")
    plan = foreseen(unarmed, Topology(()), copied, known.table, 5)
    assert table(plan) == (0, 3, 2, 3, 0, 1, 2, 3)
    assert not known.table.planned("nic")
    known.nics["nic"].buckets = Buckets((KEY, ENTRIES), {1: 5})  # it has just moved, and is held
    assert foreseen(unarmed, Topology(()), copy_of(known, "nic"), known.table, 5) == ()


STEPS = st.lists(
    st.tuples(
        st.integers(0, 19),  # flow
        st.integers(0, 5),  # CPU; no queue is on 4 and 5
        st.integers(0, 10_000),  # bytes
        st.integers(1, HOLD_NS),  # time
        st.booleans(),  # a look
    ),
    max_size=30,
)


def history(steps: list[tuple[int, int, int, int, bool]]) -> list[tuple[int, NicView]]:
    """The table after every step; each step is checked."""
    known, nic, now_ns = memory(), VIEW, 1
    moved_ns: dict[int, int] = {}
    states = []
    for number, cpu, size, step_ns, looks in steps:
        now_ns += step_ns
        used(nic, known, number, cpu, now_ns, size)
        if looks:
            entries.look(nic, known)
        steer.due({"nic": nic}, known, now_ns)
        touched = {entry_of(each) for each in known.table.planned("nic")}
        after = turned(nic, known, now_ns)
        assert nic.rss is not None
        assert after.rss is not None
        used_on = {(entry_of(each.key), each.app_cpu) for each in known.table}
        for entry in range(ENTRIES):
            old, new = nic.rss.table[entry], after.rss.table[entry]
            if old != new:
                assert entry in touched
                assert (entry, new) in used_on  # queue N is on CPU N
                assert now_ns - moved_ns.get(entry, -HOLD_NS) >= HOLD_NS
                moved_ns[entry] = now_ns
        nic = after
        states.append((now_ns, nic))
    return states


@given(STEPS)
def test_an_entry_moves_on_evidence_and_not_within_hold_down(
    steps: list[tuple[int, int, int, int, bool]],
) -> None:
    assert history(steps) == history(steps)  # and the same evidence leads to the same table


def test_with_another_key_what_was_known_of_entries_is_forgotten() -> None:
    known = memory()
    used(VIEW, known, 1, cpu=3, now_ns=1)
    turned(VIEW, known, 1)
    other = replace(VIEW, rss=Rss(bytes([1] * 40), (0, 1, 2, 3) * (ENTRIES // 4)))
    entries.look(other, known)
    plan = entries.plan(other, lambda key: 2, known, 2)  # nor is it held: that was another entry
    assert table(plan) == (0, 1, 3, 3, 0, 1, 2, 3)


def test_a_flow_with_a_filter_is_not_led_by_its_entry() -> None:
    """The NIC took filters before, and keeps this one: its queue is the filter's."""
    known = memory()
    steered = flow(1, state=FlowState.STEERED, location=7, target_queue=0, app_cpu=3)
    known.table.put(steered)
    used(VIEW, known, 9, cpu=3, now_ns=1)
    entries.look(VIEW, known)
    nic = turned(VIEW, known, 1)
    entries.look(nic, known)
    turned(nic, known, 2)
    assert known.table.get(key(1)) == steered
    assert line(known, 9)[0] is FlowState.RSS
