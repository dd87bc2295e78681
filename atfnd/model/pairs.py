# SPDX-License-Identifier: GPL-2.0-or-later
"""What is forwarded: from which interface to which TX queue, and on which CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from atfnd.model.flow import FlowKey
from atfnd.model.topology import Distance

__all__ = [
    "ForwardedCount",
    "ForwardedElsewhere",
    "ForwardedTotals",
    "Pair",
    "Pairs",
    "TranslatedFlow",
]


class ForwardedCount(NamedTuple):
    """Packets that one CPU has forwarded from one interface to one TX queue of another."""

    # Inode number of the namespace of the egress interface, where the other is taken to be, too.
    netns: int
    ingress_ifindex: int  # of the uppermost that it came in by
    egress_ifindex: int
    tx_queue: int
    cpu: int  # that forwarded them
    packets: int  # as they leave: a segment of GSO is one
    bytes: int  # each with its headers, Ethernet's among them


@dataclass(frozen=True, slots=True)
class Pair:
    """The packets of one `ForwardedCount`, and how many in each second."""

    # The interface at the bottom of those that it came in by. If one of several is, and it is not
    # known which, then the interface that stands upon them, and they are `among`.
    ingress: str
    rx_queue: int | None  # whose channel is served on `cpu`; None: not known, or there are several
    egress: str
    tx_queue: int
    cpu: int  # that forwarded them
    tx_cpu: int | None  # takes back what was sent; None: not known
    distance: Distance | None  # of the two CPUs
    packets: int
    packets_pps: float
    bytes_per_s: float
    rule: str | None = None  # the policy's forwarding rule for it
    why: str | None = None  # its channels are where they are, or wait
    among: tuple[str, ...] = ()

    @property
    def came_by(self) -> tuple[str, ...]:
        """One of these."""
        return self.among or (self.ingress,)


class ForwardedElsewhere(NamedTuple):
    """What a namespace forwards in which no interface is watched, so that its names are not
    known."""

    netns: str  # its name, or the number that lsns(8) shows
    packets_pps: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """What was forwarded in some seconds."""

    seconds: float
    why_not: str | None  # why nothing was counted; None: it was
    missed: int  # packets that found no room
    pairs: tuple[Pair, ...]  # most packets first
    elsewhere: tuple[ForwardedElsewhere, ...] = ()  # most packets first


@dataclass(frozen=True, slots=True)
class ForwardedTotals:
    """What was forwarded since the count that goes on began."""

    pairs: tuple[Pair, ...]  # most packets first
    by_distance: Mapping[Distance | None, int]  # packets, by the distance when they were counted
    missed: int  # packets that found no room


class TranslatedFlow(NamedTuple):
    """Its packets as they come in: of who opened it, and of the answers. Bytes as IP counts them,
    since it was opened; None: they are not counted."""

    original: FlowKey
    reply: FlowKey
    original_bytes: int | None
    reply_bytes: int | None

    @property
    def bytes(self) -> int | None:
        """Of both directions."""
        if self.original_bytes is None or self.reply_bytes is None:
            return None
        return self.original_bytes + self.reply_bytes
