# SPDX-License-Identifier: GPL-2.0-or-later
"""Is it better armed than paused? Paired differences of slots, each figure with its interval. Pure.

The interval of a figure is Student's t over the differences of its pairs. A pair in which either
slot was lost, or does not know the figure, is left out of it. The verdict rests on three figures,
and each of these is tested at a third of what may go wrong (Bonferroni): where there is no
difference at all, the sentence says one in 5 of 100 measurements at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from atfnd.compare.pairs import LEAST_PAIRS, Pair
from atfnd.compare.student import interval
from atfnd.model import Compared, Effect, Figure, Measurement

__all__ = ["CONFIDENCE", "JUDGED", "compare"]

CONFIDENCE = 0.95


class _Kind(NamedTuple):
    """How a figure is shown, and what is better."""

    unit: str
    name: str  # in the sentence
    more_is_better: bool | None  # None: the verdict does not rest on it


_KINDS = {
    Figure.READ_LOCALITY: _Kind("share", "read locality", None),
    Figure.CPU_PER_PACKET: _Kind("ns", "CPU per packet", None),
    Figure.CPU_PER_BYTE: _Kind("ns", "CPU per byte", False),
    Figure.NETWORK_CPU: _Kind("ns", "network CPU per packet", None),
    Figure.NETWORK_CPU_PER_BYTE: _Kind("ns", "network CPU per byte", None),
    Figure.APPLICATION_CPU: _Kind("ns", "applications' CPU per packet", None),
    Figure.APPLICATION_CPU_PER_BYTE: _Kind("ns", "applications' CPU per byte", None),
    Figure.DAEMON_CPU: _Kind("of a core", "atfnd's CPU", None),
    Figure.INTERRUPTS: _Kind("per 1,000 packets", "interrupts", None),
    Figure.HANDOFFS: _Kind("per 1,000 packets", "handoffs", None),
    Figure.SWITCHES: _Kind("per 1,000 packets", "context switches", None),
    Figure.RTT: _Kind("us", "round trip time", False),
    Figure.THROUGHPUT: _Kind("bytes/s", "throughput", True),
}
JUDGED = tuple(each for each, kind in _KINDS.items() if kind.more_is_better is not None)
_EACH = 1 - (1 - CONFIDENCE) / len(JUDGED)


def compare(nic: str, pairs: Sequence[Pair], against: str | None = None) -> Measurement:
    """What the pairs say. `against`: the other slots were steered by this policy, not paused."""
    figures = tuple(_compared(figure, pairs) for figure in Figure)
    judged = [each for each in figures if each.verdict is not None]
    verdict = _verdict(each.verdict for each in judged)
    lost = sum(slot is None for pair in pairs for slot in pair)
    sentence = _sentence(verdict, judged, pairs, against)
    return Measurement(nic, len(pairs), lost, CONFIDENCE, figures, verdict, sentence, against)


def _compared(figure: Figure, pairs: Sequence[Pair]) -> Compared:
    kind = _KINDS[figure]
    known: list[tuple[float, float]] = []
    for armed, paused in pairs:
        a = None if armed is None else armed[figure]
        p = None if paused is None else paused[figure]
        if a is not None and p is not None:
            known.append((a, p))
    differences = [a - p for a, p in known]
    low = high = None
    if len(known) > 1:
        low, high = interval(differences, CONFIDENCE)
    return Compared(
        figure,
        kind.unit,
        len(known),
        paused=fmean(p for _, p in known) if known else None,
        armed=fmean(a for a, _ in known) if known else None,
        difference=fmean(differences) if known else None,
        low=low,
        high=high,
        verdict=None
        if kind.more_is_better is None
        else _judged(differences, more_is_better=kind.more_is_better),
    )


def _judged(differences: Sequence[float], *, more_is_better: bool) -> Effect:
    if len(differences) < LEAST_PAIRS:
        return Effect.UNKNOWN
    low, high = interval(differences, _EACH)
    if low <= 0 <= high:
        return Effect.SAME
    return Effect.BETTER if (low > 0) is more_is_better else Effect.WORSE


def _verdict(judged: Iterable[Effect | None]) -> Effect:
    """Of the whole: a figure that is not known neither helps nor hinders."""
    said = set(judged) - {Effect.UNKNOWN}
    if not said:
        return Effect.UNKNOWN
    if {Effect.BETTER, Effect.WORSE} <= said:
        return Effect.MIXED
    return next((each for each in (Effect.BETTER, Effect.WORSE) if each in said), Effect.SAME)


def _sentence(
    verdict: Effect, judged: Sequence[Compared], pairs: Sequence[Pair], against: str | None
) -> str:
    whole = sum(None not in pair for pair in pairs)
    if verdict is Effect.UNKNOWN:
        if whole < LEAST_PAIRS:
            are = "this is" if whole == 1 else "these are"
            return f"not known: it takes {LEAST_PAIRS} whole pairs of slots, and {are} {whole}"
        return "not known: too few packets came, or the machine does not say what they cost"
    how = "with atfnd" if against is None else f"than by {against}"
    words = {
        Effect.BETTER: f"better {how}",
        Effect.WORSE: f"worse {how}",
        Effect.MIXED: f"better in one way {how}, and worse in another",
        Effect.SAME: "no difference was found",
    }[verdict]
    only = {Effect.SAME} if verdict is Effect.SAME else {Effect.BETTER, Effect.WORSE}
    parts = [_part(each) for each in judged if each.verdict in only]
    unknown = [_KINDS[each.figure].name for each in judged if each.verdict is Effect.UNKNOWN]
    parts += [f"{name} is not known" for name in unknown]
    return f"{words}: {'; '.join(parts)}"


def _part(compared: Compared) -> str:
    """`CPU per byte -4.1 % [-6.0, -2.2]`."""
    name, of = _KINDS[compared.figure].name, compared.paused
    if not of or compared.difference is None or compared.low is None or compared.high is None:
        return name
    value, low, high = (
        100 * each / of for each in (compared.difference, compared.low, compared.high)
    )
    return f"{name} {value:+.1f} % [{low:+.1f}, {high:+.1f}]"
