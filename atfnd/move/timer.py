# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a packet may be on its way through a ring: T_timer. Pure.

The paper's T_timer = (D - 1) / R_service is the time a full ring takes to be polled. It leaves out
interrupt moderation, descriptor write-back, the GRO hold, the pipe between classification and ring,
and rules that take effect later. How long a softirq waits is learned (docs/internals/ordering.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from atfnd.move.port import Port, Ring

__all__ = ["Times", "in_ms", "pipe_ns", "t_timer_ns"]

_RING = 2048  # descriptors, where the driver does not say: the largest default (ice)
_RX_USECS = 256  # where it does not say: the most that net_dim's profiles ask for
_SERVICE_PPS = 500_000.0  # before it was measured


@dataclass(frozen=True, slots=True)
class Times:
    """Every time the machine waits, in nanoseconds (ordering.md, start values)."""

    pipe_ns: int = 20_000  # classification to descriptor, without moderation
    hold_max_ns: int = 50_000_000  # typically 0.3 ms; a move that outlasts it may reorder
    arm_ns: int = 1_000_000_000  # how long a gap is waited for
    quiet_ns: int = 1_000_000_000  # from a socket's end to the delete of its filter
    verify_ns: int = 1_000_000_000  # how long packets are waited for
    late_ns: int = 50_000_000  # the least wait for packets that it overtook
    follow_ns: int = 1_000_000_000  # and so long on the new CPU
    hold_down_ns: int = 100_000_000  # between two moves of one flow, at least; doubled by strikes
    hold_down_max_ns: int = 60_000_000_000
    timer_max_ns: int = 100_000_000
    learn_ns: int = 1_000_000  # eta: a violation makes T_A longer by this
    epsilon: float = 1e-4  # violations a move that `bounded` settles at; strict: none
    move_every_ns: int = 1_000_000  # token bucket: time to earn a move
    burst: int = 16
    loan_linger_ns: int = 300_000_000  # what was put off is tried again after 0.1 s, then 0.2 s
    loan_max_ns: int = 2_000_000_000
    loan_rest_ns: int = 1_000_000_000  # until threads are borrowed again
    loan_refused_ns: int = 10_000_000_000


def pipe_ns(ring: Ring, times: Times) -> int:
    """T_pipe: from the instant a packet is classified until its descriptor can be polled, and a
    thread that sleeps has been woken for it."""
    usecs = _RX_USECS if ring.rx_usecs is None else ring.rx_usecs
    return times.pipe_ns + usecs * 1000 + ring.irq_ns


def t_timer_ns(ring: Ring, port: Port, times: Times) -> int:
    """The time after which a packet given to this ring has surely been delivered: the time for a
    full ring, and each delay before and after it, with moderation once for the interrupt and once
    (in T_pipe) for the write-back."""
    size = _RING if ring.size is None else ring.size
    drain_ns = (size - 1) / (ring.service_pps or _SERVICE_PPS) * 1e9
    usecs = _RX_USECS if ring.rx_usecs is None else ring.rx_usecs
    late_ns = port.programming_ns if port.asynchronous else 0
    gro_ns = ring.gro_flush_timeout_ns or 0
    waits_ns = usecs * 1000 + gro_ns + late_ns
    return min(round(drain_ns) + waits_ns + pipe_ns(ring, times), times.timer_max_ns)


def in_ms(time_ns: int) -> str:
    """A time in a sentence: `0.285 ms`."""
    return f"{time_ns / 1e6:.3f} ms"
