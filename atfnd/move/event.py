# SPDX-License-Identifier: GPL-2.0-or-later
"""The events that the machine of the moves takes. Times are CLOCK_MONOTONIC nanoseconds. Pure
values."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model import Action, ActionKind, FlowKey, Outcome
from atfnd.move.port import Port
from atfnd.move.verdict import Mode

__all__ = [
    "Asleep",
    "Disturbed",
    "Established",
    "Event",
    "EvidenceLost",
    "FlowClosed",
    "HandedOn",
    "HoldLost",
    "PortChanged",
    "QueueHeld",
]
__all__ += [
    "Idle",
    "Polled",
    "Released",
    "Reset",
    "Seen",
    "Subject",
    "TimerDue",
    "Violated",
    "Wanted",
]
__all__ += ["Written"]

Subject = FlowKey | int  # what is moved: a flow, or a queue to another CPU


class Wanted(NamedTuple):
    """A decision: this action, in this mode.

    `origins` are the queues that the flow's packets come through before it: the rule's queue, or
    without a rule the one that RSS gives them (for a key that is open to any remote: all queues of
    RSS). `rss` are the queues they come through while there is no rule. For a queue's CPU: that one
    queue.
    """

    action: Action
    mode: Mode
    origins: frozenset[int] | None = None  # None: not known
    rss: frozenset[int] | None = None  # None: not known
    live: bool = True  # its socket lives; of a queue: it delivers
    first_data_ns: int | None = None  # no data can come before this; None: data may be in flight
    cookie: int | None = None  # of the flow's socket, by which its packets are watched

    @property
    def subject(self) -> Subject:
        """ValueError: the action is about neither a flow nor a queue."""
        subject = self.action.key if self.action.key is not None else self.action.queue
        if subject is None:
            raise ValueError(f"neither a flow nor a queue: {self.action}")
        return subject

    @property
    def targets(self) -> frozenset[int] | None:
        """The queues its packets come through afterwards. None: not known."""
        if self.action.kind is ActionKind.DELETE:
            return self.rss
        if self.action.kind is ActionKind.QUEUE_CPU:
            return self.origins
        return None if self.action.new is None else frozenset({self.action.new})


class PortChanged(NamedTuple):
    """The NIC has changed: this is its present state."""

    port: Port


class Idle(NamedTuple):
    """No packet of a watched flow was delivered since."""

    key: FlowKey
    since_ns: int


class QueueHeld(NamedTuple):
    """The queue is quiesced: from `at_ns` on its NAPI does not poll."""

    queue: int
    at_ns: int


class HoldLost(NamedTuple):
    """The hold was refused, ran into its own deadline or died; its queue polls again."""

    queue: int
    why: str


class Released(NamedTuple):
    """The answer to Release. `unbroken`: the hold was in force until then."""

    queue: int
    unbroken: bool


class Written(NamedTuple):
    """The answer to Write: its result, and the instants between which it was carried out."""

    outcome: Outcome
    began_ns: int  # T0
    done_ns: int  # T1


class Polled(NamedTuple):
    """A NAPI poll ended (tracepoint napi:napi_poll)."""

    queue: int
    ended_ns: int
    work: int
    budget: int


class Asleep(NamedTuple):
    """The thread that polls this queue slept at `at_ns`, with nothing in its ring or in GRO."""

    queue: int
    at_ns: int


class HandedOn(NamedTuple):
    """The backlogs of all CPUs have delivered what they had been given at `at_ns`."""

    at_ns: int


class Seen(NamedTuple):
    """A packet of a watched flow was delivered through a queue (of a queue: on its CPU), last at
    `at_ns`."""

    subject: Subject
    queue: int
    at_ns: int


class Violated(NamedTuple):
    """Packets of a watched flow were delivered through an old ring, or one in between, after the
    first through the new one: their number, and when the last was delivered."""

    key: FlowKey
    packets: int
    at_ns: int


class Disturbed(NamedTuple):
    """Something other than our filter decides where this flow goes now. Another program deleted or
    changed its filter, or the NIC lost it: either the filter is not as it was written (the answer
    to Reread), or packets came through the new queue before the write."""

    key: FlowKey


class EvidenceLost(NamedTuple):
    """Telemetry was lost: any event may be missing."""


class Reset(NamedTuple):
    """The NIC was reset, went down or changed channels: rings are new, rules may be gone."""


class Established(NamedTuple):
    """A connection of this flow was established: its first data were sent after `at_ns`. For a key
    that is open to any remote it is one of many connections, and is reported only if it came
    through an old ring: its data may be in both rings when a write was under way (`at_ns` None)."""

    key: FlowKey
    at_ns: int | None


class FlowClosed(NamedTuple):
    """The flow's socket was closed."""

    key: FlowKey


class TimerDue(NamedTuple):
    """Time has passed (`device.due_ns`)."""


Event = (
    Wanted | PortChanged | Idle | QueueHeld | HoldLost | Released | Written | Polled | Asleep
    | HandedOn | Seen | Violated | Disturbed | EvidenceLost | Reset | Established | FlowClosed
    | TimerDue
)  # fmt: skip
