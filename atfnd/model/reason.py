# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a flow is left to RSS, a move was not made, or ended as it did: codes, and the one table of
their words."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Code", "Why"]


class Why(NamedTuple):
    """A reason. `about`: what its words name, in their order; numbers, texts of the kernel, or
    other reasons. `str` of it is the sentence."""

    code: Code
    about: tuple[object, ...] = ()

    def __str__(self) -> str:
        return self.code.value.format(*self.about)

    def shape(self) -> tuple[object, ...]:
        """Its code and those of the reasons in it: the same reason, whatever its numbers are."""
        inner = (each.shape() for each in self.about if isinstance(each, Why))
        return (self.code, *inner)


class Code(Enum):
    """`Code.QUEUE_GONE(3)` is a reason. Times are written with `in_ms`."""

    # It is left to RSS.
    LEFT_FULL = "CPU {} is full, and another under its last-level cache is not: left to RSS"
    LEFT_GROUP = (
        "several sockets share its port (SO_REUSEPORT): one filter would bring all to one queue"
    )
    LEFT_TUNNEL = "its packets come by {}, and the NIC sees another 5-tuple"
    LEFT_WANDERS = "{}: left to RSS"  # `place.wanders_in`
    # Nothing has to be kept in order.
    SOCKET_GONE = "its socket is gone"
    KEEPS_QUEUE = "its packets keep their queue"
    IMMEDIATE = "the mode is immediate"
    # A mechanism keeps it.
    RING_KEPT = "the flow keeps its ring"
    NO_DATA_YET = "no data can have been sent yet"
    DRAINS = "its old ring can prove that it drained"
    CHECKED = "order is kept with high probability, and checked"
    # None does: each one's reason.
    REFUSED_BY_ALL = "birth: {}; hold: {}; gap: {}"
    NO_FOLLOW = "follow: {}"
    LENDS_NOT = "{}; it cannot borrow one: {}"
    FAILED_BEFORE = "it failed this flow before"
    QUEUE_GONE = "queue {} is gone"
    HANDED_ON = "queue {} has RFS, which hands its packets to other CPUs"
    DEFERS = "queue {} defers its interrupt (napi_defer_hard_irqs), and is polled by a timer"
    DEFERS_UNKNOWN = "whether queue {} defers its interrupt is not known"
    DATA_IN_FLIGHT = "data may be in flight"
    ASYNCHRONOUS = "this NIC does not say when a filter takes effect"
    WRITE_UNKNOWN = "how long writing a filter takes here is not known yet"
    DATA_SOONER = "data may come within {}, sooner than the filter"
    ORIGIN_UNKNOWN = "it is not known through which queues its packets come"
    RSS_UNKNOWN = "a change of a filter passes through RSS here, and RSS's queue is not known"
    UNSURE = "by which of {} queues RSS delivers it is not known, and {}"
    SEVERAL_TARGETS = "it would go to more than one queue"
    COMES_BACK = "it would leave its queue and come back to it"
    TOO_MANY_HOLDS = "queues {} would have to be quiesced at once, and {} can be"
    NOT_QUIESCED = "queue {} cannot be quiesced: {}"
    CPU_HELD = "queue {} has to drain on CPU {}, which a quiesced queue keeps"
    STAGES_UNKNOWN = "what is between the queue's poll and the socket is not known"
    STAGE = "{}, so a poll's end is not yet delivery"
    GRO_UNKNOWN = "whether queue {} holds packets in GRO is not known"
    GRO = "queue {} holds packets in GRO (gro_flush_timeout)"
    BUSY_POLLED = "an application may busy-poll queue {}, which holds packets in GRO"
    MODERATION_UNKNOWN = "how long queue {} moderates interrupts (rx-usecs) is not known"
    NO_THREAD = "queue {} has no NAPI thread, whose sleep would prove it empty"
    TOO_LONG = "a queue may be quiesced for {}, and a move takes {}"
    STRICT = "not in strict mode"
    OPEN = "it is open to any remote, and its gaps cannot be seen"
    # It was put off, or given up before the write.
    QUEUE_CHANGED = "its queue has changed meanwhile"
    REPLACED = "another decision replaced it"
    CLOSED = "its socket was closed"
    NEVER_IDLE = "never idle for {} within {}"
    NOT_HELD = "queue {} is not quiesced: {}"
    NOT_HELD_IN_TIME = "not quiesced within {}"
    # Order was not kept, or is not proven.
    OVERTOOK = "{} packets overtook others"
    OVERTOOK_UNPROVEN = "{} packets overtook others: {}"
    ON_THE_WAY = "on the way: {}"
    RFS_SWITCHED = "RFS was switched on, not by us"
    HOLD_ENDED = "the hold of queue {} ended before its time"
    NOT_DRAINED_IN_TIME = "not drained within {}"
    LOST_UNHELD = "its filter was lost, and RSS's ring was not quiesced"
    TOO_EARLY = "data may have come before the filter"
    BIRTH_UNKNOWN = "it is not known when it was established"
    TELEMETRY_LOST = "telemetry was lost"
    # It is done.
    IN_ORDER = "every packet was seen in order"
    NO_BIRTH = "no connection was being established"
    NO_PACKET = "no packet has come since"
    AS_BEFORE = "its packets still come as before"
    LOST = "the NIC refused it and lost the filter: delivered by RSS"
    # Somebody else was there.
    RESET = "the NIC was reset"
    DISTURBED = "its filter was changed or deleted meanwhile, not by us"
    KERNEL = "{}"  # the kernel's words, or those of what writes

    def __call__(self, *about: object) -> Why:
        return Why(self, about)
