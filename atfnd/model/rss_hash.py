# SPDX-License-Identifier: GPL-2.0-or-later
"""Where RSS delivers a flow, as far as that is known. Pure.

A computed hash is a claim. It counts as known for a driver that is known by name to hash as it
says, or when flows have agreed with it (`engine.indirection.evidence`), and for as long as none has
contradicted it.
"""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model.flow import FlowKey, Protocol
from atfnd.model.nic import FlowType, HashSeen, NicView, Queue, Rss, Transform
from atfnd.model.toeplitz import rss_entry, why_not_computed

__all__ = ["AGREE", "HashKnown", "flow_type_words", "hash_known", "hashes_known", "is_proven"]
__all__ += ["known_entry", "predicted", "rss_index", "rss_rings", "symmetric_transform", "type_of"]

AGREE, CHANCE = 24, 1e-9  # so many flows agree, and so seldom would they with a wrong hash


def type_of(key: FlowKey) -> FlowType:
    return key.family, key.protocol


def is_proven(seen: HashSeen) -> bool:
    """Enough flows agree with one hash."""
    return len(seen.fits) == 1 and len(seen.agree) >= AGREE and seen.chance < CHANCE


def _transform(nic: NicView, rss: Rss, of: FlowType) -> Transform | None:
    """What the NIC makes of the fields of such flows; None: not known."""
    seen = nic.hash_seen.get(of)
    if seen is None:
        return rss.transforms[0] if _named(rss, of) and rss.transforms else None
    by_name = _named(rss, of) and len(seen.fits) == 1
    return seen.fits[0] if by_name or is_proven(seen) else None


def _named(rss: Rss, of: FlowType) -> bool:
    return rss.named and of not in rss.unsaid


def known_entry(nic: NicView, key: FlowKey) -> int | None:
    """The entry of the indirection table that a flow's packets select; None: not known, or not the
    same for all of them."""
    transform = None if nic.rss is None else _transform(nic, nic.rss, type_of(key))
    return None if nic.rss is None or transform is None else rss_entry(nic.rss, key, transform)


def predicted(nic: NicView, key: FlowKey) -> Queue | None:
    """The queue of that entry; None, too, if the NIC has no such queue."""
    entry = known_entry(nic, key)
    index = None if entry is None or nic.rss is None else nic.rss.table[entry]
    return next((queue for queue in nic.queues if queue.index == index), None)


def rss_index(nic: NicView, key: FlowKey) -> int | None:
    """The number of that queue."""
    queue = predicted(nic, key)
    return None if queue is None else queue.index


def rss_rings(nic: NicView, key: FlowKey) -> frozenset[int] | None:
    """The queues that RSS may give a flow's packets to: any that it spreads over, for a key that is
    open to any remote, and where the hash is not known. None: the NIC does not say its table."""
    if len(nic.queues) == 1:
        return frozenset({nic.queues[0].index})
    queue = rss_index(nic, key)
    if queue is not None:
        return frozenset({queue})
    return frozenset(nic.rss.table) if nic.rss is not None and nic.rss.table else None


class HashKnown(NamedTuple):
    """Whether the hash of flows of one type is known, and how, or why not."""

    flows: FlowType
    known: bool
    why: str


def hash_known(nic: NicView, of: FlowType) -> HashKnown | None:
    """None: RSS has no choice there."""
    rss = nic.rss
    if rss is None or len(set(rss.table)) < 2:
        return None
    if (why_not := why_not_computed(rss, of)) is not None:
        return HashKnown(of, False, why_not)
    seen, transform = nic.hash_seen.get(of), _transform(nic, rss, of)
    if transform is not None:
        what = "Toeplitz" if transform is Transform.NONE else f"Toeplitz, {transform.value}"
        how = f"known of {nic.caps.driver}" if _named(rss, of) else "flows that were seen agree"
        return HashKnown(of, True, f"{what} ({how})")
    if seen is not None and not seen.fits:
        return HashKnown(of, False, "a flow arrived on another queue than its hash says")
    count = 0 if seen is None else len(seen.agree)
    why = f"{nic.caps.driver} is not known by name, and flows have to agree ({count} of {AGREE} do)"
    return HashKnown(of, False, why)


def symmetric_transform(nic: NicView, *, seen: bool = True) -> Transform | None:
    """By which both directions of a flow have one hash whatever the key is, as ethtool says or, if
    `seen`, flows have shown. None: by none that is known."""
    if nic.rss is None:
        return None
    proven = [each.fits for each in nic.hash_seen.values() if seen and is_proven(each)]
    every = [nic.rss.transforms, *proven]
    found = (each[0] for each in every if len(each) == 1 and each[0] is not Transform.NONE)
    return next(found, None)


def hashes_known(nic: NicView) -> list[HashKnown]:
    """Of TCP and UDP."""
    every = ((family, protocol) for protocol in (Protocol.TCP, Protocol.UDP) for family in (4, 6))
    return [found for of in every if (found := hash_known(nic, of)) is not None]


def flow_type_words(of: FlowType) -> str:
    """`IPv4 TCP`."""
    return f"IPv{of[0]} {Protocol(of[1]).name}"
