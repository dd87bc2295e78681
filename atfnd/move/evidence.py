# SPDX-License-Identifier: GPL-2.0-or-later
"""What proves that a ring has delivered all that was classified to it. Pure.

The end of a poll says nothing about packets that came while it ran, and the tracepoint reports only
ends (ordering.md F3). One NAPI polls in one place at a time (NAPI_STATE_SCHED), so of two ends
after an instant the second belongs to a poll that began after it. Events lost in between change
nothing. A NAPI thread sleeps only after it has looked at its ring again, and the ring was empty.
"""

from __future__ import annotations

from typing import NamedTuple

from atfnd.move.event import Asleep, Polled

__all__ = ["Drain", "began", "drained", "opens_ns"]


def opens_ns(done_ns: int, pipe_ns: int) -> int:
    """The instant from which evidence counts: the write has returned, and all that was classified
    to the old ring before has reached it."""
    return done_ns + pipe_ns


def drained(poll: Polled) -> bool:
    """This poll left its ring and its GRO list empty (F1). A driver whose NAPI must move to another
    CPU returns budget - 1 with packets left (F2: i40e, mlx4, mlx5, gve)."""
    return poll.work <= poll.budget - 2


class Drain(NamedTuple):
    """Rings that must prove it. `marked`: one end was seen, so the next poll began after it."""

    waiting: frozenset[int] = frozenset()
    from_ns: int = 0
    marked: frozenset[int] = frozenset()

    def slept(self, sleep: Asleep) -> Drain:
        """With a look taken into account that found its thread asleep."""
        if sleep.at_ns < self.from_ns:
            return self
        return self._replace(waiting=self.waiting - {sleep.queue})

    def after(self, poll: Polled) -> Drain:
        """With one more poll taken into account."""
        if poll.queue not in self.waiting or poll.ended_ns < self.from_ns:
            return self
        if began(self, poll) and drained(poll):
            return self._replace(waiting=self.waiting - {poll.queue})
        return self._replace(marked=self.marked | {poll.queue})


def began(drain: Drain, poll: Polled) -> bool:
    """The poll is known to have begun after `from_ns`."""
    return poll.queue in drain.marked
