# SPDX-License-Identifier: GPL-2.0-or-later
"""What the machine of the moves asks for. Each command is carried out in order, at once. Pure
values."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model import Action, FlowKey
from atfnd.model.reason import Why
from atfnd.move.event import Subject
from atfnd.move.verdict import Mechanism, Verdict

__all__ = ["Command", "DrainEvidence", "Ended", "Hold", "Release"]
__all__ += ["Reread", "Unwatch", "Watch", "Write"]


class Watch(NamedTuple):
    """Report Idle, Seen and Violated for this flow: `origins` are its old rings, `targets` the new
    ones, `through` those in between (RSS's rings, where its filter is deleted and added). `cookie`
    is its socket's; None: not known, so that it cannot be watched."""

    key: FlowKey
    origins: frozenset[int]
    targets: frozenset[int]
    through: frozenset[int] = frozenset()
    cookie: int | None = None


class Unwatch(NamedTuple):
    key: FlowKey


class Reread(NamedTuple):
    """Answer Disturbed, at once, if the filter at `location` does not lead this flow to `queue`."""

    key: FlowKey
    location: int
    queue: int


class Hold(NamedTuple):
    """Quiesce a queue's NAPI, and answer Held once it is quiesced and `drains`, the rings that must
    drain meanwhile, were seen to deliver since; else HoldLost. The hold ends by itself at
    `until_ns`, whatever has happened to us (I7)."""

    queue: int
    until_ns: int
    drains: frozenset[int]


class Release(NamedTuple):
    """End a hold, and answer Released. A hold that has ended already gets the same answer."""

    queue: int


class Write(NamedTuple):
    """Carry out one action, and answer Written. ECANCELED, and no write: a hold of this move is not
    in force, or the flow was delivered a packet after `unless_after_ns`."""

    action: Action
    unless_after_ns: int | None = None


class DrainEvidence(NamedTuple):
    """Report Polled and Asleep for this queue, from `from_ns` on. `hands_on`: and HandedOn, once
    all queues that were asked for have drained."""

    queue: int
    from_ns: int
    hands_on: bool = False


class Ended(NamedTuple):
    """A wanted move ended: for the log, `explain` and the table. `barred`: no mechanism could be
    tried, and none can as long as the NIC and the flow stay as they are."""

    subject: Subject
    action: Action
    mechanism: Mechanism
    verdict: Verdict
    why: Why
    violations: int
    took_ns: int
    barred: bool = False


Command = Watch | Unwatch | Hold | Release | Reread | Write | DrainEvidence | Ended
