# SPDX-License-Identifier: GPL-2.0-or-later
"""Which CPU serves which channel. Pure, and the same for the same counts.

What is compared, in this order:

1. `apart`: what is not as the rule says. `core` and mode 0: channels of one number (modulo the
   fewest that one of the interfaces has) are on one CPU. `llc` and `node`: a packet is sent under
   the last-level cache, or on the node, where it was received. Mode I: what receives is on one
   package, what sends on another. Mode II: what sends is on the package of the busiest interface
   that receives, and the others that receive on another one. A machine with one package has its
   last-level caches, else its cores, else its CPUs, instead.
2. `overload`: what CPUs cannot take, beside everything else that they do.
3. `distance`: packets times how far they go from the CPU that forwards them to the one that takes
   back what was sent: 0 the same CPU, 1 the same core or last-level cache, 2 the same node, 3 none.
4. `remote`: packets of channels that are not on the node of their interface.
5. `peak`: what the busiest CPU does.

Each is in thousandths of all packets, so that less is no difference. A channel that may not be
moved (its interface is not armed, a thread owns it, another program placed it) stays, and others
join it.

The search begins with how it is now. One group of channels after the other is moved, that with the
most packets first, or two are exchanged, as long as that is better.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.engine.forwarding.matrix import Channel, Stream
from atfnd.model import Cpu, PairPlacement

__all__ = ["Cost", "Places", "Problem", "clearly_better", "cost", "distance", "nearest", "placed"]

Places = Mapping[Channel, int | None]  # None: not confined to one CPU

SENDING = 0.25  # of the work of receiving and forwarding a packet: to take back what was sent
_APART, _CLEAR, _PEAK = 100, 50, 4
_TRIES = 1000  # places that one search compares at most
_CANDIDATES = 8  # CPUs that are tried for a group of channels, the idlest ones
FAR = 3


class Cost(NamedTuple):
    """Thousandths of all packets, the most important first."""

    apart: int
    overload: int
    distance: int
    remote: int
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a rule has to place."""

    placement: PairPlacement
    channels: Mapping[str, int]  # of each interface
    streams: Sequence[Stream]
    receives: frozenset[str]  # interfaces, in modes I and II; the others send
    fixed: frozenset[Channel]
    cpus: Mapping[int, Cpu]  # those that may serve channels
    node: Mapping[str, int | None] = field(default_factory=dict)  # of each interface
    taken: Mapping[int, float] = field(default_factory=dict)  # of each CPU, by others, packets/s
    most: float | None = None  # packets/s that an idle CPU can forward. None: not known

    @property
    def total(self) -> float:
        return sum(each.pps for each in self.streams)

    def every(self) -> list[Channel]:
        return [Channel(nic, i) for nic, count in self.channels.items() for i in range(count)]


def distance(a: int, b: int | None, cpus: Mapping[int, Cpu]) -> int:
    """How far a packet goes between two CPUs; FAR where nothing is known of them."""
    if a == b:
        return 0
    one, other = cpus.get(a), None if b is None else cpus.get(b)
    if one is None or other is None:
        return FAR
    if other.index in one.smt or other.index in one.llc:
        return 1
    return 2 if one.node is not None and one.node == other.node else FAR


def nearest(cpu: int, egress: str, places: Places, problem: Problem) -> tuple[int, int]:
    """How far the nearest TX queue of an interface is, and its number."""
    count = problem.channels.get(egress, 0)
    every = ((places.get(Channel(egress, i)), i) for i in range(count))
    return min(((distance(cpu, there, problem.cpus), i) for there, i in every), default=(FAR, 0))


def cost(places: Places, problem: Problem) -> Cost:
    total = problem.total or 1.0
    load, carried, gone, beyond, remote = _loads(places, problem)
    overload = 0.0
    if problem.most is not None:
        for cpu, pps in load.items():
            room = max(0.0, problem.most - problem.taken.get(cpu, 0.0))
            overload += max(0.0, pps - room)
    peak = max((pps + problem.taken.get(cpu, 0.0) for cpu, pps in load.items()), default=0.0)

    def thousandths(pps: float) -> int:
        return round(1000 * pps / total)

    match problem.placement:
        case PairPlacement.CORE | PairPlacement.MODE_0:
            apart = _APART * sum(_scattered(group, places) for group in groups(problem))
        case PairPlacement.MODE_I | PairPlacement.MODE_II:
            sides = _sides(places, problem, carried)
            outside = (each for each in sides if places.get(each) not in sides[each])
            apart = sum(max(1, thousandths(carried[each])) for each in outside)
        case _:
            apart = thousandths(beyond)
    return Cost(apart, *map(thousandths, (overload, gone, remote, peak)))


def clearly_better(new: Cost, old: Cost) -> bool:
    """By more than what counts differ by from look to look."""
    for is_now, was in ((new.apart, old.apart), (new.overload, old.overload),
                        (new.distance, old.distance), (new.remote, old.remote)):  # fmt: skip
        if abs(was - is_now) >= _CLEAR:
            return is_now < was
    return (old.peak - new.peak) * _PEAK >= max(old.peak, 1)


def placed(now: Places, problem: Problem) -> dict[Channel, int]:
    """The CPU of every channel that the rule is for and that has one: as `now`, or better."""
    if not problem.cpus:
        return {each: cpu for each, cpu in now.items() if cpu is not None}
    search = _Search(now, problem)
    search.improve()
    found = search.places if search.cost < cost(now, problem) else now
    return {each: cpu for each in problem.every() if (cpu := found.get(each)) is not None}


def groups(problem: Problem) -> list[tuple[Channel, ...]]:
    """The channels that are placed as one."""
    if problem.placement not in (PairPlacement.CORE, PairPlacement.MODE_0):
        return [(each,) for each in problem.every()]
    fewest = min(problem.channels.values(), default=0)
    found = defaultdict[int, list[Channel]](list)
    for each in problem.every():
        found[each.queue % fewest].append(each)
    return [tuple(found[number]) for number in sorted(found)]


class _Loads(NamedTuple):
    by_cpu: Mapping[int, float]  # work, as packets/s
    by_channel: Mapping[Channel, float]
    distance: float  # packets/s times distance
    beyond: float  # packets/s that go further than the rule says
    remote: float  # packets/s of channels off the node of their interface


def _loads(places: Places, problem: Problem) -> _Loads:
    by_cpu, by_channel = defaultdict[int, float](float), defaultdict[Channel, float](float)
    gone = beyond = remote = 0.0
    reach = {PairPlacement.LLC: 1, PairPlacement.NODE: 2}.get(problem.placement, FAR)
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for ingress, egress, pps in problem.streams:
        cpu = places.get(ingress)
        by_channel[ingress] += pps
        if cpu is None:
            gone += FAR * pps
            beyond += pps
            continue
        by_cpu[cpu] += pps
        far, index = found.get((cpu, egress)) or nearest(cpu, egress, places, problem)
        found[cpu, egress] = far, index
        gone += far * pps
        beyond += pps if far > reach else 0.0
        back = Channel(egress, index)
        by_channel[back] += SENDING * pps
        if (there := places.get(back)) is not None:
            by_cpu[there] += SENDING * pps
        node, known = problem.node.get(ingress.nic), problem.cpus.get(cpu)
        if node is not None and known is not None and known.node not in (None, node):
            remote += pps
    return _Loads(by_cpu, by_channel, gone, beyond, remote)


def _scattered(group: Sequence[Channel], places: Places) -> int:
    """How many of its channels are not where most of it is."""
    there = Counter(cpu for each in group if (cpu := places.get(each)) is not None)
    return len(group) - max(there.values(), default=0)


def _parts(cpus: Mapping[int, Cpu]) -> list[frozenset[int]]:
    """The packages; if there is one, the last-level caches, then the cores, then the CPUs."""
    known = cpus.values()
    for part_of in (
        {each.index: each.package for each in known},
        {each.index: min(each.llc, default=None) for each in known},
        {each.index: min(each.smt, default=each.index) for each in known},
        {each.index: each.index for each in known},
    ):
        found = defaultdict[int | None, set[int]](set)
        for cpu, part in part_of.items():
            found[part].add(cpu)
        if len(found) > 1:
            return sorted(map(frozenset, found.values()), key=min)
    return [frozenset(cpus)]


def _sides(
    places: Places, problem: Problem, carried: Mapping[Channel, float]
) -> dict[Channel, frozenset[int]]:
    """The CPUs on which each channel is as modes I and II say. What receives is where most of it is
    already."""
    parts = _parts(problem.cpus)
    if len(parts) < 2:
        return {}
    works = Counter[str]()
    for each, pps in carried.items():
        works[each.nic] += round(pps)
    senders = [nic for nic in problem.channels if nic not in problem.receives]
    receivers = [nic for nic in problem.channels if nic in problem.receives]

    def here(nics: Collection[str], but: frozenset[int] = frozenset()) -> frozenset[int]:
        most = Counter[frozenset[int]]()
        for each in problem.every():
            for part in parts:
                if each.nic in nics and places.get(each) in part:
                    held = 1_000_000_000 if each in problem.fixed else 0
                    most[part] += 1 + round(carried.get(each, 0.0)) + held
        return max((part for part in parts if part != but), key=lambda part: most[part])

    if problem.placement is PairPlacement.MODE_I:
        receiving = here(receivers)
        sending = here(senders, receiving)
        return {
            each: receiving if each.nic in problem.receives else sending for each in problem.every()
        }
    beside = here(senders)
    there = [nic for nic in receivers if here([nic]) == beside]
    busiest = max(receivers, key=lambda nic: (works[nic], nic), default="")
    for nic in there:  # unless another one is clearly busier
        if works[nic] * 5 >= works[busiest] * 4 and len(there) == 1:
            busiest = nic
    other = here([nic for nic in receivers if nic != busiest], beside)
    return {
        each: beside if each.nic in senders or each.nic == busiest else other
        for each in problem.every()
    }


class _Search:
    """The best that was found so far."""

    def __init__(self, now: Places, problem: Problem) -> None:
        self.problem, self.places = problem, dict(now)
        self.tries = 0
        self.cost = cost(self.places, problem)
        self.carried = _loads(now, problem).by_channel
        self.groups = [group for group in groups(problem) if self._cpus(group)]
        self.groups.sort(key=lambda group: (-self._weight(group), group))

    def improve(self) -> None:
        better = True
        while better and self.tries < _TRIES:
            better = False
            for group in self.groups:
                better |= self._best(group)
            for i, group in enumerate(self.groups):
                for other in self.groups[i + 1 :]:
                    better |= self._exchanged(group, other)

    def _weight(self, group: Sequence[Channel]) -> int:
        return round(sum(self.carried.get(each, 0.0) for each in group))

    def _cpus(self, group: Sequence[Channel]) -> list[int]:
        """The CPUs that it may go to: where one of its channels has to stay, else any."""
        kept = [each for each in group if each in self.problem.fixed]
        if not kept:
            return sorted(self.problem.cpus)
        if len(kept) == len(group):
            return []
        there = [cpu for each in kept if (cpu := self.places.get(each)) is not None]
        return there[:1]

    def _best(self, group: Sequence[Channel]) -> bool:
        """Move it to the CPU that is best for it. True: it has moved."""
        cpus, before = self._cpus(group), self.places
        if len(cpus) > _CANDIDATES:
            load = _loads(before, self.problem).by_cpu
            near = {before.get(each) for each in self._partners(group)}
            taken = self.problem.taken
            cpus.sort(key=lambda cpu: (load.get(cpu, 0.0) + taken.get(cpu, 0.0), cpu))
            cpus = sorted({*cpus[:_CANDIDATES], *(cpu for cpu in cpus if cpu in near)})
        better = [self._tried(before | self._moved(group, cpu)) for cpu in cpus]
        return any(better)

    def _exchanged(self, a: Sequence[Channel], b: Sequence[Channel]) -> bool:
        here, there = self._one_cpu(a), self._one_cpu(b)
        if here is None or there is None or here == there:
            return False
        if here not in self._cpus(b) or there not in self._cpus(a):
            return False
        return self._tried(self.places | self._moved(a, there) | self._moved(b, here))

    def _one_cpu(self, group: Sequence[Channel]) -> int | None:
        there = {self.places.get(each) for each in group}
        return next(iter(there)) if len(there) == 1 else None

    def _partners(self, group: Sequence[Channel]) -> Iterator[Channel]:
        """What it forwards to, or from."""
        members, nics = {*group}, {each.nic for each in group}
        for ingress, egress, _ in self.problem.streams:
            if ingress in members:
                yield from (Channel(egress, i) for i in range(self.problem.channels.get(egress, 0)))
            if egress in nics:
                yield ingress
        yield from group

    def _moved(self, group: Sequence[Channel], cpu: int) -> dict[Channel, int | None]:
        return {each: cpu for each in group if each not in self.problem.fixed}

    def _tried(self, places: dict[Channel, int | None]) -> bool:
        """Take these places if they are better."""
        if self.tries >= _TRIES:
            return False
        self.tries += 1
        if (found := cost(places, self.problem)) >= self.cost:
            return False
        self.places, self.cost = places, found
        return True
