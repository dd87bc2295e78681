# SPDX-License-Identifier: GPL-2.0-or-later
"""Which thread owns which queue, so that the queue follows it, and when a queue goes home. Pure.

An owner is a unit that migrates as a whole: a thread, or a process or cgroup by its busiest thread.
It owns at most one queue, and a queue has at most one owner. The rules, in this order:

1. An owner that is gone (an exited thread, a closed last socket), or that has been idle for
   `away_ns`, loses its queue. A child or a new thread is an owner of its own from its first socket
   call on.
2. Without a queue, the busiest of each user and control group first, then the second of each: the
   free queue its flows are led to already, else one on its CPU; else a free one from a CPU that
   keeps another or where no owner runs, or, if its own CPU has no queue at all, from any.
3. With none free: that of the owner that has been idle for the longest, if for `idle_ns`; else one
   of a user or control group that owns two more than the newcomer's; else that of the least busy
   one, if the newcomer is clearly busier (by a quarter, and by `worth_bytes`) and its user and
   group would not own more than the other's do. In the latter two cases the queue must have been
   owned for `least_owned_ns`. No tenant owns more than the policy's share. A thread that gets
   none is a guest: its flows are moved one by one, to a queue on its CPU.
4. A queue follows its owner. An idle owner is not followed. Where its CPU has no room for one more
   queue (`most_on_a_cpu`), or the queue could not follow `stuck_after` times in a row, the owner
   loses its queue and is a guest there.
5. A queue that has had no owner for `away_ns` goes home: to the CPU it had before it followed. At
   once, if its owner is there and does not stay on a CPU any more. Not if queues have only changed
   places: that would lead the flows that were placed meanwhile astray.
6. No queue changes its CPU twice within `rest_ns`, whether it is owned or not. One whose move was
   put off is tried again after that time, then after twice as long, up to `put_off_ns`.
7. Nobody owns a queue as long as the owners of each user that would have none carry a quarter of
   what all of this user carry, and the queues at home are delivered wherever an owner runs: a queue
   that follows one of many takes the packets of the others along. Threads that wander count, too.
8. A thread that is not pinned owns no queue that others use, by filters or by RSS: it may leave as
   soon as the queue has followed, and the others' packets would be led astray for nothing. If it
   loses a queue to them again within `put_off_ns`, it gets none of another CPU for that time, nor
   does any other such thread on its CPU: they may come to whichever queue follows one of them. The
   wait ends when the thread is pinned.
9. Before all that: a queue whose CPU went offline, or is left out by the policy now, goes to its
   owner's CPU, else home if that is another, else to the CPU online with the fewest queues. No
   queue is ever left without one.

Of two busy threads that use one queue, one is its owner and the other a guest; sharing a queue
makes no thread its owner.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.engine.ownership.shares import Tenant, fair, held_by, may_take
from atfnd.model.reason import Code, Why
from atfnd.model.rests import Ladder, Rests

__all__ = ["Follow", "Lent", "Owned", "Owner", "OwnerId", "OwnerTerms", "Ownership", "assign"]
__all__ += ["most_on_a_cpu"]


OwnerId = tuple[str, int]  # the kind, and its tid, pid or cgroup id


class Owner(NamedTuple):
    """One that uses sockets of this NIC."""

    id: OwnerId
    cpu: int  # it runs there
    load: int  # bytes of one recent period
    used_ns: int  # its last socket call
    at: int | None = None  # the queue that rules lead most of its flows to
    tenants: tuple[Tenant, ...] = ()  # its tenants (`shares`)
    settled: bool = True  # else it owns no queue: it only counts among the many
    pinned: bool = False  # or that is not known
    avoids: frozenset[int] = frozenset()  # queues that it must not own: others use them


class Owned(NamedTuple):
    """A queue's owner, and since when."""

    owner: OwnerId
    since_ns: int


class OwnerTerms(NamedTuple):
    """Hysteresis."""

    idle_ns: int = 1_000_000_000
    least_owned_ns: int = 100_000_000
    away_ns: int = 2_000_000_000
    rest_ns: int = 100_000_000
    worth_bytes: int = 20_000  # less is one packet more or less in a look
    crowded_percent: int = 25  # of what the owners of a user carry, by those without a queue
    roomy_percent: int = 10  # then owners have queues again
    put_off_ns: int = 30_000_000_000  # at most, until a move that was put off is tried again
    stuck_after: int = 5  # moves that were put off: flows may have another way than with the queue


@dataclass(slots=True)
class Lent:
    """What is remembered of the queues of one NIC, owned or not, by queue."""

    homes: dict[int, int] = field(default_factory=dict)  # the CPU each is on without an owner
    free_ns: dict[int, int] = field(default_factory=dict)  # since when it has had no owner
    moved_ns: dict[int, int] = field(default_factory=dict)  # when it last changed its CPU for us
    sent: dict[int, int] = field(default_factory=dict)  # the CPU it is to go to, until that ends
    put_off: Rests[int] = field(default_factory=Rests)  # its move was
    shared: dict[OwnerId, int] = field(default_factory=dict)  # came to one queue; waits until
    looked_ns: int = 0  # when owners were last looked at
    crowded: bool = False  # too many owners: nobody owns a queue

    def only_exchanged(self, queues: Mapping[int, int | None]) -> bool:
        """Each CPU has as many of these queues as at home, if not the same ones."""
        return Counter(queues.values()) == Counter(map(self.homes.get, queues, queues.values()))

    def rests_until_ns(self, queue: int, terms: OwnerTerms) -> int:
        """It has just changed its CPU, or was to and could not: it is not moved before."""
        moved_ns, until_ns = self.moved_ns.get(queue), self.put_off.of(queue).until_ns
        return until_ns if moved_ns is None else max(until_ns, moved_ns + terms.rest_ns)

    def rests(self, queue: int, terms: OwnerTerms, now_ns: int) -> bool:
        """It is not to be moved yet."""
        return now_ns < self.rests_until_ns(queue, terms)

    def stuck(self, queue: int, terms: OwnerTerms, now_ns: int) -> bool:
        """It could not follow, time after time, and is not tried again yet."""
        tried = self.put_off.of(queue).times
        return tried >= terms.stuck_after and self.put_off.on(queue, now_ns)

    def stayed(self, queue: int, terms: OwnerTerms, now_ns: int) -> None:
        """A move of it was put off: it is tried again, later each time."""
        self.put_off.vain(queue, Ladder(terms.rest_ns, terms.put_off_ns), now_ns)


class Follow(NamedTuple):
    """A queue should be delivered on another CPU."""

    queue: int
    cpu: int
    why: Why


Ownership = Mapping[int, Owned]  # by queue


def most_on_a_cpu(queues: int, cpus: int) -> int:
    """How many of a NIC's queues may be delivered on one CPU."""
    return -(-queues // max(cpus, 1)) + 1


def assign(
    owned: Ownership,
    owners: Sequence[Owner],
    queues: Mapping[int, int | None],
    online: frozenset[int],
    terms: OwnerTerms,
    now_ns: int,
    lent: Lent | None = None,
    *,
    fixed: Counter[int] | None = None,
    dedicated: frozenset[int] = frozenset(),
    left_out: frozenset[int] = frozenset(),
    shares: Mapping[str, int] | None = None,
) -> tuple[Ownership, tuple[Follow, ...]]:
    """Which owner has which queue from now on, and which queues change their CPU. `queues` is the
    CPU of each queue that we may move, None where it is not confined to one; `fixed`, how many
    other queues a CPU has; `dedicated`, CPUs that are online and serve no owner; `left_out`, CPUs
    that are online and may serve no queue; `shares`, percent of the queues that one tenant may own,
    by its kind. `lent` is updated. A queue without a home, or whose home is offline, stays where it
    is. ValueError: no CPU is online."""
    if not online:
        raise ValueError("no CPU is online")
    others = Counter() if fixed is None else fixed
    state = _State(
        owned, owners, queues, online, terms, now_ns, lent or Lent(), others, dedicated,
        left_out, shares or {},
    )  # fmt: skip
    return state.assign()


def _in_turn(owners: Sequence[Owner]) -> list[Owner]:
    """The busiest of each tenant first, then the second of each."""
    before, turns = Counter[Tenant](), list[tuple[int, int, OwnerId, Owner]]()
    for owner in sorted(owners, key=lambda each: (-each.load, each.id)):
        turn = max((before[each] for each in owner.tenants), default=0)
        before.update(owner.tenants)
        turns.append((turn, -owner.load, owner.id, owner))
    return [owner for *_, owner in sorted(turns)]


class _State:
    """The queues of one NIC while they are assigned anew."""

    def __init__(
        self,
        owned: Ownership,
        owners: Sequence[Owner],
        queues: Mapping[int, int | None],
        online: frozenset[int],
        terms: OwnerTerms,
        now_ns: int,
        lent: Lent,
        fixed: Counter[int],
        dedicated: frozenset[int],
        left_out: frozenset[int],
        shares: Mapping[str, int],
    ) -> None:
        self.owners = _in_turn(owners)
        most = len(queues) + fixed.total()
        self.shares = {kind: -(-most * share // 100) for kind, share in shares.items()}
        self.known = {owner.id: owner for owner in owners if owner.settled}
        wander = {owner.id for owner in owners if not owner.settled}
        self.fled = {queue for queue, each in owned.items() if each.owner in wander}
        self.crowd = {owner.cpu for owner in owners}
        self.queues, self.online, self.dedicated = dict(queues), online, dedicated
        self.left_out = left_out
        self.lent, self.terms, self.now_ns = lent, terms, now_ns
        self.on_cpu = Counter(cpu for cpu in queues.values() if cpu is not None) + fixed
        self.at_home = Counter(lent.homes[q] for q in queues if q in lent.homes) + fixed
        self.most = most_on_a_cpu(len(queues) + fixed.total(), len(online))
        lent.crowded = self._crowded()
        if lent.crowded:
            self.owners = []
        kept = {} if lent.crowded else owned
        self.kept = {q: o for q, o in kept.items() if q in queues and self._stays(o.owner, q)}
        self.follows: list[Follow] = []
        self._know_shared(kept)

    def assign(self) -> tuple[Ownership, tuple[Follow, ...]]:
        owning = {each.owner for each in self.kept.values()}
        for owner in self.owners:
            if owner.id not in owning and self._stays(owner.id, None):
                free = self._free(owner) if self._within_share(owner) else None
                found = free or self._taken(owner)
                if found is not None:
                    self.kept[found[0]] = Owned(owner.id, self.now_ns)
        for queue in sorted(self.queues):
            self._leave_offline(queue)
        for queue in sorted(self.kept):
            self._follow(queue)
        free_ns, left = self.lent.free_ns, self.queues.keys() - self.kept.keys()
        long_ago_ns = self.now_ns - self.terms.away_ns
        fresh_ns = {queue: long_ago_ns if queue in self.fled else self.now_ns for queue in left}
        self.lent.free_ns = {queue: free_ns.get(queue, fresh_ns[queue]) for queue in left}
        self._go_home()
        return self.kept, tuple(self.follows)

    def _crowded(self) -> bool:
        """There are too many owners for queues to follow, for each user, and each owner can be
        served without that."""
        homes = {self.lent.homes.get(queue, cpu) for queue, cpu in self.queues.items()}
        busy = [o for o in self.owners if self.now_ns - o.used_ns < self.terms.idle_ns]
        if len(busy) <= len(self.queues) or not {owner.cpu for owner in busy} <= homes:
            return False
        loads = defaultdict[Tenant | None, list[int]](list)
        for owner in sorted(busy, key=lambda each: -each.load):
            loads[next(iter(owner.tenants), None)].append(owner.load)
        each, most = len(self.queues) // len(loads), self.terms.crowded_percent
        if self.lent.crowded:
            most = self.terms.roomy_percent
        return all(sum(some[each:]) * 100 > sum(some) * most for some in loads.values())

    def _held(self) -> Counter[Tenant]:
        """How many queues each tenant owns."""
        owning = (self.known[each.owner].tenants for each in self.kept.values())
        return Counter(tenant for tenants in owning for tenant in tenants)

    def _within_share(self, owner: Owner) -> bool:
        """Each of its tenants may own one more."""
        held = self._held()
        return all(held[each] < self.shares.get(each[0], held[each] + 1) for each in owner.tenants)

    def _stays(self, owner: OwnerId, queue: int | None) -> bool:
        """It is there, and has not been idle for so long that it loses its queue, nor has that
        queue other users now."""
        known = self.known.get(owner)
        if known is None or queue in known.avoids:
            return False
        return self.now_ns - known.used_ns < self.terms.away_ns

    def _know_shared(self, kept: Ownership) -> None:
        """Owners whose queue others use, once more, get none of another CPU for a while, and nor do
        those others on its CPU that may leave."""
        shared, wait_ns = self.lent.shared, self.terms.put_off_ns
        for id, until_ns in list(shared.items()):
            known = self.known.get(id)
            if known is None or known.pinned or self.now_ns >= until_ns + wait_ns:
                del shared[id]
        lost = [
            (queue, self.known[each.owner].cpu)
            for queue, each in kept.items()
            if each.owner in self.known and queue in self.known[each.owner].avoids
        ]
        for owner in self.known.values():
            if any(queue in owner.avoids and owner.cpu == cpu for queue, cpu in lost):
                shared[owner.id] = self.now_ns + (wait_ns if owner.id in shared else 0)

    def _room(self, cpu: int) -> bool:
        """One more queue may be delivered on this CPU."""
        return self.on_cpu[cpu] < self.most

    def _may_have(self, owner: Owner, queue: int) -> bool:
        """This queue is on the owner's CPU, or may follow it there."""
        if queue in owner.avoids:
            return False
        if self.queues[queue] == owner.cpu:
            return True
        if self.now_ns < self.lent.shared.get(owner.id, 0):
            return False
        return self._room(owner.cpu) and not self.lent.stuck(queue, self.terms, self.now_ns)

    def _free(self, owner: Owner) -> tuple[int] | None:
        free = [queue for queue in sorted(self.queues) if queue not in self.kept]
        free = [queue for queue in free if self._may_have(owner, queue)]
        if owner.at in free:
            return (owner.at,)
        here = [queue for queue in free if self.queues[queue] == owner.cpu]
        if here or not free:
            return (here[0],) if here else None
        crowd, on = self.crowd, self.queues
        spare = [q for q in free if self._served(on[q]) > 1 or on[q] not in crowd]
        others = spare if self._served(owner.cpu) else spare + free
        return (others[0],) if others else None

    def _served(self, cpu: int | None) -> int:
        """How many of the queues that we may move are on this CPU."""
        return sum(each == cpu for each in self.queues.values())

    def _taken(self, owner: Owner) -> tuple[int] | None:
        """A queue to take from its owner for a newcomer that is entitled to it."""
        if self.now_ns - owner.used_ns >= self.terms.idle_ns:
            return None
        theirs = {q: self.known[each.owner] for q, each in self.kept.items()}
        theirs = {q: other for q, other in theirs.items() if self._may_have(owner, q)}
        idle = [
            (other.used_ns, queue)
            for queue, other in theirs.items()
            if self.now_ns - other.used_ns >= self.terms.idle_ns
        ]
        if idle:
            return (min(idle)[1],) if self._within_share(owner) else None
        held = self._held()
        owned_long = {
            q: other
            for q, other in theirs.items()
            if self.now_ns - self.kept[q].since_ns >= self.terms.least_owned_ns
        }
        rich = [
            (-held_by({*other.tenants} - {*owner.tenants}, held), other.load, queue)
            for queue, other in owned_long.items()
            if may_take(owner.tenants, other.tenants, held)
        ]
        if rich:
            return (min(rich)[2],)
        slack = [
            (other.load, queue)
            for queue, other in owned_long.items()
            if owner.load * 4 > other.load * 5
            and owner.load - other.load >= self.terms.worth_bytes
            and fair(owner.tenants, other.tenants, held)
        ]
        return (min(slack)[1],) if slack else None

    def _leave_offline(self, queue: int) -> None:
        cpu = self.queues[queue]
        if cpu is None or cpu in self.online or cpu in self.dedicated:
            return
        held, home = self.kept.get(queue), self.lent.homes.get(queue)
        to = None if held is None else self.known[held.owner].cpu
        why = (Code.CPU_LEFT_OUT if cpu in self.left_out else Code.CPU_OFFLINE)(cpu)
        if to is not None and to in self.online and self._room(to):
            self._move(queue, to, Code.TO_ITS_OWNER(why))
        else:
            self._move(queue, home if home in self.online else self._least(), why)

    def _least(self) -> int:
        """The CPU with the fewest queues."""
        return min(self.online, key=lambda each: (self.on_cpu[each], each))

    def _follow(self, queue: int) -> None:
        owner, cpu = self.known[self.kept[queue].owner], self.queues[queue]
        if owner.cpu == cpu or owner.cpu not in self.online or queue in self._moved():
            return
        if self.now_ns - owner.used_ns >= self.terms.idle_ns:
            return
        if not self._room(owner.cpu) or self.lent.stuck(queue, self.terms, self.now_ns):
            del self.kept[queue]
        elif not self.lent.rests(queue, self.terms, self.now_ns):
            self._move(queue, owner.cpu, Code.FOLLOWS(owner.cpu))

    def _go_home(self) -> None:
        """Queues without an owner go home where there is room. So does any queue that is away where
        a CPU has more than its limit, as after a CPU came back. A queue whose home is full waits.
        Where each CPU has as many as at home, none goes."""
        if self.lent.only_exchanged(self.queues):
            return
        for queue, home in sorted(self.lent.homes.items()):
            cpu = self.queues.get(queue, home)
            crowded = cpu is not None and self.on_cpu[cpu] > max(self.most, self.at_home[cpu])
            if cpu == home or not (home in self.online or home in self.dedicated):
                continue
            if not (crowded or self._was_left(queue)) or queue in self._moved():
                continue
            if self.lent.rests(queue, self.terms, self.now_ns):
                continue
            full = self.on_cpu[home] >= max(self.most, self.at_home[home])
            if full and home in self.online:
                continue
            if queue in self.kept:
                del self.kept[queue]
                self._move(queue, home, Code.CROWDED(self.most, cpu))
            else:
                self._move(queue, home, Code.NO_OWNER())

    def _was_left(self, queue: int) -> bool:
        """It has had no owner for a while."""
        free_ns = self.lent.free_ns.get(queue)
        return free_ns is not None and self.now_ns - free_ns >= self.terms.away_ns

    def _moved(self) -> set[int]:
        return {each.queue for each in self.follows}

    def _move(self, queue: int, cpu: int, why: Why) -> None:
        """It still counts on the CPU that it leaves: its move may be put off."""
        self.follows.append(Follow(queue, cpu, why))
        self.on_cpu[cpu] += 1
        self.queues[queue] = cpu
        self.lent.moved_ns[queue] = self.now_ns
