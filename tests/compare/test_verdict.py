# SPDX-License-Identifier: GPL-2.0-or-later
"""What a measurement says of slots whose truth is known; and the figures of a slot, from two
readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.compare.figures import Figures, figures, traffic_cpu_per_byte
from atfnd.compare.pairs import LEAST_PAIRS, pairs_of, pairs_within, schedule
from atfnd.compare.student import quantile
from atfnd.compare.verdict import JUDGED, compare
from atfnd.model import Compared, Effect, Figure, Measurement, ReadBytes, SlotReading, SocketRtt

NOTHING: dict[Figure, float | None] = dict.fromkeys(Figure)
USUAL = {Figure.CPU_PER_BYTE: 10.0, Figure.RTT: 200.0, Figure.THROUGHPUT: 1e6}


def slots(
    random: Random,
    pairs: int,
    effect: Mapping[Figure, float] = {},
    noise: float = 0.05,
    drift: float = 0.0,
) -> list[tuple[bool, Figures]]:
    """Slots of a load that drifts, with figures that are `effect` times as large while armed."""
    taken: list[tuple[bool, Figures]] = []
    for number, armed in enumerate(schedule(pairs, random)):
        said = {**NOTHING}
        for figure, usual in USUAL.items():
            times = effect.get(figure, 1.0) if armed else 1.0
            said[figure] = usual * times * (1 + drift * number) * random.gauss(1, noise)
        taken.append((armed, said))
    return taken


def found(result: Measurement, figure: Figure) -> Compared:
    return next(each for each in result.figures if each.figure is figure)


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [
        ({Figure.CPU_PER_BYTE: 0.9}, Effect.BETTER),
        ({Figure.CPU_PER_BYTE: 1.1}, Effect.WORSE),
        ({Figure.RTT: 0.9}, Effect.BETTER),
        ({Figure.RTT: 1.1}, Effect.WORSE),
        ({Figure.THROUGHPUT: 1.1}, Effect.BETTER),
        ({Figure.THROUGHPUT: 0.9}, Effect.WORSE),
        ({Figure.CPU_PER_BYTE: 0.9, Figure.RTT: 1.2}, Effect.MIXED),
    ],
)
def test_a_tenth_more_or_less_is_found_under_a_load_that_grows(
    effect: Mapping[Figure, float], verdict: Effect
) -> None:
    """The load doubles meanwhile: only slots of a pair are comparable."""
    result = compare("eth0", pairs_of(slots(Random(7), 30, effect, noise=0.02, drift=0.017)))
    assert result.verdict is verdict
    for figure, times in effect.items():
        one = found(result, figure)
        assert one.paused is not None
        assert one.low is not None
        assert one.high is not None
        assert one.low > 0 if times > 1 else one.high < 0
        assert one.difference == pytest.approx((times - 1) * one.paused, abs=0.05 * one.paused)


def test_without_an_effect_a_difference_is_said_in_5_of_100_measurements_at_most() -> None:
    random, times = Random(20261124), 1000
    said = Counter(compare("eth0", pairs_of(slots(random, 8))).verdict for _ in range(times))
    wrong = times - said[Effect.SAME]
    assert 0 < wrong / times < 0.07  # 0.05, and three times what chance adds in 1,000


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (120, 1.980)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert quantile(0.95, freedom) == pytest.approx(t, abs=0.0006)


@given(st.integers(1, 200), st.integers())
def test_each_pair_of_slots_has_one_of_each_and_armed_comes_first_in_half(
    pairs: int, seed: int
) -> None:
    """Else a load that grows would favour one of them."""
    armed = schedule(pairs, Random(seed))
    first, second = armed[::2], armed[1::2]
    assert len(first) == pairs
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert abs(2 * sum(first) - pairs) <= pairs % 2


def test_in_which_of_them_is_chance() -> None:
    orders = {tuple(schedule(6, Random(seed))) for seed in range(400)}
    assert len(orders) == 20  # 6 over 3
    assert {schedule(1, Random(seed))[0] for seed in range(20)} == {True, False}


@pytest.mark.parametrize(("total_s", "pairs"), [(600, 30), (19, 0), (20, 1), (59, 2)])
def test_as_many_pairs_as_there_is_time_for(total_s: float, pairs: int) -> None:
    assert pairs_within(total_s, 10) == pairs


def test_a_lost_slot_takes_its_pair_with_it() -> None:
    """The figures of the lost slot's partner would be compared with those of another time."""
    some = slots(Random(5), 12, {Figure.CPU_PER_BYTE: 0.8}, noise=0.02)
    whole: list[tuple[bool, Figures | None]] = [*some]
    whole[3] = (whole[3][0], None)
    whole[8] = (whole[8][0], None)
    result = compare("eth0", pairs_of(whole))
    assert (result.pairs, result.lost, found(result, Figure.CPU_PER_BYTE).pairs) == (12, 2, 10)
    assert result.verdict is Effect.BETTER


def test_pairs_are_of_one_armed_and_one_paused_slot_whichever_comes_first() -> None:
    a, b = NOTHING | {Figure.RTT: 1.0}, NOTHING | {Figure.RTT: 2.0}
    assert pairs_of([(True, a), (False, b)]) == pairs_of([(False, b), (True, a)]) == [(a, b)]
    assert len(pairs_of([(True, a), (False, b), (True, a)])) == 1  # it was cut short
    assert pairs_of([(True, a), (True, a)]) == []
    one = found(compare("eth0", [(a, b)]), Figure.RTT)
    assert (one.armed, one.paused, one.difference, one.low) == (1.0, 2.0, -1.0, None)


def test_too_few_pairs_decide_nothing() -> None:
    """They are shown nevertheless."""
    few = slots(Random(5), LEAST_PAIRS - 1, {Figure.CPU_PER_BYTE: 0.5}, noise=0.001)
    result = compare("eth0", pairs_of(few))
    assert result.verdict is Effect.UNKNOWN
    assert result.sentence == "not known: it takes 4 whole pairs of slots, and these are 3"
    assert found(result, Figure.CPU_PER_BYTE).high is not None


def test_the_sentence_has_the_figures_that_it_rests_on_and_names_those_that_are_not_given() -> None:
    some = [
        (armed, {**figures, Figure.CPU_PER_BYTE: None})
        for armed, figures in slots(Random(2), 20, {Figure.RTT: 0.8}, noise=0.02)
    ]
    result = compare("eth0", pairs_of(some))
    assert result.sentence.startswith("better with atfnd: round trip time -")
    assert result.sentence.count("[") == 1
    assert result.sentence.endswith("CPU per byte is not known")
    result = compare("eth0", pairs_of(slots(Random(9), 20)))
    assert result.sentence.startswith("no difference was found: CPU per byte ")
    assert result.sentence.count("[") == len(JUDGED) == 3


# The figures of one slot, from two readings.

BEFORE = SlotReading(
    at_ns=10**9,
    busy_ns={0: 5_000_000, 1: 7_000_000},
    network_ns={0: 1_000_000, 1: 0},
    napi_ns={900: 10_000_000},
    application_ns={41: 1_000_000, 42: 500_000},
    daemon_ns=3_000_000,
    packets=1_000,
    bytes=1_000_000,
    interrupts=50,
    handoffs=7,
    switches=100,
    reads=ReadBytes(1000, 1000, 5),
    sockets={1: SocketRtt(100, 250), 2: SocketRtt(100, 9_000)},
)
NOW = SlotReading(
    at_ns=3 * 10**9,
    busy_ns={0: 15_000_000, 1: 17_000_000},
    network_ns={0: 2_000_000, 1: 1_000_000},
    napi_ns={900: 13_000_000},
    application_ns={41: 2_000_000, 42: 1_500_000},
    daemon_ns=5_000_000,
    packets=3_000,
    bytes=5_000_000,
    interrupts=150,
    handoffs=27,
    switches=500,
    reads=ReadBytes(1900, 1100, 9),
    sockets={1: SocketRtt(900, 300), 2: SocketRtt(100, 9_000), 3: SocketRtt(10, 500)},
)

PER_BYTE = Figure.CPU_PER_BYTE, Figure.NETWORK_CPU_PER_BYTE, Figure.APPLICATION_CPU_PER_BYTE


def test_each_figure_is_what_its_name_says() -> None:
    assert figures(BEFORE, NOW) == {
        Figure.READ_LOCALITY: 0.9,  # of what was read meanwhile
        Figure.CPU_PER_PACKET: 10_000.0,  # 20 ms of both CPUs for 2,000 packets
        Figure.CPU_PER_BYTE: 5.0,
        Figure.NETWORK_CPU: 2_500.0,  # softirqs 2 ms, the NAPI thread 3 ms
        Figure.NETWORK_CPU_PER_BYTE: 1.25,
        Figure.APPLICATION_CPU: 1_000.0,
        Figure.APPLICATION_CPU_PER_BYTE: 0.5,
        Figure.DAEMON_CPU: 0.001,
        Figure.INTERRUPTS: 50.0,
        Figure.HANDOFFS: 10.0,
        Figure.SWITCHES: 200.0,
        Figure.RTT: 400.0,  # of the two sockets that carried data; one is new
        Figure.THROUGHPUT: 2_000_000.0,
    }


@pytest.mark.parametrize(
    ("field", "unknown"),
    [
        ("busy_ns", {Figure.CPU_PER_PACKET, Figure.CPU_PER_BYTE}),
        ("network_ns", {Figure.NETWORK_CPU, Figure.NETWORK_CPU_PER_BYTE}),
        ("napi_ns", {Figure.NETWORK_CPU, Figure.NETWORK_CPU_PER_BYTE}),
        ("application_ns", {Figure.APPLICATION_CPU, Figure.APPLICATION_CPU_PER_BYTE}),
        ("interrupts", {Figure.INTERRUPTS}),
        ("handoffs", {Figure.HANDOFFS}),
        ("switches", {Figure.SWITCHES}),
        ("reads", {Figure.READ_LOCALITY}),
        ("sockets", {Figure.RTT}),
        ("bytes", {*PER_BYTE, Figure.THROUGHPUT}),
    ],
)
@pytest.mark.parametrize("at", ["begin", "end"])
def test_what_the_machine_does_not_say_is_unknown_and_nothing_else(
    field: str, unknown: set[Figure], at: str
) -> None:
    nothing: dict[str, Any] = {field: None}
    before = replace(BEFORE, **nothing) if at == "begin" else BEFORE
    now = replace(NOW, **nothing) if at == "end" else NOW
    said = figures(before, now)
    assert {figure for figure, value in said.items() if value is None} == unknown


def test_without_packets_nothing_is_said_per_packet() -> None:
    idle = figures(BEFORE, replace(NOW, packets=BEFORE.packets, bytes=BEFORE.bytes))
    assert idle[Figure.CPU_PER_PACKET] is idle[Figure.HANDOFFS] is None
    assert idle[Figure.CPU_PER_BYTE] is None
    assert idle[Figure.THROUGHPUT] == 0.0
    assert idle[Figure.DAEMON_CPU] == 0.001
    anew = figures(BEFORE, replace(NOW, packets=5))  # the counters of a driver that came again
    assert (anew[Figure.CPU_PER_PACKET], anew[Figure.CPU_PER_BYTE]) == (None, 5.0)


def test_a_thread_or_cpu_that_is_only_in_one_reading_does_not_count() -> None:
    """All that it ever ran would."""
    said = figures(BEFORE, replace(NOW, application_ns={41: 2_000_000, 77: 10**12}))
    assert said[Figure.APPLICATION_CPU] == 500.0
    busy = {**(NOW.busy_ns or {}), 2: 10**12}
    assert figures(BEFORE, replace(NOW, busy_ns=busy))[Figure.CPU_PER_BYTE] == 5.0


def test_a_machine_that_only_receives_has_no_round_trip_time_and_no_verdict_by_it() -> None:
    """The kernel still says the time of the handshake; a connection of this slot has one, too."""
    sockets = {**(BEFORE.sockets or {}), 3: SocketRtt(0, 700), 4: SocketRtt(1, 800)}
    slot = figures(BEFORE, replace(NOW, sockets=sockets))
    assert slot[Figure.RTT] is None
    pairs = [({**slot, Figure.CPU_PER_BYTE: 4 + n / 100}, slot) for n in range(9)]
    found = compare("eth0", pairs)
    assert found.verdict is Effect.BETTER
    assert found.sentence.endswith("round trip time is not known")
    (shown,) = (each for each in found.figures if each.figure is Figure.RTT)
    assert (shown.pairs, shown.armed, shown.verdict) == (0, None, Effect.UNKNOWN)


def test_what_traffic_costs_is_not_what_else_runs() -> None:
    """Softirqs 2 ms, the NAPI thread 3 ms, the applications 2 ms, atfnd 2 ms; 4 MB."""
    assert traffic_cpu_per_byte(figures(BEFORE, NOW)) == 9e6 / 4e6
    assert traffic_cpu_per_byte(figures(BEFORE, replace(NOW, busy_ns={0: 10**12}))) == 9e6 / 4e6
    for part in ("network_ns", "napi_ns", "application_ns", "bytes"):
        nothing: dict[str, Any] = {part: None}
        assert traffic_cpu_per_byte(figures(BEFORE, replace(NOW, **nothing))) is None
    assert traffic_cpu_per_byte(figures(NOW, NOW)) is None
