# SPDX-License-Identifier: GPL-2.0-or-later
"""Too few filters: the elephants have them, nobody is swapped to and fro, others' are counted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.filters import budget
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, Cpu, FlowState, Node, Topology
from tests.engine.simulated import Load, Simulated
from tests.engine.test_steer import HOLD_NS, memory
from tests.values import NIC, RULE, THREAD, key, one_rule, seen

MEGABYTE = 1_000_000
LOOKS = 40


def bed(rates: list[int], room: int, defers: list[bool] | None = None) -> Simulated:
    """Flows on CPU 1 that RSS delivers on CPU 3; now and then a write is put off."""
    moods = list(defers or [])

    def put_off(action: Action) -> bool:
        del action
        return moods.pop() if moods else False

    loads = [Load(key(number), 1, rate, 3) for number, rate in enumerate(rates)]
    made = Simulated(replace(NIC, budget=room), RULE, memory(), loads, put_off)
    made.memory.in_force = one_rule(HOLD_NS, 1 << 60)
    return made


def ruled(made: Simulated) -> set[int]:
    """Which flows have a filter, by number."""
    numbers = {load.key: number for number, load in enumerate(made.loads)}
    return {numbers[held] for held, _ in made.held.values()}


def state(known: Memory, number: int) -> FlowState | None:
    flow = known.table.get(key(number))
    return None if flow is None else flow.state


def test_a_filter_that_changes_nothing_is_worth_nothing() -> None:
    made = bed([90 * MEGABYTE, MEGABYTE], room=1)
    made.start()
    made._rss[key(0)] = 1  # somebody wrote the indirection table: it leads there by itself now
    for _ in range(5):
        made.look()
    assert ruled(made) == {1}


def test_another_node_is_farther_than_another_core() -> None:
    cpus = tuple(Cpu(n, True, n // 2, n // 2, n, (n,), (n,)) for n in range(4))
    nodes = (Node(0, (0, 1), {0: 10, 1: 31}), Node(1, (2, 3), {0: 31, 1: 10}))
    known = memory()
    small = replace(NIC, budget=0)
    for number, cpu in ((1, 2), (2, 0)):
        thread = replace(THREAD, tid=number)
        steer.seen(seen(number, cpu, thread=thread), small, RULE, known, 1)
    near = {key(1): 3, key(2): 3}.get
    for at_ns in (10**9, 2 * 10**9):
        budget.weigh(small, Topology(cpus, nodes), near, known, at_ns)
    records = [known.table.record(key(n)) for n in (1, 2)]
    assert [r.pending.weight.mismatch for r in records if r and r.pending.weight] == [1.0, 3.1]


def test_others_filters_count_first_against_the_reserve() -> None:
    nic = replace(NIC, budget=6, caps=replace(NIC.caps, filter_slots=8))  # reserve: 2
    shares = [budget.share(replace(nic, foreign=n)) for n in (None, 0, 2, 5, 9)]
    assert shares == [6, 6, 6, 3, 0]
    assert budget.share(NIC) is None


def test_a_plan_asks_for_no_more_than_there_is_room_for() -> None:
    known, small = memory(), replace(NIC, budget=2)
    plans = [steer.seen(seen(n, 1), small, RULE, known, 1) for n in range(4)]
    assert [len(plan) for plan in plans] == [1, 1, 0, 0]
    budget.ended(plans[0][0], known)  # put off: its slot is free again
    assert len(steer.retry({"nic": small}, known, 2)) == 1


def waiting_for_a_delete() -> tuple[Simulated, list[Action]]:
    """Flow 1 is about to get the filter of flow 0, whose delete takes its time."""
    put_off: list[Action] = []
    made = bed([0, 9 * MEGABYTE, 0], room=1)
    made.start()
    made.look()
    made.look()
    made.now_ns += 10**10
    made.spend = lambda: None  # type: ignore[method-assign]
    put_off += budget.swaps(made.nic, made.memory, made.now_ns)
    return made, put_off


def test_a_slot_whose_newcomer_has_gone_is_anybodys() -> None:
    made, (swap,) = waiting_for_a_delete()
    made.carry_out(retire.gone(2, made.memory))
    made.carry_out((swap,))
    assert budget.no_room(made.nic, made.memory, key(2)) is None


def test_a_flow_that_ends_while_its_rule_makes_room_is_forgotten() -> None:
    made, _ = waiting_for_a_delete()
    made.carry_out(retire.gone(1, made.memory))
    assert state(made.memory, 0) is None


def test_a_swap_that_is_put_off_leaves_everything_as_it_was() -> None:
    made, (swap,) = waiting_for_a_delete()
    made.defers = lambda action: True
    made.carry_out((swap,))
    assert state(made.memory, 0) is FlowState.STEERED
    assert ruled(made) == {0}
    assert made.memory.table.swaps("nic") == {}


@given(
    rates=st.lists(st.integers(0, 10**9), min_size=1, max_size=10),
    room=st.integers(0, 5),
    defers=st.lists(st.booleans(), max_size=30),
)
def test_elephants_have_the_filters_in_the_end_and_keep_them(
    rates: list[int], room: int, defers: list[bool]
) -> None:
    made = bed(rates, room, defers)
    made.start()
    for _ in range(LOOKS):
        made.look()
        assert len(made.held) <= room
        assert made.memory.table.filters_in("nic") == len(made.held)
    had, deleted = ruled(made), made.deleted
    noted = made.memory.table.noted
    # What was put off rests: a flow that waits, a filter that is to go.
    kept = {number for number in range(len(rates)) if noted(key(number)).rests_ns > made.now_ns}
    least = min((rates[number] for number in had - kept), default=10**9)
    for number in set(range(len(rates))) - had:
        assert len(had) == room
        assert (
            number in kept or rates[number] <= 2.001 * least or rates[number] < 10_001 or not room
        )
    for _ in range(5):
        made.look()
    assert (ruled(made), made.deleted) == (had, deleted)
    assert made.deleted <= room * len(rates)


@given(
    rates=st.lists(st.lists(st.integers(0, 10**8), min_size=4, max_size=4), max_size=12),
    others=st.lists(st.integers(0, 4), max_size=12),
)
def test_whatever_they_carry_our_share_is_kept(rates: list[list[int]], others: list[int]) -> None:
    made = bed([0] * 4, room=3)
    made.nic = replace(made.nic, caps=replace(made.nic.caps, filter_slots=4))
    made.start()
    for number, now in enumerate(rates):
        made.loads = [load._replace(bytes_per_s=r) for load, r in zip(made.loads, now, strict=True)]
        before = len(made.held)
        made.others_took(others[number] if number < len(others) else 0)
        made.look()
        room = budget.share(made.nic)
        assert room is not None
        assert len(made.held) <= max(room, before)
