# SPDX-License-Identifier: GPL-2.0-or-later
"""Who owns a queue, so that the queue may follow it. Pure.

An owner is whatever migrates as one: a thread, or a process or cgroup by its busiest thread. It
owns at most one queue, and a queue has at most one owner. The rules, in this order:

1. An owner that is gone (an exited thread, a closed last socket) loses its queue; the queue stays
   where it is. A child or a new thread is an owner of its own from its first socket call on.
2. Without a queue, the busiest first: the free queue its flows are led to already, else one on its
   CPU; else a free one from a CPU that keeps another or where no owner runs, or, if its own CPU has
   no queue at all, from any.
3. With none free: that of the owner that has been idle for the longest, if for `idle_ns`; else that
   of the least busy one, if the newcomer is busier by a quarter and the queue has been owned for
   `settle_ns`. Who gets none is a guest: its flows are moved one by one, to a queue on its CPU.
4. A queue follows its owner, not again within `settle_ns`. An idle owner is not followed.
5. Before all that: a queue whose CPU went offline goes to its owner's CPU, else to the CPU online
   with the fewest queues. No queue is ever left without one.

Two busy threads that use one queue are one owner and one guest; nobody is owner for having shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Follow", "Owned", "Owner", "OwnerId", "Ownership", "Terms", "assign"]


OwnerId = tuple[str, int]  # of what kind, and its tid, pid or cgroup id


class Owner(NamedTuple):
    """One that uses sockets of this NIC."""

    id: OwnerId
    cpu: int  # it runs there
    load: int  # bytes or packets, of one recent period
    used_ns: int  # its last socket call
    at: int | None = None  # the queue that most of its flows are led to by rules


class Owned(NamedTuple):
    """A queue's owner, since when, and when the queue last changed its CPU for it."""

    owner: OwnerId
    since_ns: int
    moved_ns: int


class Terms(NamedTuple):
    """Hysteresis."""

    idle_ns: int = 1_000_000_000
    settle_ns: int = 100_000_000


class Follow(NamedTuple):
    """A queue is to be delivered on another CPU."""

    queue: int
    cpu: int
    why: str


Ownership = Mapping[int, Owned]  # by queue


def assign(
    owned: Ownership,
    owners: Sequence[Owner],
    queues: Mapping[int, int | None],
    online: frozenset[int],
    terms: Terms,
    now_ns: int,
) -> tuple[Ownership, tuple[Follow, ...]]:
    """Who owns what from now on, and which queues change their CPU. `queues` is the CPU of each
    queue, None where it is not confined to one. ValueError: no CPU is online."""
    if not online:
        raise ValueError("no CPU is online")
    known, crowd = {owner.id: owner for owner in owners}, {owner.cpu for owner in owners}
    kept = {q: o for q, o in owned.items() if q in queues and o.owner in known}
    for owner in sorted(owners, key=lambda each: (-each.load, each.id)):
        if owner.id not in {each.owner for each in kept.values()}:
            queue = _free(owner, kept, queues, crowd) or _taken(owner, kept, known, terms, now_ns)
            if queue is not None:
                kept[queue[0]] = Owned(owner.id, now_ns, 0)
    follows: list[Follow] = []
    for queue_index, cpu in sorted(queues.items()):
        follow = _follow(queue_index, cpu, kept, known, queues, online, terms, now_ns)
        if follow is not None:
            follows.append(follow)
            queues = {**queues, queue_index: follow.cpu}
            if queue_index in kept:
                kept[queue_index] = kept[queue_index]._replace(moved_ns=now_ns)
    return kept, tuple(follows)


def _free(
    owner: Owner, kept: Mapping[int, Owned], queues: Mapping[int, int | None], crowd: set[int]
) -> tuple[int] | None:
    free = [queue for queue in sorted(queues) if queue not in kept]
    if owner.at in free:
        return (owner.at,)
    here = [queue for queue in free if queues[queue] == owner.cpu]
    if here or not free:
        return (here[0],) if here else None
    load = Counter(queues.values())
    spare = [q for q in free if load[queues[q]] > 1 or queues[q] not in crowd]
    others = spare if load[owner.cpu] else spare + free
    return (others[0],) if others else None


def _taken(
    owner: Owner,
    kept: Mapping[int, Owned],
    known: Mapping[OwnerId, Owner],
    terms: Terms,
    now_ns: int,
) -> tuple[int] | None:
    """A queue that is taken from its owner for a newcomer that uses its sockets."""
    if now_ns - owner.used_ns >= terms.idle_ns:
        return None
    idle = [
        (known[each.owner].used_ns, queue)
        for queue, each in kept.items()
        if now_ns - known[each.owner].used_ns >= terms.idle_ns
    ]
    if idle:
        return (min(idle)[1],)
    slack = [
        (known[each.owner].load, queue)
        for queue, each in kept.items()
        if now_ns - each.since_ns >= terms.settle_ns and owner.load * 4 > known[each.owner].load * 5
    ]
    return (min(slack)[1],) if slack else None


def _follow(
    queue: int,
    cpu: int | None,
    kept: Mapping[int, Owned],
    known: Mapping[OwnerId, Owner],
    queues: Mapping[int, int | None],
    online: frozenset[int],
    terms: Terms,
    now_ns: int,
) -> Follow | None:
    held = kept.get(queue)
    owner = known[held.owner] if held is not None else None
    if cpu is not None and cpu not in online:
        if owner is not None and owner.cpu in online:
            return Follow(queue, owner.cpu, f"CPU {cpu} went offline; its owner runs here")
        load = Counter(each for each in queues.values() if each in online)
        least = min(online, key=lambda each: (load[each], each))
        return Follow(queue, least, f"CPU {cpu} went offline")
    if held is None or owner is None or owner.cpu == cpu or owner.cpu not in online:
        return None
    rests = held.moved_ns and now_ns - held.moved_ns < terms.settle_ns
    if rests or now_ns - owner.used_ns >= terms.idle_ns:
        return None
    return Follow(queue, owner.cpu, f"its owner runs on CPU {owner.cpu}")
