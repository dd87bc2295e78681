# SPDX-License-Identifier: GPL-2.0-or-later
"""From the readings at the two ends of a slot to its figures. Pure.

A figure whose counters the machine does not give, or that is of nothing (no packet came), is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from atfnd.model import Figure, ReadBytes, SlotReading, SocketRtt

__all__ = ["Figures", "figures", "traffic_cpu_per_byte"]

_CONNECTED = SocketRtt(1, 0)  # nothing but its SYN is acknowledged

Figures = Mapping[Figure, float | None]


def figures(before: SlotReading, now: SlotReading) -> Figures:
    """What happened between two readings, and the round trip times at the end."""
    took_ns = now.at_ns - before.at_ns
    packets, carried = _grown(before.packets, now.packets), _grown(before.bytes, now.bytes)
    busy_ns = _sum_grown(before.busy_ns, now.busy_ns)
    softirq_ns = _sum_grown(before.network_ns, now.network_ns)
    napi_ns = _sum_grown(before.napi_ns, now.napi_ns)
    known = softirq_ns is not None and napi_ns is not None
    network_ns = (softirq_ns or 0) + (napi_ns or 0) if known else None
    application_ns = _sum_grown(before.application_ns, now.application_ns)

    def per_1000(count: int | None) -> float | None:
        return _ratio(None if count is None else 1000 * count, packets)

    return {
        Figure.READ_LOCALITY: _locality(before.reads, now.reads),
        Figure.CPU_PER_PACKET: _ratio(busy_ns, packets),
        Figure.CPU_PER_BYTE: _ratio(busy_ns, carried),
        Figure.NETWORK_CPU: _ratio(network_ns, packets),
        Figure.NETWORK_CPU_PER_BYTE: _ratio(network_ns, carried),
        Figure.APPLICATION_CPU: _ratio(application_ns, packets),
        Figure.APPLICATION_CPU_PER_BYTE: _ratio(application_ns, carried),
        Figure.DAEMON_CPU: _ratio(_grown(before.daemon_ns, now.daemon_ns), took_ns),
        Figure.INTERRUPTS: per_1000(_grown(before.interrupts, now.interrupts)),
        Figure.HANDOFFS: per_1000(_grown(before.handoffs, now.handoffs)),
        Figure.SWITCHES: per_1000(_grown(before.switches, now.switches)),
        Figure.RTT: _rtt_us(before.sockets, now.sockets),
        Figure.THROUGHPUT: _ratio(None if carried is None else carried * 10**9, took_ns),
    }


def traffic_cpu_per_byte(said: Figures) -> float | None:
    """Nanoseconds of network, applications and atfnd alone: whatever else runs meanwhile is not in
    it."""
    network, applications = (
        said[each] for each in (Figure.NETWORK_CPU_PER_BYTE, Figure.APPLICATION_CPU_PER_BYTE)
    )
    ours, carried = said[Figure.DAEMON_CPU], said[Figure.THROUGHPUT]
    if network is None or applications is None or ours is None or not carried:
        return None
    return network + applications + ours * 1e9 / carried


def _ratio(count: float | None, of: int | None) -> float | None:
    return None if count is None or not of else count / of


def _grown(before: int | None, now: int | None) -> int | None:
    """None as well: the counter began anew meanwhile."""
    if before is None or now is None or now < before:
        return None
    return now - before


def _sum_grown(before: Mapping[int, int] | None, now: Mapping[int, int] | None) -> int | None:
    """Of all that are in both readings: what began or ended meanwhile is left out."""
    if before is None or now is None:
        return None
    return sum(max(0, now[each] - before[each]) for each in before.keys() & now.keys())


def _locality(before: ReadBytes | None, now: ReadBytes | None) -> float | None:
    return None if before is None or now is None else now.since(before).share


def _rtt_us(
    before: Mapping[int, SocketRtt] | None, now: Mapping[int, SocketRtt] | None
) -> float | None:
    """The median over the sockets of which the peer acknowledged data meanwhile. That of the others
    is old: a socket that only receives has that of its handshake."""
    if before is None or now is None:
        return None
    sampled = [
        each.rtt_us
        for cookie, each in now.items()
        if each.rtt_us and each.acked > before.get(cookie, _CONNECTED).acked
    ]
    return float(median(sampled)) if sampled else None
