# SPDX-License-Identifier: GPL-2.0-or-later
"""Visits every state that can be reached, breadth first: the first bad one has the shortest way."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

__all__ = ["Found", "explore"]

S = TypeVar("S", bound=Hashable)


class Found(NamedTuple):
    """How many states there are, or the shortest way to one that breaks a property."""

    states: int
    broken: str | None
    way: tuple[str, ...]
    verdicts: frozenset[str] = frozenset()  # that moves ended with

    def __str__(self) -> str:
        steps = "".join(f"\n  {number:2} {step}" for number, step in enumerate(self.way, 1))
        return f"{self.broken or 'holds'} ({self.states} states){steps}"


def explore(
    first: S,
    steps: Callable[[S], Iterator[tuple[str, S]]],
    broken: Callable[[S, bool], str | None],
    verdict: Callable[[S], str | None],
) -> Found:
    """`broken` says what is wrong with a state; its second argument: nothing more can happen."""
    with _no_gc():
        return _explore(first, steps, broken, verdict)


@contextmanager
def _no_gc() -> Iterator[None]:
    """States are tuples without cycles: collecting garbage among them takes half of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _explore(
    first: S,
    steps: Callable[[S], Iterator[tuple[str, S]]],
    broken: Callable[[S, bool], str | None],
    verdict: Callable[[S], str | None],
) -> Found:
    came: dict[S, tuple[S, str] | None] = {first: None}
    queue, verdicts = deque([first]), set()
    while queue:
        state = queue.popleft()
        following = list(steps(state))
        verdicts.add(verdict(state))
        if why := broken(state, not following):
            return Found(len(came), why, _way(came, state))
        for label, after in following:
            if after not in came:
                came[after] = state, label
                queue.append(after)
    said = frozenset(each for each in verdicts if each is not None)
    return Found(len(came), None, (), said)


def _way(came: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    labels = []
    while (before := came[state]) is not None:
        state, label = before
        labels.append(label)
    return tuple(reversed(labels))
