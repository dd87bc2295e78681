# SPDX-License-Identifier: GPL-2.0-or-later
"""A token bucket for moves a second, as one instant. Pure.

The generic cell rate algorithm (ITU-T I.371, annex A): a move is allowed while the theoretical
arrival time of the next one is no more than the burst ahead.
"""

from __future__ import annotations

from atfnd.move.timer import Times

__all__ = ["half_full_ns", "spend", "spendable_ns"]


def spendable_ns(arrival_ns: int, times: Times) -> int:
    """When the next move is allowed."""
    return arrival_ns - (times.burst - 1) * times.move_every_ns


def half_full_ns(spendable_ns: int, times: Times) -> int:
    """When those that wait for the next move may begin several at once: looking at them costs."""
    return spendable_ns + times.burst // 2 * times.move_every_ns


def spend(arrival_ns: int, times: Times, now_ns: int) -> int:
    """The theoretical arrival time after a move now."""
    return max(arrival_ns, now_ns) + times.move_every_ns
