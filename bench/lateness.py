# SPDX-License-Identifier: GPL-2.0-or-later
"""Which moves reordered packets, and which packets waited for moves, by numbered datagrams. Pure.

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

AFTER_NS = 5_000_000  # a datagram sent so soon after a move began is one of the moved flow
AROUND_NS = 4_000_000  # a flow with traffic so near to a move of all flows was moved with them


class Moved(NamedTuple):
    """One move that was done. CLOCK_REALTIME."""

    flow: int | None  # None: all flows at once, by their queue or with their application
    began_ns: int
    done_ns: int
    held: bool  # in between, the new queue was quiesced
    reported: int | None  # datagrams late, by our own detection; None: it did not look
    verdict: str  # how it ended, in our own words


@dataclass(slots=True)
class Seen:
    """By the datagrams. Delays are from the sender to the stack of the host, in ns."""

    late: int = 0
    stray: int = 0  # late, and of no move
    moves: int = 0  # of flows
    reordered: Counter[str] = field(default_factory=Counter)  # of these, by verdict
    disagreed: int = 0  # our own detection reported another number
    late_after_ns: list[tuple[str, int]] = field(default_factory=list)  # its move's verdict, began
    delays_ns: list[int] = field(default_factory=list)  # of all
    moved_ns: list[int] = field(default_factory=list)  # of flows just moved
    neighbours_ns: list[int] = field(default_factory=list)  # of others, sent during a hold


def seen(moves: Sequence[Moved], datagrams: Iterable[Datagram]) -> Seen:
    """Join moves and datagrams. A move of all flows is one of those with traffic so near to it."""
    found = Seen()
    moves = sorted(moves, key=lambda move: move.began_ns)
    own: dict[int, list[Moved]] = defaultdict(list)
    for move in moves:
        if move.flow is not None:
            own[move.flow].append(move)
    everyones = [move for move in moves if move.flow is None]
    begins = {flow: [move.began_ns for move in of_flow] for flow, of_flow in own.items()}
    of_all = [move.began_ns for move in everyones]
    holds = [move for move in moves if move.held]
    held_from = [hold.began_ns for hold in holds]
    late: Counter[tuple[int, int]] = Counter()  # by flow and the number of its move
    met: set[tuple[int, int]] = set()  # of moves of all flows
    for datagram in datagrams:
        flow, sent_ns = datagram.flow, datagram.sent_ns
        began = begins.get(flow, of_all)
        found.delays_ns.append(datagram.delay_ns)
        last = bisect_right(began, sent_ns) - 1
        just_moved = last >= 0 and sent_ns < began[last] + AFTER_NS
        if just_moved:
            found.moved_ns.append(datagram.delay_ns)
        elif holds:
            hold = bisect_right(held_from, sent_ns) - 1
            if hold >= 0 and sent_ns <= holds[hold].done_ns:
                found.neighbours_ns.append(datagram.delay_ns)
        if of_all and (near := _near(of_all, datagram.received_ns)) is not None:
            met.add((flow, near))
        if datagram.late:
            at = bisect_right(began, datagram.received_ns) - 1
            found.stray += at < 0
            late[flow, at] += at >= 0
            if at >= 0:
                move = own.get(flow, everyones)[at]
                after_ns = datagram.received_ns - move.began_ns
                found.late_after_ns.append((move.verdict, after_ns))
            found.late += 1
    late = +late
    found.reordered.update(own.get(flow, everyones)[at].verdict for flow, at in late)
    found.moves = len(met | late.keys()) if of_all else sum(map(len, own.values()))
    for flow, of_flow in own.items():
        reported = [move.reported for move in of_flow]
        found.disagreed += sum(
            each is not None and each != late[flow, number] for number, each in enumerate(reported)
        )
    return found


def _near(began: Sequence[int], received_ns: int) -> int | None:
    """The move at whose time a datagram came."""
    at = bisect_right(began, received_ns + AROUND_NS) - 1
    return at if at >= 0 and received_ns <= began[at] + AROUND_NS else None
