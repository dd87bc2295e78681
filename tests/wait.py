# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting for a condition with a deadline: the only place in the tests that sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["EMULATED", "SLOWER", "until"]

T = TypeVar("T")
EMULATED = 5 if os.environ.get("ATFND_GUEST") else 1  # in the guest every CPU is an emulated one

# Deadlines are for a machine of its own; a worker of pytest-xdist shares it with others.
SLOWER = EMULATED * (2 if "PYTEST_XDIST_WORKER" in os.environ else 1)


def until(
    condition: Callable[[], T], what: str, deadline_s: float = 30.0, every_s: float = 0.01
) -> T:
    """Poll `condition` until it is truthy and return it; AssertionError at deadline. A look costs
    CPU time, which what is waited for needs, too: an emulated CPU looks more seldom."""
    deadline_s *= SLOWER
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what} (last: {value!r})")
        time.sleep(every_s * EMULATED)
    return value
