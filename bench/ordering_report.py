# SPDX-License-Identifier: GPL-2.0-or-later
"""What `bench.ordering` found, in rows and targets. Pure.

Moves of all rounds are added up, and their share that reordered has an exact interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from bench.report import Report
from bench.stats import median, proportion

__all__ = ["Run", "Way", "report"]

MOVES = 100_000  # of mode strict, together
BOUNDED = 1e-4


class Way(NamedTuple):
    """One way to move flows: so many moves a round, for so long at the most."""

    name: str
    moves: int
    limit_s: float


class Run(NamedTuple):
    """One way in one round."""

    way: str
    streams: int
    seconds: float
    moves: int  # done; of `follow`: of the queue
    reordered: dict[str, int]  # moves with a late datagram, by how they ended
    late: int  # datagrams, by their numbers
    reported: int  # datagrams, by our own detection
    disagreed: int  # moves where the two differ
    stray: int  # late datagrams of no move
    received: int
    lost: int
    ring_drops: int
    verdicts: dict[str, int]
    deferred: dict[str, int]  # by reason


def report(runs: Sequence[Run]) -> Report:
    """From all runs of all rounds."""
    report = Report("ordering", "moves that reordered packets, by mode, under a stalled ring")
    report.samples["runs"] = [each._asdict() for each in runs]
    groups: dict[tuple[int, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.streams, each.way), []).append(each)
    for (streams, way), found in sorted(groups.items()):
        _rows(report, f"2n = {streams}", way, found)
    _targets(report, runs)
    for way in dict.fromkeys(each.way for each in runs):
        _notes(report, way, [each for each in runs if each.way == way])
    reported, disagreed, received, lost, drops, stray = (
        sum(getattr(each, what) for each in runs)
        for what in ("reported", "disagreed", "received", "lost", "ring_drops", "stray")
    )
    report.notes.append(
        f"our own detection reported {reported:,} late packets; it differs from the datagrams' "
        f"numbers in {disagreed:,} moves"
    )
    report.notes.append(
        f"{received:,} datagrams came, {lost:,} were lost, {drops:,} of them to full rings; "
        f"{stray:,} were late and of no move"
    )
    return report


def _rows(report: Report, what: str, way: str, found: Sequence[Run]) -> None:
    moves, reordered = _total(found, way)
    if moves:
        share = proportion(reordered, moves)
        report.add(f"{what}, moves that reordered", way, "share", share)
        rate = median(each.moves / each.seconds for each in found)
        report.add(f"{what}, moves", way, "1/s", rate)
    late = proportion(sum(each.late for each in found), sum(each.received for each in found))
    report.add(f"{what}, packets reordered", way, "share", late)


def _total(runs: Sequence[Run], way: str) -> tuple[int, int]:
    """Moves, and how many of them reordered."""
    own = [each for each in runs if each.way == way]
    return sum(each.moves for each in own), sum(sum(each.reordered.values()) for each in own)


def _targets(report: Report, runs: Sequence[Run]) -> None:
    strict, reordered = _total(runs, "strict")
    report.at_most("strict, moves that reordered", reordered, 0, "moves")
    report.at_least("strict, moves under stall", strict, MOVES, "moves")
    for way in ("bounded", "follow"):
        moves, reordered = _total(runs, way)
        if moves:
            report.at_most(f"{way}, moves that reordered", reordered / moves, BOUNDED, "share")
    report.at_least("immediate shows the effect", _total(runs, "immediate")[1], 1, "moves")


def _notes(report: Report, way: str, runs: Sequence[Run]) -> None:
    """How its moves ended, how many of each reordered, and why others were put off."""
    moves, reordered = _total(runs, way)
    if not moves:
        return
    share = proportion(reordered, moves)
    report.notes.append(f"{way}: {reordered} of {moves:,} moves reordered, {share.text()}")
    ended, late, why = Counter[str](), Counter[str](), Counter[str]()
    for each in runs:
        ended.update(each.verdicts)
        late.update(each.reordered)
        why.update(each.deferred)
    words = [f"{n:,} {verdict} ({late[verdict]} reordered)" for verdict, n in ended.items()]
    report.notes.append(f"{way} ended as {', '.join(words)}")
    report.notes += [f"{way}, deferred {n} ×: {words}" for words, n in why.most_common(3)]
