# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC: filters, queues, RSS, what it can do and what it counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from atfnd.model.flow import FlowKey

__all__ = ["Caps", "Match", "NicStats", "NicView", "Queue", "QueueStats", "Rss", "Rule"]


class Match(NamedTuple):
    """What a filter compares in a received packet; `None` is "any".

    `src`/`dst` are packed addresses with the host bits zero, with `*_prefix` bits significant.
    """

    family: int
    protocol: int | None
    src: bytes | None
    src_prefix: int
    dst: bytes | None
    dst_prefix: int
    src_port: int | None
    dst_port: int | None

    @classmethod
    def of(cls, key: FlowKey) -> Match:
        """The narrowest match for a flow: the exact 5-tuple, less what the key leaves open."""
        bits = len(key.local) * 8
        src = key.remote if any(key.remote) else None
        dst = key.local if any(key.local) else None
        return cls(
            key.family,
            key.protocol,
            src,
            bits if src else 0,
            dst,
            bits if dst else 0,
            key.remote_port or None,
            key.local_port or None,
        )

    def key(self) -> FlowKey:
        """The flow whose narrowest match this is. ValueError: it is no flow's."""
        anything = bytes(4 if self.family == 4 else 16)
        key = FlowKey(
            self.protocol or 0,
            self.dst or anything,
            self.dst_port or 0,
            self.src or anything,
            self.src_port or 0,
        )
        if Match.of(key) != self:
            raise ValueError(f"no flow's match: {self}")
        return key


class Rule(NamedTuple):
    """One ntuple filter as the NIC holds it. A lower location wins."""

    location: int
    match: Match
    queue: int
    hits: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """One receive queue and the CPU its packets are delivered on."""

    index: int
    napi_id: int | None
    irq: int | None
    cpu: int | None  # None: not confined to one CPU
    threaded: bool | None
    pid: int | None  # the NAPI thread


@dataclass(frozen=True, slots=True)
class Rss:
    """Toeplitz key and indirection table (queue numbers)."""

    key: bytes
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Caps:
    """What this NIC was shown to do, not what it claims."""

    driver: str
    rules: bool  # 5-tuple filters
    rule_slots: int | None
    prefix_masks: bool  # filters may leave fields open
    in_place: bool  # rewriting a location replaces the rule atomically (class K1)
    location_any: bool  # the NIC chooses locations itself
    rss_table: bool
    queue_cpu: bool  # we can set the CPU of a queue


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Packets a queue was given since the NIC came up, by what chose it."""

    index: int
    packets: int | None
    bytes: int | None
    by_rule: int | None
    by_rss: int | None


@dataclass(frozen=True, slots=True)
class NicStats:
    queues: tuple[QueueStats, ...]
    ring_drops: int | None


@dataclass(frozen=True, slots=True)
class NicView:
    """One NIC as the daemon last saw it."""

    name: str
    netns: str | None
    ifindex: int
    armed: bool
    budget: int | None  # at most so many rules of ours; None: the NIC's own limit
    up: bool
    caps: Caps
    queues: tuple[Queue, ...]
    rules: tuple[Rule, ...]
    owned: frozenset[int]  # locations of rules that are ours
    rss: Rss
    ring_size: int | None
    stats: NicStats
