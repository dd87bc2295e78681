# SPDX-License-Identifier: GPL-2.0-or-later
"""What `bench.ordering` found, in rows, targets and a picture. Pure but for the picture.

Moves of all rounds are added up, and their share that reordered has an exact interval; times are
the medians over the rounds of each round's p50 and p99.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench import plot
from bench.report import Report
from bench.stats import Estimate, median, proportion

__all__ = ["Run", "Way", "report"]

P50_P99 = tuple[int, int]  # ns
MOVES = 100_000  # of mode strict, together
BOUNDED = 1e-4


class Way(NamedTuple):
    """One way to move flows: so many moves a round, for so long at the most."""

    name: str
    moves: int
    limit_s: float
    stall: bool = True


class Run(NamedTuple):
    """One way in one round."""

    way: str
    streams: int
    seconds: float
    moves: int  # of flows, done
    reordered: dict[str, int]  # moves with a late datagram, by how they ended
    queue_moves: int
    writes: int
    late: int  # datagrams, by their numbers
    reported: int  # datagrams, by our own detection
    disagreed: int  # moves where the two differ
    stray: int  # late datagrams of no move
    late_after_ns: list[tuple[str, int]]  # each late one: its move's verdict, and since it began
    received: int
    lost: int
    ring_drops: int
    verdicts: dict[str, int]
    deferred: dict[str, int]  # by reason
    took_ns: P50_P99 | None
    delays_ns: P50_P99 | None
    moved_ns: P50_P99 | None
    neighbours_ns: P50_P99 | None
    timers_ns: dict[int, int]  # T_A by queue, afterwards


Groups = dict[tuple[int, str], list[Run]]  # by streams and way


def report(runs: Sequence[Run]) -> Report:
    """From all runs of all rounds."""
    report = Report("ordering", "moves that reordered packets, by mode, under a stalled ring")
    report.samples["runs"] = [each._asdict() for each in runs]
    groups: Groups = {}
    for each in runs:
        groups.setdefault((each.streams, each.way), []).append(each)
    shares: dict[str, list[Estimate]] = {}
    for (streams, way), found in sorted(groups.items()):
        if share := _rows(report, f"2n = {streams}", way, found):
            shares.setdefault(way, []).append(share)
    _targets(report, runs)
    _notes(report, runs)
    counts = [str(count) for count in sorted({each.streams for each in runs})]
    whole = {way: each for way, each in shares.items() if len(each) == len(counts)}
    plot.bars("ordering", "Moves that reordered packets (under a stall)", "share of moves",
              counts, whole, BOUNDED, floor=1e-6)  # fmt: skip
    return report


def _rows(report: Report, what: str, way: str, found: Sequence[Run]) -> Estimate | None:
    moves = sum(each.moves for each in found)
    share = None
    if moves:
        reordered = _total(found, way)[1]
        share = report.add(
            f"{what}, moves that reordered", way, "share", proportion(reordered, moves)
        )
        rate = median(each.moves / each.seconds for each in found)
        report.add(f"{what}, moves", way, "1/s", rate)
    if tried := sum(sum(each.verdicts.values()) for each in found):
        put_off = sum(sum(each.deferred.values()) for each in found)
        report.add(f"{what}, moves deferred", way, "share", proportion(put_off, tried))
    late = proportion(sum(each.late for each in found), sum(each.received for each in found))
    report.add(f"{what}, packets reordered", way, "share", late)
    for name, samples in (
        ("a move takes", [each.took_ns for each in found]),
        ("on its way", [each.delays_ns for each in found]),
        ("on its way, moved flow", [each.moved_ns for each in found]),
        ("on its way, held neighbour", [each.neighbours_ns for each in found]),
    ):
        for number, quantile in enumerate(("p50", "p99")):
            values = [each[number] / 1000 for each in samples if each is not None]
            if values:
                report.add(f"{what}, {name}, {quantile}", way, "us", median(values))
    return share


def _total(runs: Iterable[Run], *ways: str) -> tuple[int, int]:
    """Moves, and how many of them reordered."""
    of_ways = [each for each in runs if each.way in ways]
    return sum(each.moves for each in of_ways), sum(
        sum(each.reordered.values()) for each in of_ways
    )


def _learned(runs: Sequence[Run]) -> list[Run]:
    """Runs of `gap` that knew T_A from one before."""
    known, found = set[int](), []
    for each in runs:
        if each.way == "gap":
            found += [each] if each.streams in known else []
            known.add(each.streams)
    return found


def _targets(report: Report, runs: Sequence[Run]) -> None:
    strict, reordered = _total(runs, "strict")
    report.at_most("strict, moves that reordered", reordered, 0, "moves")
    report.at_least("strict, moves under stall", strict, MOVES, "moves")
    for way, what, own in (
        ("bounded", "bounded", runs),
        ("gap", "gap, after the first round", _learned(runs)),
        ("follow", "follow", runs),
    ):
        moves, reordered = _total(own, way)
        if moves:
            report.at_most(f"{what}, moves that reordered", reordered / moves, BOUNDED, "share")
    report.at_least("immediate shows the effect", _total(runs, "immediate")[1], 1, "moves")


def _verdicts(way: str, runs: Sequence[Run]) -> list[str]:
    """How its moves ended, and how many of each reordered."""
    ended, reordered = Counter[str](), Counter[str]()
    for each in runs:
        ended.update(each.verdicts)
        reordered.update(each.reordered)
    words = [f"{n:,} {verdict} ({reordered[verdict]} reordered)" for verdict, n in ended.items()]
    return [f"{way} ended as {', '.join(words)}"] if words else []


def _notes(report: Report, runs: Sequence[Run]) -> None:
    ways = dict.fromkeys(each.way for each in runs)
    for way in ways:
        moves, reordered = _total(runs, way)
        if moves:
            share = proportion(reordered, moves)
            report.notes.append(f"{way}: {reordered} of {moves:,} moves reordered, {share.text()}")
            report.notes += _verdicts(way, [each for each in runs if each.way == way])
    for way in ways:
        why: Counter[str] = Counter()
        for each in runs:
            if each.way == way:
                why.update(each.deferred)
        report.notes += [f"{way}, deferred {n} ×: {words}" for words, n in why.most_common(3)]
    for streams, timers_ns in {r.streams: r.timers_ns for r in runs if r.way == "gap"}.items():
        taken = ", ".join(f"{ns / 1e6:.1f} ms" for ns in timers_ns.values())
        report.notes.append(f"gap, T_A of the queues at the end, 2n = {streams}: {taken}")
    watched = [each for each in runs if each.verdicts]
    reported, disagreed = (
        sum(each.reported for each in watched),
        sum(each.disagreed for each in watched),
    )
    report.notes.append(
        f"our own detection reported {reported:,} late packets; it differs from the datagrams' "
        f"numbers in {disagreed:,} moves"
    )
    received, lost = sum(each.received for each in runs), sum(each.lost for each in runs)
    drops, stray = sum(each.ring_drops for each in runs), sum(each.stray for each in runs)
    report.notes.append(
        f"{received:,} datagrams came, {lost:,} were lost, {drops:,} of them to full rings; "
        f"{stray:,} were late and of no move"
    )
