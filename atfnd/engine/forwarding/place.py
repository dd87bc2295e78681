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
5. `crowd`: what each CPU does, squared: less where it is spread.
6. `moved`: packets of channels that are not where they are now.

Each is in percent of all packets, so that less is no difference (`crowd`: in thousandths). A
channel that may not be moved (its interface is not armed, a thread owns it, another program placed
it) stays, and others join it.

The search begins with how it is now. One group of channels after the other is moved, that with the
most packets first, or two are exchanged, as long as that is better.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from atfnd.engine.forwarding.matrix import Channel, Stream
from atfnd.model import Cpu, PairPlacement

__all__ = ["Cost", "Places", "ToPlace", "clearly_better", "cost", "distance", "nearest", "placed"]

Places = Mapping[Channel, int | None]  # None: not confined to one CPU

SENDING = 0.25  # of the work of receiving and forwarding a packet: to take back what was sent
_APART, _CLEAR, _SPREAD = 10, 5, 4
_TRIES = 1000  # places that one search compares at most
_CANDIDATES = 8  # CPUs that are tried for a group of channels, the idlest ones
FAR = 3


class Cost(NamedTuple):
    """Percent of all packets, the most important first."""

    apart: int
    overload: int
    distance: int
    remote: int
    crowd: int
    moved: int


@dataclass(frozen=True, kw_only=True)
class ToPlace:
    """What a rule has to place."""

    placement: PairPlacement
    channels: Mapping[str, int]  # of each interface
    streams: Sequence[Stream]
    receives: frozenset[str]  # interfaces, in modes I and II; the others send
    now: Places = field(default_factory=dict)
    fixed: frozenset[Channel]
    cpus: Mapping[int, Cpu]  # those that may serve channels
    node: Mapping[str, int | None] = field(default_factory=dict)  # of each interface
    taken: Mapping[int, float] = field(default_factory=dict)  # of each CPU, by others, packets/s
    most: float | None = None  # packets/s that an idle CPU can forward. None: not known

    @cached_property
    def total(self) -> float:
        return sum(each.pps for each in self.streams)

    @cached_property
    def of_nic(self) -> Mapping[str, Sequence[Channel]]:
        return {nic: [Channel(nic, i) for i in range(n)] for nic, n in self.channels.items()}

    @cached_property
    def every(self) -> Sequence[Channel]:
        return [channel for channels in self.of_nic.values() for channel in channels]

    @cached_property
    def groups(self) -> Sequence[tuple[Channel, ...]]:
        """The channels that are placed as one."""
        if self.placement not in (PairPlacement.CORE, PairPlacement.MODE_0):
            return [(each,) for each in self.every]
        fewest = min(self.channels.values(), default=0)
        found = defaultdict[int, list[Channel]](list)
        for each in self.every:
            found[each.queue % fewest].append(each)
        return [tuple(found[number]) for number in sorted(found)]

    @cached_property
    def parts(self) -> Sequence[frozenset[int]]:
        """The packages; if there is one, the last-level caches, then the cores, then the CPUs."""
        known = self.cpus.values()
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
        return [frozenset(self.cpus)]

    @cached_property
    def _far(self) -> dict[tuple[int, int | None], int]:
        return {}

    def far(self, a: int, b: int | None) -> int:
        """As `distance`."""
        found = self._far.get((a, b))
        if found is None:
            found = self._far[a, b] = distance(a, b, self.cpus)
        return found


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


def nearest(cpu: int, egress: str, places: Places, problem: ToPlace) -> tuple[int, int]:
    """How far the nearest TX queue of an interface is, and its number."""
    every = problem.of_nic.get(egress, ())
    return min(
        ((problem.far(cpu, places.get(each)), each.queue) for each in every), default=(FAR, 0)
    )


def cost(places: Places, problem: ToPlace) -> Cost:
    total = problem.total or 1.0
    load, carried, gone, beyond, remote = _loads(places, problem)
    overload = 0.0
    if problem.most is not None:
        for cpu, pps in load.items():
            room = max(0.0, problem.most - problem.taken.get(cpu, 0.0))
            overload += max(0.0, pps - room)
    crowd = sum(pps * (pps + 2 * problem.taken.get(cpu, 0.0)) for cpu, pps in load.items())

    def percent(pps: float) -> int:
        return round(100 * pps / total)

    match problem.placement:
        case PairPlacement.CORE | PairPlacement.MODE_0:
            apart = _APART * sum(_scattered(group, places) for group in problem.groups)
        case PairPlacement.MODE_I | PairPlacement.MODE_II:
            sides = _sides(places, problem, carried)
            outside = (each for each in sides if places.get(each) not in sides[each])
            apart = sum(max(1, percent(carried[each])) for each in outside)
        case _:
            apart = percent(beyond)
    moved = sum(carried[each] for each, cpu in problem.now.items() if places.get(each) != cpu)
    return Cost(
        apart=apart,
        overload=percent(overload),
        distance=percent(gone),
        remote=percent(remote),
        crowd=5 * round(200 * crowd / total**2),
        moved=percent(moved),
    )


def clearly_better(new: Cost, old: Cost) -> bool:
    """By more than what counts differ by from look to look."""
    for is_now, was in ((new.apart, old.apart), (new.overload, old.overload),
                        (new.distance, old.distance), (new.remote, old.remote)):  # fmt: skip
        if abs(was - is_now) >= _CLEAR:
            return is_now < was
    return (old.crowd - new.crowd) * _SPREAD >= max(old.crowd, 1)


def placed(problem: ToPlace) -> dict[Channel, int]:
    """The CPU of every channel that the rule is for and that has one: as now, or better."""
    now, before = problem.now, cost(problem.now, problem)
    found = now
    if problem.cpus and not _is_good(before, problem):
        search = _Search(problem)
        search.improve()
        found = search.places
    return {each: cpu for each in problem.every if (cpu := found.get(each)) is not None}


def _is_good(now: Cost, problem: ToPlace) -> bool:
    """No place can be clearly better, which spares the search."""
    if any(now[:4]):
        return False
    carried, total = _loads(problem.now, problem).by_channel, problem.total or 1.0
    alone = sum(sum(carried[each] for each in group) ** 2 for group in problem.groups)
    least = max(alone, sum(carried.values()) ** 2 / len(problem.cpus)) / total**2
    return (now.crowd - 1000 * least) * _SPREAD < now.crowd


class _Loads(NamedTuple):
    by_cpu: Mapping[int, float]  # work, as packets/s
    by_channel: Mapping[Channel, float]
    distance: float  # packets/s times distance
    beyond: float  # packets/s that go further than the rule says
    remote: float  # packets/s of channels off the node of their interface


def _loads(places: Places, problem: ToPlace) -> _Loads:
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


def _sides(
    places: Places, problem: ToPlace, carried: Mapping[Channel, float]
) -> dict[Channel, frozenset[int]]:
    """The CPUs on which each channel is as modes I and II say. What receives is where most of it is
    already."""
    parts = problem.parts
    if len(parts) < 2:
        return {}
    works = Counter[str]()
    for each, pps in carried.items():
        works[each.nic] += round(pps)
    senders = [nic for nic in problem.channels if nic not in problem.receives]
    receivers = [nic for nic in problem.channels if nic in problem.receives]

    def here(nics: Collection[str], but: frozenset[int] = frozenset()) -> frozenset[int]:
        most = Counter[frozenset[int]]()
        for each in problem.every:
            for part in parts:
                if each.nic in nics and places.get(each) in part:
                    held = 1_000_000_000 if each in problem.fixed else 0
                    most[part] += 1 + round(carried.get(each, 0.0)) + held
        return max((part for part in parts if part != but), key=lambda part: most[part])

    if problem.placement is PairPlacement.MODE_I:
        receiving = here(receivers)
        sending = here(senders, receiving)
        return {
            each: receiving if each.nic in problem.receives else sending for each in problem.every
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
        for each in problem.every
    }


class _Search:
    """The best that was found so far."""

    def __init__(self, problem: ToPlace) -> None:
        self.problem, self.places = problem, dict(problem.now)
        self.tries = 0
        self.cost = cost(self.places, problem)
        self.carried = _loads(problem.now, problem).by_channel
        self.groups = [group for group in problem.groups if self._cpus(group)]
        self.groups.sort(key=lambda group: (-self._weight(group), group))

    def improve(self) -> None:
        better = True
        while better and self.tries < _TRIES:
            better = sum(self._best(group) for group in self.groups) > 0
            if not better:
                pairs = combinations(self.groups, 2)
                better = sum(self._exchanged(*pair) for pair in pairs) > 0

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
                yield from self.problem.of_nic.get(egress, ())
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
