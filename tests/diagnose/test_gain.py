# SPDX-License-Identifier: GPL-2.0-or-later
"""What a survey comes to: distances, habits, homes, sums that lose no byte, and when not to arm."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.diagnose.gain import Around, Parts, levels_of, summarised
from atfnd.model import (
    ArmingVerdict,
    Cpu,
    Distance,
    Gain,
    Habit,
    Levels,
    NicView,
    ReadSpread,
    SteeringMethod,
    Survey,
    SurveyedReads,
    Topology,
    WouldDo,
)
from atfnd.model.reason import Code
from tests.diagnose.machines import topology
from tests.serve.shown import lab

NIC = "lab:lab"
ONE_CACHE = Topology(tuple(Cpu(n, True, None, 0, n, (n,), (0, 1)) for n in range(2)))
UNSAID = Topology(tuple(Cpu(n, True, None, None, None, (), ()) for n in range(4)))


def reads(
    tid: int = 1, read: int = 0, rx: int | None = 0, count: int = 100, **differs: object
) -> SurveyedReads:
    row = SurveyedReads(NIC, tid, 10 + tid, "nginx", read, rx, False, count, 20, 0, None, 8)
    return row._replace(**differs)  # type: ignore[arg-type]


def gain(*rows: SurveyedReads, cpus: Topology | None = None, missed: int = 0) -> Gain:
    around = Around(cpus or topology(), {}, {}, {NIC: WouldDo(3, 2, 1)}, lambda tid: "affinity")
    return summarised(Survey(rows, missed), 10.0, [lab()], around)


@pytest.mark.parametrize(
    ("cpus", "a", "b", "expected"),
    [
        (topology(), 3, 3, Distance.CPU),
        (topology(), 2, 3, Distance.CORE),
        (topology(), 1, 3, Distance.LLC),
        (topology(), 3, 4, Distance.MACHINE),
        (topology(), 3, 99, None),
        (
            Topology(tuple(replace(c, node=None) for c in topology().cpus), topology().nodes),
            3,
            4,
            None,
        ),
        (ONE_CACHE, 0, 1, Distance.LLC),
        (UNSAID, 2, 2, Distance.CPU),
        (UNSAID, 2, 3, None),
    ],
)
def test_distance(cpus: Topology, a: int, b: int, expected: Distance | None) -> None:
    parts = Parts(cpus)
    assert parts.distance(a, b) == parts.distance(b, a) == expected


def test_two_caches_of_one_node_are_a_node_apart() -> None:
    one_node = tuple(replace(cpu, node=0) for cpu in topology().cpus)
    with_nodes = Topology(one_node, topology().nodes[:1])
    for cpus in (with_nodes, Topology(one_node)):  # the second is a kernel without NUMA
        assert Parts(cpus).distance(3, 4) is Distance.NODE
        assert levels_of(cpus) == Levels(8, 4, 2, 1)


def test_levels_count_what_is_online_and_admit_what_is_not_said() -> None:
    assert levels_of(topology()) == Levels(8, 4, 2, 2)
    off = tuple(replace(cpu, online=cpu.index < 4) for cpu in topology().cpus)
    assert levels_of(Topology(off, topology().nodes)) == Levels(4, 2, 1, 1)
    assert levels_of(UNSAID) == Levels(4, None, None, 1)


def test_shares_by_distance() -> None:
    [nic] = gain(
        reads(read=0, rx=0, count=50),
        reads(read=1, rx=0, count=20),
        reads(read=2, rx=0, count=10),
        reads(read=7, rx=0, count=20),
        reads(rx=None, count=1000),
    ).nics
    assert nic.reads == ReadSpread(50, 20, 10, 0, 20, 0, 1000)
    assert [nic.reads.off(level) for level in Distance] == [0.5, 0.3, 0.2, 0.2, 0.0]


@pytest.mark.parametrize(
    ("rows", "habit"),
    [
        ([(0, 1, 1)], Habit.PINNED),  # CPU, calls, allowed CPUs
        ([(0, 500, 1), (3, 500, 1)], Habit.PINNED),  # to one after the other
        ([(0, 90, 8), (3, 10, 8)], Habit.SETTLED),
        ([(0, 89, 8), (3, 11, 8)], Habit.WANDERING),
        ([(0, 50, 1), (3, 50, 8)], Habit.WANDERING),  # it was pinned for a part of the time
        ([(0, 9, 8)], Habit.UNKNOWN),
        ([(0, 10, 8)], Habit.SETTLED),
    ],
)
def test_habit(rows: list[tuple[int, int, int]], habit: Habit) -> None:
    found = gain(*(reads(read=cpu, calls=n, allowed=cpus) for cpu, n, cpus in rows))
    [thread] = found.threads
    assert thread.habit is habit
    assert thread.pinned_by == ("affinity" if habit is Habit.PINNED else None)
    assert found.applications[0].threads == {habit: 1}


@pytest.mark.parametrize(
    ("calls", "home"),
    [
        ({0: 95, 7: 5}, Distance.CPU),
        ({0: 50, 1: 45, 7: 5}, Distance.CORE),
        ({0: 30, 1: 30, 2: 35, 7: 5}, Distance.LLC),
        ({0: 50, 7: 50}, Distance.MACHINE),
        ({0: 5}, None),
    ],
)
def test_home_is_the_smallest_part_with_nine_of_ten_calls(
    calls: dict[int, int], home: Distance | None
) -> None:
    [thread] = gain(*(reads(read=cpu, calls=n) for cpu, n in calls.items())).threads
    assert thread.home is home
    assert thread.cpus == tuple(sorted(calls, key=lambda cpu: -calls[cpu]))


def test_applications_are_processes_of_one_name_the_busiest_first() -> None:
    found = gain(
        reads(tid=1),
        reads(tid=2, read=1),
        reads(tid=3, pid=12, read=1, allowed=1),
        reads(tid=4, application="redis", count=1000),
    )
    redis, nginx = found.applications
    assert (redis.application, redis.processes, redis.reads.cpu) == ("redis", 1, 1000)
    assert (nginx.processes, nginx.threads) == (2, {Habit.SETTLED: 2, Habit.PINNED: 1})
    assert nginx.reads.off(Distance.CPU) == 2 / 3


def test_lists_end_and_say_how_many_are_left() -> None:
    found = gain(*(reads(tid=n, application=f"a{n}", count=n) for n in range(1, 72)))
    assert [each.tid for each in found.threads] == list(range(71, 21, -1))
    assert len(found.applications) == 50
    assert (found.more_threads, found.more_applications) == (21, 21)
    assert found.nics[0].reads.known == sum(range(1, 72))


def test_what_is_off_its_cpu_by_habit_and_what_the_policy_leaves() -> None:
    [nic] = gain(
        reads(tid=1, read=0, count=1),
        reads(tid=1, read=0, rx=3, count=2),
        reads(tid=2, read=1, rx=3, count=4, allowed=1),
        reads(tid=3, read=1, rx=3, count=8, calls=1),
        reads(tid=4, read=1, rx=3, count=16, left=True),
        reads(tid=5, read=1, rx=0, count=32),
        reads(tid=5, read=3, rx=3, count=64),
        reads(tid=6, rx=None, count=128),
    ).nics
    assert nic.off == {
        Habit.SETTLED: 2, Habit.PINNED: 4, Habit.UNKNOWN: 8, Habit.WANDERING: 32,
    }  # fmt: skip
    assert nic.left == 16
    assert nic.would_do == WouldDo(3, 2, 1)


@pytest.mark.parametrize(
    ("cpus", "words"),
    [
        (topology(), None),
        (ONE_CACHE, "All 2 CPUs share one last-level cache"),
        (Topology(topology().cpus[:1]), "one CPU"),
        (UNSAID, None),
    ],
)
def test_a_machine_that_can_gain_little_is_told_so(cpus: Topology, words: str | None) -> None:
    note = gain(reads(), cpus=cpus).note
    assert (note is None) if words is None else (note is not None and words in note)


rows_ = st.lists(
    st.builds(
        reads,
        tid=st.integers(1, 6),
        read=st.integers(0, 7),
        rx=st.none() | st.integers(0, 7),
        count=st.integers(0, 99),
        calls=st.integers(1, 40),
        allowed=st.sampled_from([1, 8]),
        left=st.booleans(),
    ),
    max_size=30,
)


@given(rows_, st.sampled_from([topology(), UNSAID]))
def test_every_byte_is_in_each_sum_once(rows: list[SurveyedReads], cpus: Topology) -> None:
    found = gain(*rows, cpus=cpus)
    total = sum(row.bytes for row in rows)
    [nic] = found.nics
    assert sum(nic.reads) == total
    assert sum(sum(each.reads) for each in found.applications) == total
    assert sum(sum(each.reads) for each in found.threads) == total
    assert sum(nic.off.values()) + nic.left == nic.reads.known - nic.reads.cpu
    shares = [share for level in Distance if (share := nic.reads.off(level)) is not None]
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= share <= 1 for share in shares)
    assert nic.advice.endswith(".")


# The rule "when not to arm", case by case


UNARMED = replace(lab(), armed=False)
PINNED, FREE = 1, 8
ARM, LEAVE, UNKNOWN = ArmingVerdict.ARM, ArmingVerdict.DO_NOT_ARM, ArmingVerdict.UNKNOWN


def of_thread(
    tid: int, allowed: int, count: int, read: int = 1, rx: int | None = 0
) -> SurveyedReads:
    return SurveyedReads("lab:lab", tid, tid, "app", read, rx, False, count, 100, 0, None, allowed)


def advised(
    *rows: SurveyedReads,
    nic: NicView = UNARMED,
    cpus: Topology | None = None,
    busy: dict[int, float] | None = None,
    shared: frozenset[int] = frozenset(),
) -> tuple[ArmingVerdict, str]:
    around = Around(cpus or topology(), busy or {}, {"lab:lab": shared}, {}, lambda tid: None)
    [found] = summarised(Survey(rows, 0), 10.0, [nic], around).nics
    assert found.would_do is None
    return found.verdict, found.advice


STUCK = replace(UNARMED, method_why=Code.KERNEL("its table is stuck"))
OFF, RIGHT = of_thread(1, PINNED, 60), of_thread(2, PINNED, 40, read=0)
WANDERS = [of_thread(1, FREE, 50, read=cpu, rx=0) for cpu in (1, 2, 3)]
TWO_CORES = [OFF, of_thread(2, PINNED, 40, read=2)]
THREE_CORES = [of_thread(n, PINNED, count, read=n) for n, count in ((1, 50), (2, 30), (3, 20))]
UNPINNED = of_thread(1, FREE, 60)._replace(allowed=2)
ON_TWO = {"cpus": ONE_CACHE, "busy": {0: 0.3, 1: 0.3}}
ALL_WORDS = "Do not arm: 96% of the bytes are read where they arrive already."


def worker(tid: int, accepted: int) -> SurveyedReads:
    """Of short connections, if it accepts many."""
    return of_thread(tid, PINNED, 50, read=tid)._replace(accepted=accepted, port=80)


SHORT, SHARED = [worker(1, 20), worker(2, 20)], {"shared": frozenset({80})}


@pytest.mark.parametrize(
    ("rows", "around", "verdict", "words"),
    [
        ([OFF, RIGHT], {}, ARM, "60% of the bytes"),
        ([of_thread(1, FREE, 60)], {"busy": dict.fromkeys(range(8), 0.1)}, ARM, "at most"),
        ([], {}, UNKNOWN, "no data was read in 10 s"),
        ([of_thread(1, PINNED, 9, rx=None)], {}, UNKNOWN, "only unconnected UDP"),
        ([OFF], {"nic": lab()}, ArmingVerdict.ARMED, "with steering"),
        ([OFF], {"nic": replace(STUCK, method=SteeringMethod.NONE)}, LEAVE, "its table is stuck"),
        ([OFF], {"nic": replace(STUCK, method=SteeringMethod.RFS)}, LEAVE, "needs no daemon"),
        ([of_thread(1, PINNED, 96, read=0), of_thread(2, PINNED, 4)], {}, LEAVE, ALL_WORDS),
        ([of_thread(1, PINNED, 95, read=0), of_thread(2, PINNED, 5)], {}, ARM, ""),
        (WANDERS, {}, LEAVE, "threads that wander read 100%"),
        ([*WANDERS, of_thread(2, PINNED, 50)], {}, ARM, ""),
        ([OFF._replace(left=True), RIGHT], {}, LEAVE, "the policy leaves alone 60%"),
        ([of_thread(1, FREE, 60)._replace(calls=3), RIGHT], {}, UNKNOWN, "ask for longer"),
        # A core that is full would get the packets, too.
        (TWO_CORES, {"busy": {1: 0.97, 2: 0.2}}, LEAVE, "CPU 1 is full (97%)"),
        (TWO_CORES, {"busy": {1: 0.5, 2: 0.97}}, ARM, ""),  # the lesser part comes to CPU 2
        (TWO_CORES, {}, ARM, ""),  # nobody knows how busy they are
        (THREE_CORES, {"busy": {1: 0.97}}, ARM, ""),  # half of it comes to others
        # Few CPUs at low load
        ([UNPINNED], ON_TWO, LEAVE, "not pinned, on 2 CPUs under low load (30%)"),
        ([UNPINNED], ON_TWO | {"busy": {0: 0.8, 1: 0.8}}, ARM, ""),
        ([UNPINNED._replace(allowed=1)], ON_TWO, ARM, ""),
        ([UNPINNED, of_thread(2, PINNED, 61)], ON_TWO, ARM, ""),
        # Short connections of a listener that threads share
        (SHORT, SHARED, LEAVE, "listener of port 80"),
        (SHORT, {}, ARM, ""),  # each has a listener of its own
        ([worker(1, 2), worker(2, 2)], SHARED, ARM, ""),  # they last
        ([*SHORT, of_thread(3, PINNED, 101, read=3)], SHARED, ARM, ""),
    ],
    ids=itertools.count(),
)
def test_when_not_to_arm(
    rows: list[SurveyedReads], around: dict[str, Any], verdict: ArmingVerdict, words: str
) -> None:
    found, advice = advised(*rows, **around)
    assert found is verdict
    assert words in advice


def test_a_distance_that_is_not_said_leaves_shares_unknown_but_for_the_cpu() -> None:
    [nic] = gain(reads(read=0, count=75), reads(read=1, count=25), cpus=UNSAID).nics
    assert nic.reads == ReadSpread(cpu=75, other=25)
    assert [nic.reads.off(level) for level in Distance] == [0.25, None, None, None, None]


def test_a_wanderer_has_no_home_where_the_kernel_does_not_say_what_cpus_share() -> None:
    [thread] = gain(reads(read=0), reads(read=1), cpus=UNSAID).threads
    assert (thread.habit, thread.home) == (Habit.WANDERING, None)


def test_of_another_nic_nothing_is_counted() -> None:
    found = gain(reads(), reads(tid=2, nic="eth9"))
    assert [thread.tid for thread in found.threads] == [1]
    assert found.nics[0].reads.known == 100
