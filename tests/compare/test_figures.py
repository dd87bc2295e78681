# SPDX-License-Identifier: GPL-2.0-or-later
"""The figures of one slot, from two readings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.compare.figures import figures, traffic_cpu_per_byte
from atfnd.compare.verdict import compare
from atfnd.model import Effect, Figure, ReadBytes, SlotReading, SocketRtt

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


def test_a_counter_that_began_anew_is_unknown() -> None:
    """A driver was loaded again: its counters are those of another device."""
    said = figures(BEFORE, replace(NOW, packets=5))
    assert said[Figure.CPU_PER_PACKET] is None
    assert said[Figure.CPU_PER_BYTE] == 5.0


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
