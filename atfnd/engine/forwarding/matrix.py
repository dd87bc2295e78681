# SPDX-License-Identifier: GPL-2.0-or-later
"""Which channel forwards how much to which interface. Pure.

A channel is a receive queue and the TX queue of the same number: one NAPI polls both. The kernel
counts by CPU, not by receive queue (`model.pairs`): what a CPU forwards from an interface came in
by the channel that is served there. Of several such channels, of one interface or of several below
a bond, each counts alike; once they are apart, the next count tells them apart. Packets of a CPU
that serves none of its channels (RPS, or a channel that has just moved) count for those whose CPU
is not known, else for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from atfnd.model import NicView, Pair

__all__ = ["Channel", "Sent", "Stream", "sent", "streams"]


class Channel(NamedTuple):
    nic: str
    queue: int


class Stream(NamedTuple):
    """What comes in by a channel and goes out by an interface."""

    ingress: Channel
    egress: str
    pps: float


class Sent(NamedTuple):
    """What one CPU forwards to an interface."""

    pps: float
    tx_queues: frozenset[int]


def streams(pairs: Iterable[Pair], nics: Mapping[str, NicView]) -> list[Stream]:
    """From what was counted between these interfaces, most packets first."""
    found = defaultdict[tuple[Channel, str], float](float)
    for pair in pairs:
        if not nics.keys() >= {*pair.came_by, pair.egress} or pair.packets_pps <= 0:
            continue
        every = [(Channel(nic, each.index), each.cpu) for nic in pair.came_by
                 for each in nics[nic].queues]  # fmt: skip
        here = [channel for channel, cpu in every if cpu == pair.cpu]
        here = here or [channel for channel, cpu in every if cpu is None]
        here = here or [channel for channel, _ in every]
        for channel in here:
            found[channel, pair.egress] += pair.packets_pps / len(here)
    made = (Stream(*key, pps) for key, pps in found.items())
    return sorted(made, key=lambda each: (-each.pps, each.ingress, each.egress))


def sent(pairs: Iterable[Pair]) -> dict[tuple[str, int], Sent]:
    """By egress and CPU, whatever it came in by."""
    found: dict[tuple[str, int], Sent] = {}
    for pair in pairs:
        if pair.packets_pps > 0:
            key = pair.egress, pair.cpu
            pps, tx_queues = found.get(key, Sent(0.0, frozenset()))
            found[key] = Sent(pps + pair.packets_pps, tx_queues | {pair.tx_queue})
    return found
