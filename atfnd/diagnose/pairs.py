# SPDX-License-Identifier: GPL-2.0-or-later
"""From counts of forwarded packets to the pairs that a person reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from atfnd.diagnose.gain import Parts
from atfnd.model import ForwardedCount, ForwardedElsewhere, NicView, Pair, Pairs

__all__ = ["Counted", "Tally", "not_counted", "of_nic", "paired"]

_Key = tuple[int, int, int, int, int]  # of a `ForwardedCount`: all that it does not count


class Counted(NamedTuple):
    """What was counted in these seconds."""

    seconds: float
    missed: int
    counts: tuple[ForwardedCount, ...]


class Tally(NamedTuple):
    """All that one count has counted, at a moment (CLOCK_MONOTONIC)."""

    at_s: float
    missed: int
    counts: Mapping[_Key, ForwardedCount]

    @classmethod
    def of(cls, at_s: float, missed: int, counts: list[ForwardedCount]) -> Tally:
        return cls(at_s, missed, {_key(each): each for each in counts})

    def since(self, before: Tally) -> Counted:
        """What has come since an earlier moment of the same count."""
        new = (_less(each, before.counts.get(key)) for key, each in self.counts.items())
        counts = tuple(each for each in new if each.packets)
        return Counted(self.at_s - before.at_s, self.missed - before.missed, counts)


def _key(each: ForwardedCount) -> _Key:
    return each.netns, each.ingress_ifindex, each.egress_ifindex, each.tx_queue, each.cpu


def _less(each: ForwardedCount, before: ForwardedCount | None) -> ForwardedCount:
    if before is None:
        return each
    return each._replace(packets=each.packets - before.packets, bytes=each.bytes - before.bytes)


def _sum(each: ForwardedCount, other: ForwardedCount | None) -> ForwardedCount:
    if other is None:
        return each
    return each._replace(packets=each.packets + other.packets, bytes=each.bytes + other.bytes)


def not_counted(why: str) -> Pairs:
    return Pairs(0.0, why, 0, ())


def of_nic(pairs: Pairs, nic: str | None) -> Pairs:
    """Only what may have come in or goes out there; None: all."""
    if nic is None:
        return pairs
    return replace(
        pairs,
        elsewhere=(),
        pairs=tuple(
            each for each in pairs.pairs if nic in (each.ingress, *each.among, each.egress)
        ),
    )


def paired(
    counted: Counted,
    names: Mapping[tuple[int, int], str],
    below: Mapping[tuple[int, int], Sequence[tuple[int, int]]],
    nics: Mapping[tuple[int, int], NicView],
    parts: Parts,
    namespaces: Mapping[int, str] = MappingProxyType({}),
) -> Pairs:
    """`names` of interfaces, what is at the bottom of those that stand upon others, and `nics` that
    are watched, by namespace and ifindex; names of `namespaces` by inode number. A namespace of
    which no interface has a name is elsewhere. What goes out by an interface that stands upon
    others is in the count of the lowest one, and in no other."""
    tx_cpus = {(*at, queue.index): queue.cpu for at, view in nics.items() for queue in view.queues}
    rx_queues = {at: _queue_of_cpu(view) for at, view in nics.items()}

    def name(at: tuple[int, int]) -> str:
        return names.get(at, f"interface {at[1]}")

    def came_by(each: ForwardedCount) -> Sequence[tuple[int, int]]:
        """One of these: of several, those that are served on its CPU, if all are watched."""
        every = below.get((each.netns, each.ingress_ifindex), ())
        if len(every) < 2 or not all(at in nics for at in every):
            return every
        return [at for at in every if each.cpu in rx_queues[at]] or every

    def pair(each: ForwardedCount) -> Pair:
        ingress, egress = (each.netns, each.ingress_ifindex), (each.netns, each.egress_ifindex)
        tx_cpu = tx_cpus.get((*egress, each.tx_queue))
        return Pair(
            ingress=name(ingress),
            rx_queue=rx_queues.get(ingress, {}).get(each.cpu),
            egress=name(egress),
            tx_queue=each.tx_queue,
            cpu=each.cpu,
            tx_cpu=tx_cpu,
            distance=None if tx_cpu is None else parts.distance(each.cpu, tx_cpu),
            packets=each.packets,
            packets_pps=each.packets / counted.seconds,
            bytes_per_s=each.bytes / counted.seconds,
            among=tuple(map(name, came_by(each))),
        )

    found = dict[_Key, ForwardedCount]()
    here, elsewhere = {netns for netns, _ in names}, dict[int, ForwardedCount]()
    for each in counted.counts:
        if each.netns not in here:
            elsewhere[each.netns] = _sum(each, elsewhere.get(each.netns))
            continue
        if (each.netns, each.egress_ifindex) in below:
            continue
        if len(lowest := came_by(each)) == 1:
            each = each._replace(ingress_ifindex=lowest[0][1])
        found[_key(each)] = _sum(each, found.get(_key(each)))
    pairs = sorted(
        map(pair, found.values()), key=lambda each: (-each.packets, each.ingress, each.egress)
    )
    others = [
        ForwardedElsewhere(
            namespaces.get(each.netns, str(each.netns)),
            each.packets / counted.seconds,
            each.bytes / counted.seconds,
        )
        for each in sorted(elsewhere.values(), key=lambda each: -each.packets)
    ]
    return Pairs(counted.seconds, None, counted.missed, tuple(pairs), tuple(others))


def _queue_of_cpu(view: NicView) -> dict[int, int | None]:
    """The receive queue that is served on each CPU; None where there are several. A packet of RPS
    may be of any queue."""
    found: dict[int, int | None] = {}
    if any(name.startswith("rps-cpus:") and cpus for name, cpus in view.settings.items()):
        return found
    for queue in view.queues:
        if queue.cpu is not None:
            found[queue.cpu] = None if queue.cpu in found else queue.index
    return found
