# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole hold: park, do something, settle, let go."""

from __future__ import annotations

import time
from collections.abc import Callable

from atfnd.model import Queue
from atfnd.observe.transit import Held, Transit
from atfnd.program.hold import Hold

__all__ = ["PIPE_NS", "under_hold"]

PIPE_NS = 20_000
LATE_NS = 10**9


def under_hold(
    transit: Transit, a: Queue, b: Queue, what: Callable[[], object], limit_ns: int
) -> Held:
    """Park `b`, do `what`, wait until `a` is drained. OSError: it cannot be parked."""
    until_ns = time.monotonic_ns() + limit_ns
    hold = Hold(transit, [a], b, until_ns)
    try:
        what()
        hold.settle(time.monotonic_ns() + PIPE_NS)
        assert hold.settled(until_ns + LATE_NS)
    finally:
        held = hold.let_go()
    return held
