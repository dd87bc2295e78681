# SPDX-License-Identifier: GPL-2.0-or-later
"""How a flow may be moved, by which means it is moved, and how a move ended. Pure values."""

from __future__ import annotations

from enum import Enum

from atfnd.model import Mode

__all__ = ["Mechanism", "Mode", "Verdict"]


class Mechanism(Enum):
    """What keeps a move in order."""

    BIRTH = "birth"  # no data can have been sent yet
    FOLLOW = "follow"  # the flow keeps its ring; the ring's NAPI changes its CPU
    HOLD = "hold"  # the new ring is quiesced until the old one has drained
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
    SUPERSEDED = "superseded"  # not written: its flow has another socket, or was given up
    RESYNC = "resync"  # reset, or moved by another program, meanwhile: look again
    DONE = "done"  # could not reorder anything: a dead flow's rule, or a mode without order

    @property
    def strike(self) -> bool:
        """It counts against the timer and the mechanism."""
        return self in (Verdict.VIOLATED, Verdict.UNPROVEN)
