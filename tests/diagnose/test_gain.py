# SPDX-License-Identifier: GPL-2.0-or-later
"""What a survey comes to: distances, habits, homes, sums that lose no byte, and when not to arm."""

from __future__ import annotations

from dataclasses import replace

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

__all__: list[str] = []

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


def test_a_distance_that_is_not_said_leaves_shares_unknown_but_for_the_cpu() -> None:
    [nic] = gain(reads(read=0, count=75), reads(read=1, count=25), cpus=UNSAID).nics
    assert nic.reads == ReadSpread(cpu=75, other=25)
    assert [nic.reads.off(level) for level in Distance] == [0.25, None, None, None, None]


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


def test_a_wanderer_has_no_home_where_the_kernel_does_not_say_what_cpus_share() -> None:
    [thread] = gain(reads(read=0), reads(read=1), cpus=UNSAID).threads
    assert (thread.habit, thread.home) == (Habit.WANDERING, None)


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


def test_of_another_nic_nothing_is_counted() -> None:
    found = gain(reads(), reads(tid=2, nic="eth9"))
    assert [thread.tid for thread in found.threads] == [1]
    assert found.nics[0].reads.known == 100


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
TWO = Topology(tuple(Cpu(n, True, None, 0, n, (n,), (0, 1)) for n in range(2)))
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


def test_pinned_threads_off_their_packets_gain() -> None:
    verdict, advice = advised(of_thread(1, PINNED, 60), of_thread(2, PINNED, 40, read=0))
    assert verdict is ARM
    assert "60% of the bytes" in advice
    assert "at most" in advice


def test_so_do_threads_that_stay_where_there_are_many_cpus() -> None:
    assert advised(of_thread(1, FREE, 60), busy=dict.fromkeys(range(8), 0.1))[0] is ARM


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no data was read in 10 s"),
        ([of_thread(1, PINNED, 9, rx=None)], "only unconnected UDP"),
    ],
)
def test_where_nothing_is_known_nothing_is_advised(rows: list[SurveyedReads], words: str) -> None:
    verdict, advice = advised(*rows)
    assert verdict is UNKNOWN
    assert words in advice


def test_of_an_armed_nic_the_figures_are_those_with_steering() -> None:
    verdict, advice = advised(of_thread(1, PINNED, 9), nic=lab())
    assert verdict is ArmingVerdict.ARMED
    assert "with steering" in advice


@pytest.mark.parametrize(
    ("method", "words"),
    [(SteeringMethod.NONE, "its table is stuck"), (SteeringMethod.RFS, "needs no daemon")],
)
def test_a_nic_that_cannot_be_steered(method: SteeringMethod, words: str) -> None:
    nic = replace(UNARMED, method=method, method_why=Code.KERNEL("its table is stuck"))
    verdict, advice = advised(of_thread(1, PINNED, 60), nic=nic)
    assert verdict is LEAVE
    assert words in advice


def test_what_arrives_right_cannot_gain() -> None:
    verdict, advice = advised(of_thread(1, PINNED, 96, read=0), of_thread(2, PINNED, 4))
    assert (verdict, advice) == (
        LEAVE, "Do not arm: 96% of the bytes are read where they arrive already."
    )  # fmt: skip
    assert advised(of_thread(1, PINNED, 95, read=0), of_thread(2, PINNED, 5))[0] is ARM


def test_wanderers_are_left_to_rss() -> None:
    rows = [of_thread(1, FREE, 50, read=cpu, rx=0) for cpu in (1, 2, 3)]
    verdict, advice = advised(*rows)
    assert verdict is LEAVE
    assert "threads that wander read 100%" in advice
    assert advised(*rows, of_thread(2, PINNED, 50))[0] is ARM


def test_what_the_policy_leaves_alone() -> None:
    verdict, advice = advised(
        of_thread(1, PINNED, 60)._replace(left=True), of_thread(2, PINNED, 40, read=0)
    )
    assert verdict is LEAVE
    assert "the policy leaves alone 60%" in advice


def test_threads_that_were_hardly_seen() -> None:
    verdict, advice = advised(
        of_thread(1, FREE, 60)._replace(calls=3), of_thread(2, PINNED, 40, read=0)
    )
    assert verdict is UNKNOWN
    assert "ask for longer" in advice


def test_a_core_that_is_full_and_would_get_the_packets_too() -> None:
    rows = [of_thread(1, PINNED, 60), of_thread(2, PINNED, 40, read=2)]
    verdict, advice = advised(*rows, busy={1: 0.97, 2: 0.2})
    assert verdict is LEAVE
    assert "CPU 1 is full (97%)" in advice
    assert advised(*rows, busy={1: 0.5, 2: 0.97})[0] is ARM  # the lesser part would come to CPU 2
    assert advised(*rows)[0] is ARM  # nobody knows how busy they are
    spread = [
        of_thread(1, PINNED, 50),
        of_thread(2, PINNED, 30, read=2),
        of_thread(3, PINNED, 20, read=3),
    ]
    assert advised(*spread, busy={1: 0.97})[0] is ARM  # half of it would come to others


def test_unpinned_threads_on_few_cpus_at_low_load() -> None:
    row = of_thread(1, FREE, 60)._replace(allowed=2)
    light, heavy = {0: 0.3, 1: 0.3}, {0: 0.8, 1: 0.8}
    verdict, advice = advised(row, cpus=TWO, busy=light)
    assert verdict is LEAVE
    assert "not pinned, on 2 CPUs under low load (30%)" in advice
    assert advised(row, cpus=TWO, busy=heavy)[0] is ARM
    assert advised(row._replace(allowed=1), cpus=TWO, busy=light)[0] is ARM
    assert advised(row, of_thread(2, PINNED, 61), cpus=TWO, busy=light)[0] is ARM


def test_short_connections_of_a_listener_that_threads_share() -> None:
    def worker(tid: int, accepted: int) -> SurveyedReads:
        return of_thread(tid, PINNED, 50, read=tid)._replace(accepted=accepted, port=80)

    short, shared = [worker(1, 20), worker(2, 20)], frozenset({80})
    verdict, advice = advised(*short, shared=shared)
    assert verdict is LEAVE
    assert "listener of port 80" in advice
    assert advised(*short)[0] is ARM  # each has a listener of its own
    assert advised(worker(1, 2), worker(2, 2), shared=shared)[0] is ARM  # they last
    assert advised(*short, of_thread(3, PINNED, 101, read=3), shared=shared)[0] is ARM
