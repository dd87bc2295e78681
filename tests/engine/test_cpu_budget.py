# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's own CPU time: what it may spend, and which moves wait for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.cpu_budget import LOOKED_AT, WINDOW_NS, CpuBudget
from atfnd.engine.ownership.follow import owner_of
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import ActionKind, Cpu, FlowKey, Migrant, Mode, Node, Outcome, Plan
from tests.values import NIC, RULE, THREAD, key, memory_of, one_rule, seen

MS, S = 1_000_000, 1_000_000_000


def begun(budget: CpuBudget, wanted: int) -> int:
    """How many of so many moves can be paid now."""
    return sum(budget.pays() for _ in range(wanted))


def looked(budget: CpuBudget, reports: int) -> int:
    """What looks at so many reports take, of 0.25 ms each."""
    took_ns = 0
    for _ in range(reports):
        took_ns += MS // 4 if took_ns < budget.looks_ns else 0
    return took_ns


def test_nothing_waits_before_the_first_reading() -> None:
    budget = CpuBudget(0.01)
    assert begun(budget, 10_000) == 10_000
    assert budget.cpu_use() is None


def test_a_quarter_of_what_is_left_pays_for_moves() -> None:
    budget = CpuBudget(0.01)
    budget.read(7 * S, 0)  # what the start took does not count
    assert begun(budget, 10_000) == 40  # of 0.5 ms: a quarter of 80 ms
    budget.read(7 * S + 20 * MS, S)
    assert begun(budget, 10_000) == 30  # a quarter of what is left
    assert not budget.over


def test_over_begins_and_ends_once() -> None:
    budget = CpuBudget(0.01)
    said = [budget.read(0, 0), budget.read(300 * MS, S)]
    said += [budget.read(300 * MS, at * S) for at in range(2, 20)]
    assert said.count(True) == 2
    assert not budget.over
    assert begun(budget, 10) == 10


def test_a_burst_is_paid_back_within_a_window() -> None:
    """However much was spent, moves go on as usual ten seconds later."""
    budget = CpuBudget(0.01)
    budget.read(0, 0)
    budget.read(1000 * S, S)
    budget.read(1000 * S, S + WINDOW_NS + S)
    assert begun(budget, 100) > 10


def test_the_worthiest_go_first_and_one_at_least() -> None:
    budget = CpuBudget(0.01)
    budget.read(0, 0)
    budget.read(S, S)  # far too much
    assert not budget.pays()
    flows = [key(number) for number in range(5)]
    for each in flows:
        budget.wait(each)
    worth = {each: float(number) for number, each in enumerate(flows)}
    assert budget.turn(worth.get) == [flows[4]]
    assert budget.pays()  # it has been granted
    assert not budget.pays()
    assert list(budget.waiting) == flows[:4]
    assert (use := budget.cpu_use()) is not None
    assert use.waiting == 4
    budget.read(S, S + 3 * WINDOW_NS)
    assert budget.turn(worth.get) == flows[3::-1]


def test_what_has_ended_waits_no_more() -> None:
    budget = CpuBudget(0.01)
    budget.wait(key(1))
    assert budget.turn(lambda gone: None) == []
    assert not budget.waiting


def test_all_have_their_turn_however_many_wait() -> None:
    budget = CpuBudget(0.01)
    flows = [key(number) for number in range(2 * LOOKED_AT)]
    for each in flows:
        budget.wait(each)
    budget.read(0, 0)
    for second in range(1, 3):
        budget.read(second * S, second * S)
        budget.turn(lambda each: 1.0)
    assert len(budget.waiting) == 2 * LOOKED_AT - 2
    asked: list[FlowKey] = []

    def noted(each: FlowKey) -> float:
        asked.append(each)
        return 1.0

    for second in range(3, 6):
        budget.read(second * S, second * S)
        budget.turn(noted)
    assert set(asked) >= set(budget.waiting)


STEP = st.tuples(st.integers(0, 500), st.integers(0, 500))  # moves and reports of a second


@given(st.lists(STEP, min_size=1, max_size=40))
def test_any_ten_seconds_cost_no_more_than_the_share(seconds: list[tuple[int, int]]) -> None:
    """Less a fifth, and one move and some looks at each reading, where they cost what they are
    taken for."""
    budget, spent_ns, at_reading, forced_ns = CpuBudget(0.01), 0, [0], [0]
    budget.read(0, 0)
    for second, (wanted, reports) in enumerate(seconds, 1):
        for number in range(wanted):
            if budget.pays():
                spent_ns += MS // 2
            else:
                budget.wait(key(number))
        spent_ns += looked(budget, reports)
        budget.read(spent_ns, second * S)
        at_reading.append(spent_ns)
        forced_ns.append(forced_ns[-1] + MS // 2 + 3 * MS // 4)
        chosen = budget.turn(lambda each: 1.0)
        spent_ns += len(chosen) * MS // 2
        for _ in chosen:
            assert budget.pays()
    for first, now_ns in enumerate(at_reading[10:]):
        assert now_ns - at_reading[first] <= 80 * MS + forced_ns[10]


@pytest.mark.parametrize("cost_ms", [1, 30, 300])
def test_moves_that_turn_out_dear_are_begun_less_often(cost_ms: int) -> None:
    """Ten flows always wait: a window has its share of CPU time, and one move at least."""
    budget, spent_ns, at_reading = CpuBudget(0.01), 0, [0]
    budget.read(0, 0)
    for second in range(1, 120):
        budget.read(spent_ns, second * S)
        at_reading.append(spent_ns)
        for number in range(10):
            budget.wait(key(number))
        for _ in budget.turn(lambda each: 1.0):
            assert budget.pays()
            spent_ns += cost_ms * MS
    windows = [after - before for before, after in zip(at_reading, at_reading[10:], strict=False)]
    settled = windows[40:]
    assert max(settled) <= (100 + cost_ms) * MS
    assert min(settled) >= cost_ms * MS


def test_reports_wait_while_moves_have_used_the_window_up() -> None:
    budget = CpuBudget(0.01)
    assert looked(budget, 200) == 50 * MS  # nothing is limited yet
    budget.read(0, 0)
    assert looked(budget, 200) == 20 * MS  # a quarter of 80 ms
    budget.read(100 * MS, S)
    assert looked(budget, 200) == MS // 2  # so nothing is stalled


class Machine:
    """A thread per flow, and a budget that pays nothing but the one move in a window."""

    def __init__(self) -> None:
        in_force = one_rule(0, S, Mode.IMMEDIATE, Migrant.THREAD)
        self.memory, self.now_ns = memory_of(FlowTable(64), in_force), 100 * S
        self.memory.cpu = CpuBudget(0.01)
        self.memory.cpu.read(0, 0)
        self.memory.cpu.read(S, S)

    def uses(self, number: int, *, age_s: int = 1, **changes: Any) -> Plan:
        """Its thread came to CPU 1 so long ago, and its packets come to another."""
        thread = replace(THREAD, tid=number)
        event = seen(number, 1, thread=thread, rx_cpu=2, off_since_ns=self.now_ns - age_s * S,
                     born_ns=self.now_ns - 50 * S)  # fmt: skip
        return steer.seen(event._replace(**changes), NIC, RULE, self.memory, self.now_ns)

    def later(self) -> list[FlowKey | None]:
        self.now_ns += WINDOW_NS
        self.memory.cpu.read(S + self.now_ns, self.now_ns)  # all of the core
        plan = steer.paid({"nic": NIC}, self.memory, self.now_ns)
        return [action.key for action in plan]


def test_a_thread_that_stays_is_worth_more_than_one_that_has_just_come() -> None:
    machine = Machine()
    machine.uses(1, age_s=1, bytes=2_000_000)
    machine.uses(2, age_s=30, bytes=1_000_000)
    assert machine.later() == [key(2)]


def test_what_is_processed_on_a_far_node_is_worth_more() -> None:
    machine = Machine()
    every = tuple(range(4))
    cpus = [Cpu(each, True, each // 2, 0, each, (each,), every) for each in every]
    nodes = Node(0, (0, 1), {0: 10, 1: 40}), Node(1, (2, 3), {0: 40, 1: 10})
    machine.memory.know_cpus(cpus, nodes)
    machine.uses(1, rx_cpu=0, bytes=2_000_000)
    machine.uses(2, rx_cpu=2, bytes=1_000_000)
    assert machine.later() == [key(2)]


def test_a_queue_that_would_follow_waits_too() -> None:
    machine = Machine()
    strict = replace(RULE, order=Mode.STRICT)
    machine.memory.in_force = one_rule(0, S, Mode.STRICT, Migrant.THREAD)
    machine.memory.cpu = CpuBudget(1.0)
    first = seen(1, 1, rx_cpu=7, thread=THREAD, off_since_ns=machine.now_ns)
    for action in steer.seen(first, NIC, strict, machine.memory, machine.now_ns):
        audit.record(Outcome(action, machine.now_ns, 0, 5, ""), machine.memory)
    machine.now_ns += 10 * S
    machine.memory.cpu = CpuBudget(0.01)
    machine.memory.cpu.read(0, 0)
    machine.memory.cpu.read(S, S)
    again = first._replace(app_cpu=2, off_since_ns=machine.now_ns, at_ns=machine.now_ns)
    assert steer.seen(again, NIC, strict, machine.memory, machine.now_ns) == ()
    machine.memory.cpu.read(2 * S, machine.now_ns)
    plan = steer.paid({"nic": NIC}, machine.memory, machine.now_ns)
    assert [action.kind for action in plan] == [ActionKind.QUEUE_CPU]


def test_of_a_closed_socket_nothing_but_its_delete_is_left() -> None:
    """Its move waited for CPU time, and came after the delete, which is only due a second later: so
    the delete was replaced, and the filter stayed until an audit."""
    machine = Machine()
    machine.memory.cpu = CpuBudget(1.0)
    for action in machine.uses(1):
        audit.record(Outcome(action, machine.now_ns, 0, 5, ""), machine.memory)
    machine.memory.cpu = CpuBudget(0.01)
    machine.memory.cpu.read(0, 0)
    machine.memory.cpu.read(S, S)
    machine.now_ns += 10 * S
    assert machine.uses(1, app_cpu=2, rx_cpu=1) == ()
    (delete,) = retire.gone(1001, machine.memory)
    assert delete.kind is ActionKind.DELETE
    assert machine.later() == []
    assert steer.take_up(NIC, machine.memory, machine.now_ns) == ()
    audit.record(Outcome(delete, machine.now_ns, 0, None, ""), machine.memory)
    assert len(machine.memory.table) == 0


def test_a_closed_socket_entitles_its_thread_to_no_queue() -> None:
    machine = Machine()
    machine.memory.in_force = one_rule(0, S, Mode.STRICT, Migrant.THREAD)
    machine.memory.cpu = CpuBudget(1.0)
    for action in machine.uses(1):
        audit.record(Outcome(action, machine.now_ns, 0, 5, ""), machine.memory)
    (flow,) = machine.memory.table
    assert owner_of(flow, machine.memory) == ("thread", 1)
    retire.gone(1001, machine.memory)
    assert owner_of(flow, machine.memory) is None


def test_a_socket_that_connects_again_is_moved_again() -> None:
    machine = Machine()
    machine.memory.cpu = CpuBudget(1.0)
    for action in machine.uses(1):
        audit.record(Outcome(action, machine.now_ns, 0, 5, ""), machine.memory)
    machine.now_ns += 10 * S
    retire.gone(1001, machine.memory)
    machine.now_ns += 10 * S
    (again,) = machine.uses(1, app_cpu=2, rx_cpu=1)
    assert (again.kind, again.new) == (ActionKind.REWRITE, 2)
    audit.record(Outcome(again, machine.now_ns, 0, 5, ""), machine.memory)
    retire.gone(1001, machine.memory)
    entry = machine.memory.table.get(key(1))
    assert entry is not None
    machine.memory.table.put(entry._replace(cookie=9, app_cpu=1))  # another has its addresses
    machine.now_ns += 10 * S
    (other,) = steer.take_up(NIC, machine.memory, machine.now_ns)
    assert (other.kind, other.new) == (ActionKind.REWRITE, 1)
