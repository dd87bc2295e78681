# SPDX-License-Identifier: GPL-2.0-or-later
"""How a flow may be moved, by which means it is, and how a move ended. Pure values."""

from __future__ import annotations

from enum import Enum

from atfnd.model import Mode

__all__ = ["Mechanism", "Mode", "Verdict"]


class Mechanism(Enum):
    """What keeps a move in order."""

    BIRTH = "birth"  # no data can have been sent yet
    FOLLOW = "follow"  # the flow keeps its ring; the ring's NAPI changes its CPU
    HOLD = "hold"  # the new ring is parked until the old one has drained
    GAP = "gap"  # the flow has been idle for longer than the old ring can hold a packet
    NONE = "none"  # nothing: there is nothing to keep, or the mode does not ask for it


class Verdict(Enum):
    """How a wanted move ended."""

    PROVEN = "proven"  # done, and no order of events could have reordered it
    VERIFIED = "verified"  # done, and every packet was seen in order
    QUIET = "quiet"  # done, and no packet has come since
    UNPROVEN = "unproven"  # done, but a condition broke on the way
    VIOLATED = "violated"  # done, and packets were delivered out of order
    NO_EFFECT = "no effect"  # accepted by the kernel, and packets still come as before
    REFUSED = "refused"  # by the kernel
    DEFERRED = "deferred"  # not tried, or given up before the write: it stays where it is
    SUPERSEDED = "superseded"  # not written: its flow is another one's now, or given up
    RESYNC = "resync"  # the NIC was reset, or somebody else moved it, in the middle: look again
    DONE = "done"  # what could not reorder anything: a dead flow's rule, or a mode without order

    @property
    def strike(self) -> bool:
        """Counts against the timer and the mechanism."""
        return self in (Verdict.VIOLATED, Verdict.UNPROVEN)
