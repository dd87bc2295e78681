# SPDX-License-Identifier: GPL-2.0-or-later
"""Which moves reordered packets, by numbered datagrams. Pure.

A late datagram belongs to the last move of its flow that began before it was received. It is also
compared, move by move, with what the daemon's own detection told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.traffic.datagrams import Datagram

__all__ = ["Moved", "Seen", "seen"]


class Moved(NamedTuple):
    """One move that was done."""

    flow: int | None  # None: all flows at once, by their queue
    began_ns: int  # CLOCK_REALTIME
    reported: int | None  # datagrams late, by our own detection; None: it did not look
    verdict: str  # how it ended, in our own words


@dataclass(slots=True)
class Seen:
    """By the datagrams."""

    late: int = 0
    stray: int = 0  # late, and of no move
    reordered: Counter[str] = field(default_factory=Counter)  # moves, by verdict
    disagreed: int = 0  # moves of which our own detection reported another number


def seen(moves: Sequence[Moved], datagrams: Iterable[Datagram]) -> Seen:
    """Join moves and datagrams."""
    found = Seen()
    own: dict[int | None, list[Moved]] = defaultdict(list)
    for move in sorted(moves, key=lambda move: move.began_ns):
        own[move.flow].append(move)
    began = {flow: [move.began_ns for move in of_flow] for flow, of_flow in own.items()}
    late = Counter[tuple[int | None, int]]()  # by flow and the number of its move
    for datagram in datagrams:
        if datagram.late:
            flow = datagram.flow if datagram.flow in own else None
            at = bisect_right(began.get(flow, []), datagram.received_ns) - 1
            found.late += 1
            found.stray += at < 0
            late[flow, at] += at >= 0
    late = +late
    found.reordered.update(own[flow][at].verdict for flow, at in late)
    found.disagreed = sum(
        move.reported is not None and move.reported != late[flow, at]
        for flow, of_flow in own.items()
        for at, move in enumerate(of_flow)
    )
    return found
