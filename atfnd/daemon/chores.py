# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop does without being woken, at a bounded cost; and what it does with a bug, or where
the kernel has no room."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any, NamedTuple

__all__ = ["Pace", "Rounds", "Shortage", "bugs", "regularly"]

_SAID_EVERY_S = 60.0
# No descriptor, no memory, or a dump that keeps changing: it passes.
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EINTR}


class Pace(NamedTuple):
    """How often a chore runs."""

    every_s: float = 2.0  # while it is cheap
    share: float = 0.0005  # of one core that it may cost
    at_least_every_s: float = 20.0  # whatever it costs: what a NIC lost is put back by then

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Pace:
        """ATFND_PACE: so many times as often as usual, for tests that wait for a chore."""
        times = float(environment.get("ATFND_PACE", "1"))
        usual = cls()
        return cls(usual.every_s / times, usual.share * times, usual.at_least_every_s / times)


class Shortage:
    """The kernel ran short of a resource. `say` logs why, at most once a minute. A re-sync makes up
    for what was missed, once the shortage is `over`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said_s, self._count = say, -inf, 0
        self._missed = False

    def take(self, error: BaseException) -> bool:
        """Note it, if it is a shortage. False: it is something else."""
        if not isinstance(error, OSError) or error.errno not in _SHORTAGES:
            return False
        self._missed = True
        self._count += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= _SAID_EVERY_S:
            times = f", {self._count} times since the last message" if self._count > 1 else ""
            self._say(f"{os.strerror(error.errno or 0)}{times}")
            self._said_s, self._count = now_s, 0
        return True

    def over(self) -> bool:
        """Something was missed since the last call."""
        missed, self._missed = self._missed, False
        return missed


async def regularly(
    chore: Callable[[], None],
    pressing: Callable[[], bool] | None = None,
    pace: Pace = Pace(),  # noqa: B008, it is immutable
    short: Callable[[], bool] = lambda: False,
) -> None:
    """Every `every_s`, or less often when one run costs more than its share, within bounds; at the
    upper bound while the daemon is `short` of CPU time. While it is `pressing`, every `every_s`,
    whatever a run costs: that must have an end."""
    usual_s, share, at_least_every_s = pace
    every_s = min(usual_s, at_least_every_s)
    while True:
        await asyncio.sleep(every_s)
        began_s = time.thread_time()
        chore()
        cost_s = time.thread_time() - began_s
        hurry = pressing is not None and pressing()
        wait_s = at_least_every_s if short() else max(usual_s, cost_s / share)
        every_s = min(usual_s if hurry else wait_s, at_least_every_s)


class Rounds:
    """A round is complete when each of its chores has run to its end since the previous round; then
    `completed` is called. With `within_s` a round takes less than that, whatever a chore costs. A
    chore that meets a shortage counts as run: it is tried again at its next turn."""

    def __init__(
        self,
        completed: Callable[[], None],
        within_s: float | None,
        shortage: Shortage,
        pace: Pace = Pace(),  # noqa: B008, it is immutable
        short: Callable[[], bool] = lambda: False,
    ) -> None:
        self._completed, self._shortage, self._short = completed, shortage, short
        bounds = (pace.at_least_every_s, *(() if within_s is None else (within_s / 3,)))
        self._pace = pace._replace(at_least_every_s=min(bounds))
        self._chores = 0
        self._left: set[int] = set()

    def regularly(
        self, chore: Callable[[], None], pressing: Callable[[], bool] | None = None
    ) -> Coroutine[Any, Any, None]:
        """As the function of this name, and as a part of every round. A chore that may be
        `pressing` is not slowed down while the daemon is short of CPU time: what it compares are
        windows of equal length, and its own share limits it."""
        ran = self.part()

        def run() -> None:
            try:
                chore()
            except OSError as error:
                if not self._shortage.take(error):
                    raise
            ran()

        short = self._short if pressing is None else lambda: False
        return regularly(run, pressing, self._pace, short)

    def part(self) -> Callable[[], None]:
        """One more chore that rounds wait for; to be called whenever it has run."""
        number, self._chores = self._chores, self._chores + 1
        self._left.add(number)

        def ran() -> None:
            self._left.discard(number)
            if not self._left:
                self._left.update(range(self._chores))
                self._completed()

        return ran


def bugs(loop: asyncio.AbstractEventLoop, shortage: Shortage) -> asyncio.Future[None]:
    """Fails with what a reader or a timer of the loop raises; asyncio alone would only log it. A
    shortage is none."""
    bug: asyncio.Future[None] = loop.create_future()

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and shortage.take(error):
            return
        if "handle" in context and error is not None and not bug.done():
            bug.set_exception(error)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
    return bug
