# SPDX-License-Identifier: GPL-2.0-or-later
"""The load that is already there: of CPUs that are equally good, the least busy one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.ownership.owner import Owned
from atfnd.engine.placement.load import busy_percent, quarter
from atfnd.engine.placement.place import guest
from atfnd.model import CpuTime, Placement, PlacementKind
from tests.engine.test_steer_placements import CPUS, Machine
from tests.values import NIC, RULE, THREAD

__all__: list[str] = []

NAMED = Placement(PlacementKind.CPUS, frozenset({1, 2, 3}))
TIMES = st.dictionaries(st.integers(0, 7), st.integers(0, 1 << 62))


def at(at_ns: int, idle_ns: dict[int, int]) -> CpuTime:
    return CpuTime(at_ns, {}, {}, {}, {}, idle_ns)


def test_it_is_reported_in_percent_and_compared_in_quarters() -> None:
    before, now = at(0, {0: 0, 1: 5, 2: 0, 3: 7}), at(100, {0: 76, 1: 80, 2: 0, 4: 100})
    assert busy_percent(before, now) == {0: 24, 1: 25, 2: 100}
    assert [quarter(percent) for percent in (0, 24, 25, 74, 75, 100)] == [0, 0, 1, 2, 3, 3]


@given(TIMES, TIMES, st.integers(1, 1 << 40))
def test_whatever_the_kernel_says(before: dict[int, int], now: dict[int, int], for_ns: int) -> None:
    """Clock ticks may be ahead of the time, and a CPU's may go back when it comes online again."""
    found = busy_percent(at(0, before), at(for_ns, now))
    assert found.keys() == before.keys() & now.keys()
    assert set(found.values()) <= {*range(101)}


def spot(busy: dict[int, int], current: int | None = None) -> int | None:
    machine = Machine(replace(RULE, placement=NAMED))
    machine.memory.busy = busy
    assert machine.memory.cpus == CPUS
    return guest(NAMED, 0, THREAD, NIC, machine.memory, current).cpu


def test_the_least_busy_of_equals_is_taken() -> None:
    assert spot({}) == 1
    assert spot({1: 25, 2: 49, 3: 24}) == 3
    assert spot({1: 75, 2: 50}) == 3  # of which nothing is known yet


def test_a_queue_that_a_thread_owns_is_taken_last_however_idle_its_cpu_is() -> None:
    """It follows that thread, and would take the guest along."""
    machine = Machine(replace(RULE, placement=NAMED))
    machine.memory.busy = {2: 30, 3: 30}
    machine.memory.nics["nic"].owned = {1: Owned(("thread", 7), 0)}
    assert guest(NAMED, 0, THREAD, NIC, machine.memory).cpu == 2
