# SPDX-License-Identifier: GPL-2.0-or-later
"""Carries out what the machine of the moves asks for, and gives it the results.

The machine (`device.step`) is pure; `MoveActuator` does what it cannot: reach the kernel, and read
the clock. The mover writes nothing: it yields an action when its turn has come, and its caller
writes it. A hold is short (T_hold_max), so while one is in force the mover waits for its evidence
and does nothing else. Whatever goes wrong, a quiesced queue is released (ordering.md I7).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Generator, Sequence
from typing import Protocol

from atfnd.model import Action, FlowKey, Outcome
from atfnd.move import device as machine
from atfnd.move.command import (
    Command,
    DrainEvidence,
    Ended,
    Hold,
    Release,
    Reread,
    Unwatch,
    Watch,
    Write,
)
from atfnd.move.device import NicMoves
from atfnd.move.event import Disturbed, Event, HoldLost, QueueHeld, Released, TimerDue, Written
from atfnd.move.transition import Phase

__all__ = ["MoveActuator", "Mover", "Steps"]

Steps = Generator[Action, Outcome, list[Outcome | Ended]]


class MoveActuator(Protocol):
    """The kernel, for one NIC, besides writes."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        """Quiesce a queue's NAPI until `until_ns` at most; the hold has a deadline of its own.
        Returns the instant it was quiesced, once the queues `drains` were seen to deliver after it.
        OSError: it cannot be quiesced, or they stand still."""

    def in_force(self, queue: int) -> bool:
        """The queue has been quiesced since `hold` returned."""

    def release(self, queue: int) -> bool:
        """Let the queue be polled. Returns whether it was quiesced until now."""

    def watch(
        self,
        key: FlowKey,
        origins: frozenset[int],
        targets: frozenset[int],
        through: frozenset[int],
        cookie: int | None,
    ) -> None:
        """From now on, report Idle, Seen and Violated for this flow."""

    def unwatch(self, key: FlowKey) -> None: ...

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        """The filter at `location` leads this flow to `queue`; True, too, if the NIC does not
        say."""

    def delivered_ns(self, key: FlowKey) -> int | None:
        """When a watched flow was last delivered a packet; None: not known."""

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None:
        """From now on, until nothing is quiesced, report Polled and Asleep for this queue; with
        `hands_on` also HandedOn, once every such queue has drained."""

    def evidence(self, until_ns: int) -> Sequence[Event]:
        """What was observed since the last call; waits for it until `until_ns` at most."""


class Mover:
    """The moves of one NIC, from what is wanted to how it ended."""

    def __init__(self, actuator: MoveActuator, device: NicMoves) -> None:
        self.device = device
        self.actuator = actuator
        self._events: deque[Event] = deque()
        self._quiesced: set[int] = set()
        self._said: list[Outcome | Ended] = []

    def due_ns(self) -> int | None:
        """When it wants a Tick. None: nothing waits for a time."""
        return machine.due_ns(self.device)

    def waits_for_gap(self) -> bool:
        """Some move waits for its flow's next pause, which may be short."""
        return any(move.phase is Phase.ARM_GAP for move in self.device.live.values())

    def steps(self, *events: Event) -> Steps:
        """Take events into account and do what follows, to the end of any hold. Yields each action
        when it is to be written, and wants its outcome; a refusal is an outcome. Returns the writes
        that were tried and the moves that ended, in order. Passes on what `MoveActuator` raises.
        However it ends, nothing is left quiesced."""
        self._events.extend(events)
        self._said = []
        try:
            while self._events or self._quiesced:
                if not self._events:
                    until_ns = self.due_ns() or self.actuator.now_ns()
                    self._events.extend(self.actuator.evidence(until_ns) or (TimerDue(),))
                if commands := self._step(self._events.popleft()):
                    yield from self._carry_out(commands)
        except BaseException:
            self._events.clear()
            self.release_all()
            raise
        return self._said

    def release_all(self) -> None:
        """Release whatever is quiesced, without telling the machine: the end of the daemon."""
        quiesced, self._quiesced = self._quiesced, set()
        for queue in quiesced:
            self.actuator.release(queue)

    def _step(self, event: Event) -> Sequence[Command]:
        if isinstance(event, HoldLost):
            self._quiesced.discard(event.queue)
        self.device, commands = machine.step(self.device, event, self.actuator.now_ns())
        return commands

    def _carry_out(self, commands: Sequence[Command]) -> Generator[Action, Outcome, None]:
        later, self._events = self._events, deque()
        for command in commands:
            if isinstance(command, Write):
                yield from self._write(command)
            else:
                self._obey(command)
        # An answer goes to the move that asked for it, before others begin.
        answers, self._events = self._events, later
        self._events.extendleft(reversed(answers))

    def _obey(
        self, command: Watch | Unwatch | Hold | Release | Reread | DrainEvidence | Ended
    ) -> None:
        match command:
            case Hold():
                self._hold(command)
            case Release(queue):
                unbroken = self.actuator.release(queue)
                self._quiesced.discard(queue)
                self._events.append(Released(queue, unbroken))
            case DrainEvidence(queue, from_ns, hands_on):
                self.actuator.drain_evidence(queue, from_ns, hands_on)
            case Watch():
                self.actuator.watch(*command)
            case Unwatch(key):
                self.actuator.unwatch(key)
            case Reread(key, location, queue):
                if not self.actuator.stands(key, location, queue):
                    self._events.append(Disturbed(key))
            case Ended():
                self._said.append(command)

    def _hold(self, hold: Hold) -> None:
        queue = hold.queue
        self._quiesced.add(queue)
        try:
            at_ns = self.actuator.hold(queue, hold.until_ns, hold.drains)
        except OSError as refusal:
            self._quiesced.discard(queue)
            self._events.append(HoldLost(queue, refusal.strerror or str(refusal)))
        else:
            self._events.append(QueueHeld(queue, at_ns))

    def _write(self, write: Write) -> Generator[Action, Outcome, None]:
        began_ns = self.actuator.now_ns()
        if (why := self._why_not_now(write)) is not None:
            action = write.action
            outcome = Outcome(action, began_ns, errno.ECANCELED, action.location, why)
        else:
            outcome = yield write.action
            self._said.append(outcome)
        self._events.append(Written(outcome, began_ns, self.actuator.now_ns()))

    def _why_not_now(self, write: Write) -> str | None:
        """The last look before a write: do its conditions still hold?"""
        key, since_ns = write.action.key, write.unless_after_ns
        if key is None:
            return None
        move = self.device.live.get(key)
        if move is not None and not all(self.actuator.in_force(queue) for queue in move.held):
            return "a hold ended before the write"
        if since_ns is not None:
            last_ns = self.actuator.delivered_ns(key)
            if last_ns is None or last_ns > since_ns:
                return "it was no longer idle"
        return None
