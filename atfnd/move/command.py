# SPDX-License-Identifier: GPL-2.0-or-later
"""What the machine of the moves asks for. Each is carried out in order, at once. Pure values."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model import Action, FlowKey
from atfnd.move.event import Subject
from atfnd.move.verdict import Mechanism, Verdict

__all__ = ["Command", "DrainEvidence", "Ended", "Hold", "Release"]
__all__ += ["Reread", "Unwatch", "Watch", "Write"]


class Watch(NamedTuple):
    """Tell Idle, Seen and Violated of this flow: `origins` are its old rings, `targets` the new,
    `through` those in between, RSS's, where its rule is deleted and added."""

    key: FlowKey
    origins: frozenset[int]
    targets: frozenset[int]
    through: frozenset[int] = frozenset()


class Unwatch(NamedTuple):
    key: FlowKey


class Reread(NamedTuple):
    """Answer Disturbed, at once, if the filter at `location` is not this flow's to `queue`."""

    key: FlowKey
    location: int
    queue: int


class Hold(NamedTuple):
    """Park a queue's NAPI, and answer Held once it is parked and `drains`, the rings that are to
    drain meanwhile, were seen to deliver since; else HoldLost. The hold ends by itself at
    `until_ns`, whatever became of us (I7)."""

    queue: int
    until_ns: int
    drains: frozenset[int]


class Release(NamedTuple):
    """End a hold, and answer Released. One that has ended already is answered the same."""

    queue: int


class Write(NamedTuple):
    """Carry out one action, and answer Written. ECANCELED without writing: a hold of this move is
    not in force, or the flow was delivered a packet after `unless_after_ns`."""

    action: Action
    unless_after_ns: int | None = None


class DrainEvidence(NamedTuple):
    """Tell Polled and Asleep of this queue, of what is at `from_ns` or later."""

    queue: int
    from_ns: int


class Ended(NamedTuple):
    """A wanted move ended: for the log, `explain` and the table."""

    subject: Subject
    action: Action
    mechanism: Mechanism
    verdict: Verdict
    why: str
    violations: int
    took_ns: int


Command = Watch | Unwatch | Hold | Release | Reread | Write | DrainEvidence | Ended
