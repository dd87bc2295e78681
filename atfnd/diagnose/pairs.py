# SPDX-License-Identifier: GPL-2.0-or-later
"""From counts of forwarded packets to the pairs that a person reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from atfnd.diagnose.gain import Parts
from atfnd.model import ForwardedCount, Pair, Pairs

__all__ = ["Counted", "paired"]


class Counted(NamedTuple):
    """What was counted in these seconds."""

    seconds: float
    missed: int
    counts: tuple[ForwardedCount, ...]


def paired(
    counted: Counted,
    names: Mapping[tuple[int, int], str],
    tx_cpus: Mapping[tuple[int, int, int], int | None],
    parts: Parts,
    nic: str | None = None,
) -> Pairs:
    """`names`: of interfaces, by namespace and ifindex. `tx_cpus`: where a TX queue's channel is
    served, by namespace, ifindex and queue. `nic`: only what comes in or goes out there."""
    every = (_pair(each, counted.seconds, names, tx_cpus, parts) for each in counted.counts)
    chosen = (each for each in every if nic in (None, each.ingress, each.egress))
    pairs = sorted(chosen, key=lambda each: (-each.packets_pps, each.ingress, each.egress))
    return Pairs(counted.seconds, None, counted.missed, tuple(pairs))


def _pair(
    each: ForwardedCount,
    seconds: float,
    names: Mapping[tuple[int, int], str],
    tx_cpus: Mapping[tuple[int, int, int], int | None],
    parts: Parts,
) -> Pair:
    def name(ifindex: int) -> str:
        return names.get((each.netns, ifindex), f"interface {ifindex}")

    tx_cpu = tx_cpus.get((each.netns, each.egress_ifindex, each.tx_queue))
    return Pair(
        ingress=name(each.ingress_ifindex),
        egress=name(each.egress_ifindex),
        tx_queue=each.tx_queue,
        cpu=each.cpu,
        tx_cpu=tx_cpu,
        distance=None if tx_cpu is None else parts.distance(each.cpu, tx_cpu),
        packets_pps=each.packets / seconds,
        bytes_per_s=each.bytes / seconds,
    )
