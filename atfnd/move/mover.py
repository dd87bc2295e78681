# SPDX-License-Identifier: GPL-2.0-or-later
"""Carries out what the machine of the moves asks for, and tells it what came of it.

The machine (`device.step`) is pure; `Hands` is what it cannot do: the kernel behind it, and the
clock. A hold is short (T_hold_max), so while one is in force nothing else is done: its evidence is
waited for right here. Whatever goes wrong, what is parked is released (ordering.md I7).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
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
from atfnd.move.device import Device
from atfnd.move.event import Disturbed, Event, Held, HoldLost, Released, Tick, Written
from atfnd.move.transition import Phase

__all__ = ["Hands", "Mover"]


class Hands(Protocol):
    """The kernel, for one NIC."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""

    def write(self, action: Action) -> Outcome:
        """Carry out an action (program.apply). A refusal is an outcome."""

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        """Park a queue's NAPI, at most until then, by a deadline of its own. Returns the instant it
        was parked, once the queues `drains` were seen to deliver after it. OSError: it cannot be,
        or they stand still."""

    def in_force(self, queue: int) -> bool:
        """The queue has been parked since `hold` returned."""

    def release(self, queue: int) -> bool:
        """Let the queue be polled. Returns whether it was parked until now."""

    def watch(
        self,
        key: FlowKey,
        origins: frozenset[int],
        targets: frozenset[int],
        through: frozenset[int],
    ) -> None:
        """From now on, tell Idle, Seen and Violated of this flow."""

    def unwatch(self, key: FlowKey) -> None: ...

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        """The filter at `location` is this flow's, to `queue`; True too where the NIC does not
        say."""

    def delivered_ns(self, key: FlowKey) -> int | None:
        """When a watched flow was last delivered a packet; None: not known."""

    def drain_evidence(self, queue: int, from_ns: int) -> None:
        """From now on, until nothing is parked, tell Polled and Asleep of this queue."""

    def evidence(self, until_ns: int) -> Sequence[Event]:
        """What was observed since the last call; waits for some, at most until then."""


class Mover:
    """The moves of one NIC, from what is wanted to how it ended."""

    def __init__(self, hands: Hands, device: Device) -> None:
        self.device = device
        self.hands = hands
        self._events: deque[Event] = deque()
        self._parked: set[int] = set()
        self._said: list[Outcome | Ended] = []

    def due_ns(self) -> int | None:
        """When to tell it Tick. None: nothing waits for a time."""
        return machine.due_ns(self.device)

    def waits_for_gap(self) -> bool:
        """Some flow's next pause is waited for, and may be short."""
        return any(move.phase is Phase.ARM_GAP for move in self.device.live.values())

    def tell(self, *events: Event) -> list[Outcome | Ended]:
        """Take events into account and do what follows, to the end of any hold. Returns writes that
        were tried and moves that ended, in order. What `Hands` raises is raised, nothing parked."""
        self._events.extend(events)
        self._said = []
        try:
            while self._events or self._parked:
                if not self._events:
                    until_ns = self.due_ns() or self.hands.now_ns()
                    self._events.extend(self.hands.evidence(until_ns) or (Tick(),))
                self._step(self._events.popleft())
        except BaseException:
            self._events.clear()
            self.let_go()
            raise
        return self._said

    def let_go(self) -> None:
        """Release whatever is parked, without a word to the machine: the end of the daemon."""
        parked, self._parked = self._parked, set()
        for queue in parked:
            self.hands.release(queue)

    def _step(self, event: Event) -> None:
        if isinstance(event, HoldLost):
            self._parked.discard(event.queue)
        self.device, commands = machine.step(self.device, event, self.hands.now_ns())
        if not commands:
            return
        later, self._events = self._events, deque()
        for command in commands:
            self._carry_out(command)
        # An answer goes to the move that asked, before others begin.
        answers, self._events = self._events, later
        self._events.extendleft(reversed(answers))

    def _carry_out(self, command: Command) -> None:
        match command:
            case Write():
                self._write(command)
            case Hold():
                self._hold(command)
            case Release(queue):
                unbroken = self.hands.release(queue)
                self._parked.discard(queue)
                self._events.append(Released(queue, unbroken))
            case DrainEvidence(queue, from_ns):
                self.hands.drain_evidence(queue, from_ns)
            case Watch(key, origins, targets, through):
                self.hands.watch(key, origins, targets, through)
            case Unwatch(key):
                self.hands.unwatch(key)
            case Reread(key, location, queue):
                if not self.hands.stands(key, location, queue):
                    self._events.append(Disturbed(key))
            case Ended():
                self._said.append(command)

    def _hold(self, hold: Hold) -> None:
        queue = hold.queue
        self._parked.add(queue)
        try:
            at_ns = self.hands.hold(queue, hold.until_ns, hold.drains)
        except OSError as refusal:
            self._parked.discard(queue)
            self._events.append(HoldLost(queue, refusal.strerror or str(refusal)))
        else:
            self._events.append(Held(queue, at_ns))

    def _write(self, write: Write) -> None:
        began_ns = self.hands.now_ns()
        if (why := self._why_not_now(write)) is not None:
            action = write.action
            outcome = Outcome(action, began_ns, errno.ECANCELED, action.location, why)
        else:
            outcome = self.hands.write(write.action)
            self._said.append(outcome)
        self._events.append(Written(outcome, began_ns, self.hands.now_ns()))

    def _why_not_now(self, write: Write) -> str | None:
        """The last look before a write: is what it was decided on still so?"""
        key, since_ns = write.action.key, write.unless_after_ns
        if key is None:
            return None
        move = self.device.live.get(key)
        if move is not None and not all(self.hands.in_force(queue) for queue in move.held):
            return "a hold was over before the write"
        if since_ns is not None:
            last_ns = self.hands.delivered_ns(key)
            if last_ns is None or last_ns > since_ns:
                return "it was idle no longer"
        return None
