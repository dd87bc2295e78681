# SPDX-License-Identifier: GPL-2.0-or-later
"""Tells the engine what CPU time the daemon itself has used: all its threads, and its children.

Reads CLOCK_PROCESS_CPUTIME_ID and getrusage(2) of the children that were waited for, once a second.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable

from atfnd.engine.event import CpuSpent

__all__ = ["keep", "spent_ns"]

_EVERY_S = 1.0


def spent_ns() -> int:
    """Since the start of the process."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * 1e9)


async def keep(tell: Callable[[CpuSpent], object]) -> None:
    """Until it is cancelled. What the start took is not part of the account."""
    while True:
        tell(CpuSpent(spent_ns()))
        await asyncio.sleep(_EVERY_S)
