# SPDX-License-Identifier: GPL-2.0-or-later
"""Holds on a machine that takes its CPUs away: a hold is refused when its thread has not run within
half a millisecond, or the other queue was not seen to deliver. A virtual CPU may be gone longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from atfnd.model import Queue
from atfnd.observe.sockets.transit import HoldResult, Transit
from atfnd.program.quiesce import QueueHold
from tests.wait import SLOWER

__all__ = ["PIPE_NS", "hold_of", "patiently", "under_hold"]

PIPE_NS = 20_000
LATE_NS = 10**9
PATIENCE_S = 5.0 * SLOWER
T = TypeVar("T")


def patiently(
    hold: Callable[[], T],
    refusals: tuple[type[OSError], ...] = (TimeoutError, BlockingIOError),
) -> T:
    """Try a hold again while others have its CPU or that of a queue which has to deliver."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return hold()
        except refusals:
            if time.monotonic() > end_s:
                raise


def hold_of(transit: Transit, olds: Sequence[Queue], b: Queue, limit_ns: int) -> QueueHold:
    """Quiesce `b`, at most for `limit_ns`."""
    return patiently(lambda: QueueHold(transit, olds, b, time.monotonic_ns() + limit_ns))


def under_hold(
    transit: Transit, a: Queue, b: Queue, what: Callable[[], object], limit_ns: int
) -> HoldResult:
    """Quiesce `b`, do `what`, wait until `a` is drained. OSError: it cannot be quiesced."""
    hold = hold_of(transit, [a], b, limit_ns)
    until_ns = time.monotonic_ns() + limit_ns
    try:
        what()
        hold.settle(time.monotonic_ns() + PIPE_NS)
        assert hold.settled(until_ns + LATE_NS)
    finally:
        held = hold.release()
    return held
