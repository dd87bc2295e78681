# SPDX-License-Identifier: GPL-2.0-or-later
"""What proves that a ring has delivered all that was classified to it. Pure.

The end of a poll says nothing about packets that came while it ran, and the tracepoint reports only
ends (ordering.md F3). One NAPI polls in one place at a time (NAPI_STATE_SCHED), so of two ends
after an instant the second belongs to a poll that began after it. Events lost in between change
nothing. A NAPI thread sleeps only after it has looked at its ring again, and the ring was empty.

What a drained ring handed on (RFS) waits in the backlogs of CPUs (`softnet_data`, net/core/dev.c)
until each of them has delivered what it had been given after the ring had drained.
"""

from __future__ import annotations

from typing import NamedTuple

from atfnd.move.event import Asleep, HandedOn, Polled

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
    """Rings that must prove it. `marked`: one end was seen, so the next poll began after it.
    `hands_on`: those of them whose packets then wait in backlogs; `drained_ns`, when the last one
    of these was drained; `handed_on`: and what it had handed on was delivered."""

    waiting: frozenset[int] = frozenset()
    from_ns: int = 0
    marked: frozenset[int] = frozenset()
    hands_on: frozenset[int] = frozenset()
    drained_ns: int = 0
    handed_on: bool = True

    @property
    def over(self) -> bool:
        """Everything is delivered."""
        return not self.waiting and self.handed_on

    def slept(self, sleep: Asleep) -> Drain:
        """With a look taken into account that found its thread asleep."""
        if sleep.at_ns < self.from_ns:
            return self
        return self._drained(sleep.queue, sleep.at_ns)

    def after(self, poll: Polled) -> Drain:
        """With one more poll taken into account."""
        if poll.queue not in self.waiting or poll.ended_ns < self.from_ns:
            return self
        if began(self, poll) and drained(poll):
            return self._drained(poll.queue, poll.ended_ns)
        return self._replace(marked=self.marked | {poll.queue})

    def passed_on(self, delivered: HandedOn) -> Drain:
        """With what the backlogs have delivered taken into account: it counts if the rings had
        drained before."""
        if self.waiting or delivered.at_ns <= self.drained_ns:
            return self
        return self._replace(handed_on=True)

    def _drained(self, queue: int, at_ns: int) -> Drain:
        drained_ns, handed_on = self.drained_ns, self.handed_on
        if queue in self.waiting & self.hands_on:
            drained_ns, handed_on = max(drained_ns, at_ns), False
        waiting = self.waiting - {queue}
        return self._replace(waiting=waiting, drained_ns=drained_ns, handed_on=handed_on)


def began(drain: Drain, poll: Polled) -> bool:
    """The poll is known to have begun after `from_ns`."""
    return poll.queue in drain.marked
