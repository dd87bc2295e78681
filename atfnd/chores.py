# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop does without being woken, at a bounded cost; and what it does with a bug."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

__all__ = ["bugs", "regularly"]

_EVERY_S = 2.0  # while a chore is cheap
_SHARE = 0.0005  # of one core that each may cost
_AT_LEAST_EVERY_S = 20.0  # whatever it costs: what a NIC lost is put back by then


async def regularly(chore: Callable[[], None], pressing: Callable[[], bool] | None = None) -> None:
    """Every two seconds, or less often when one run costs more than its share, within bounds. While
    it is `pressing`, every two seconds, whatever a run costs: that must have an end."""
    every_s = _EVERY_S
    while True:
        await asyncio.sleep(every_s)
        began_s = time.thread_time()
        chore()
        cost_s = time.thread_time() - began_s
        hurry = pressing is not None and pressing()
        every_s = _EVERY_S if hurry else min(max(_EVERY_S, cost_s / _SHARE), _AT_LEAST_EVERY_S)


def bugs(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Fails with what a reader or a timer of the loop raises; asyncio alone would only log it."""
    bug: asyncio.Future[None] = loop.create_future()

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and error is not None and not bug.done():
            bug.set_exception(error)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
    return bug
