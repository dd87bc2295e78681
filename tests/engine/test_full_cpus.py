# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs that are full while others are not: packets are not brought to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.placement.load import FullCpus, FullTerms
from atfnd.model import Cpu

__all__: list[str] = []

SECOND_NS = 10**9
LOOK_NS = 2 * SECOND_NS
CPUS = {i: Cpu(i, True, i // 2, 0, i, (i,), (i & 2, (i & 2) + 1)) for i in range(4)}
FULL, CALM, BUSY = {0: 100, 1: 10}, {0: 10, 1: 10}, {0: 70, 1: 10}


class Looks:
    """Readings of the load, one every two seconds."""

    def __init__(self) -> None:
        self.full, self.now_ns = FullCpus(), 0
        self.look({0: 0, 1: 0, 2: 0, 3: 0})

    def look(self, busy: dict[int, int], times: int = 1) -> set[int]:
        for _ in range(times):
            self.full.look(busy, CPUS, self.now_ns)
            self.now_ns += LOOK_NS
        return set(self.full.cpus)

    def until_not_full(self, busy: dict[int, int], most: int = 1000) -> int:
        """How many looks it takes."""
        return next(n for n in range(1, most) if not self.look(busy))


def test_a_cpu_is_full_where_another_under_its_cache_has_room() -> None:
    assert Looks().look({0: 95, 1: 90, 2: 0, 3: 0}) == {0}
    assert Looks().look({0: 94, 1: 90}) == set()
    assert Looks().look({0: 100, 1: 91, 2: 0, 3: 0}) == set()  # that one is under another cache
    assert Looks().look({0: 100}) == set()  # CPU 1 is offline
    assert Looks().look({0: 100, 1: 0, 9: 100}) == {0}  # nothing is known of CPU 9


def test_what_lasts_only_for_a_moment_does_not_count() -> None:
    """Looks may come more often than usual."""
    looks = Looks()
    for _ in range(14):
        looks.now_ns += SECOND_NS // 10 - LOOK_NS
        assert looks.look(FULL) == set()
    looks.now_ns += SECOND_NS // 10 - LOOK_NS
    looks.look(CALM)
    looks.now_ns += SECOND_NS // 10 - LOOK_NS
    assert looks.look(FULL) == set()


def test_it_is_full_until_it_has_had_slack_for_long() -> None:
    looks = Looks()
    assert looks.look(FULL) == {0}
    assert looks.look(BUSY, 100) == {0}  # it could not take its packets back
    assert looks.look({0: 100, 1: 100}, 100) == {0}  # RSS has its packets, and stays as good
    assert looks.look(CALM, 4) == {0}
    assert looks.look(BUSY) == {0}
    assert looks.until_not_full(CALM) == 5
    assert looks.look(BUSY, 100) == set()


def test_each_time_that_it_is_full_soon_again_it_stays_so_for_twice_as_long() -> None:
    looks = Looks()
    found = []
    for _ in range(9):
        looks.look(FULL)
        found.append(looks.until_not_full(CALM))
    assert found == [5, 10, 20, 40, 80, 160, 320, 320, 320]
    looks.look(CALM, 640)
    looks.look(FULL)
    assert looks.until_not_full(CALM) == 5


def test_a_cpu_that_goes_offline_and_a_load_that_is_not_known_any_more() -> None:
    looks = Looks()
    looks.look(FULL)
    assert looks.look({1: 10}) == set()
    looks.look(FULL)
    assert looks.look({}) == set()
    assert looks.look(FULL) == set()  # for how long is not known
    assert looks.look(FULL) == {0}


@given(st.lists(st.dictionaries(st.integers(0, 4), st.integers(0, 100)), max_size=60))
def test_whatever_is_read(busy: list[dict[int, int]]) -> None:
    looks = Looks()
    changes, before = 0, set[int]()
    for each in busy:
        now = looks.look(each)
        changes, before = changes + len(now - before), now
        assert now <= each.keys() & CPUS.keys()
    assert looks.full.times.keys() <= CPUS.keys()
    assert max((times for times, _ in looks.full.times.values()), default=0) <= FullTerms().doubled
