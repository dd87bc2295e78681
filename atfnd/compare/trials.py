# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials on one NIC: which subject is next, and what was learned. Pure.

There is one trial at a time. What was learned is kept by subject: an application, whose flows come
and go, or a queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from atfnd.compare.trial import Side, Trial, TrialLook, TrialPhase, TrialTerms, TrialTurn
from atfnd.model.reason import Why

__all__ = ["Trials", "Turned"]

_KNOWN = 1024  # subjects; the one not seen for the longest is forgotten

Subject = TypeVar("Subject", bound=Hashable)


class Turned(NamedTuple, Generic[Subject]):
    """An event: what is in force for a subject has changed, or its trial has ended."""

    subject: Subject
    kind: str  # trial, kept, back
    what: str
    why: Why


@dataclass(slots=True)
class Trials(Generic[Subject, Side]):
    """Of all subjects that are known."""

    terms: TrialTerms[Side]
    states: OrderedDict[Subject, Trial[Side]] = field(default_factory=OrderedDict)
    begun_ns: int | None = None  # the last trial

    def state(self, subject: Subject) -> Trial[Side]:
        return self.states.get(subject) or Trial.of(self.terms)

    @property
    def trying(self) -> bool:
        """A trial goes on."""
        return any(state.trying for state in self.states.values())

    def pressing(self, now_ns: int) -> bool:
        """A trial goes on, or begins if some subject is short of time in one more window."""
        return any(state.trying or self._ready(state, now_ns, 1) for state in self.states.values())

    def in_words(self, subject: Subject, now_ns: int) -> str:
        """In a clause."""
        return self.state(subject).in_words(now_ns)

    def look(self, looks: Mapping[Subject, TrialLook[Side]], now_ns: int) -> list[Turned[Subject]]:
        """One look at all subjects that are there."""
        turned: list[Turned[Subject]] = []
        for each, state in list(self.states.items()):
            if each not in looks and state.trying:
                self._take(each, state.void(self.terms.gone, now_ns), turned)
            elif each not in looks and state.phase is TrialPhase.USUAL:
                self.states[each] = replace(state, count=0, in_place=False)
        for each, look in looks.items():
            self._take(each, self.state(each).watched(look, now_ns), turned)
            self.states.move_to_end(each)
        self._begin(looks, now_ns, turned)
        self._forget()
        return turned

    def abandon(self, why: Why, now_ns: int) -> list[Turned[Subject]]:
        """End the trial; it is nobody's fault."""
        turned: list[Turned[Subject]] = []
        for each, state in list(self.states.items()):
            if state.trying:
                self._take(each, state.abandoned(why, now_ns), turned)
        return turned

    def _begin(
        self,
        looks: Mapping[Subject, TrialLook[Side]],
        now_ns: int,
        turned: list[Turned[Subject]],
    ) -> None:
        """Begin a trial of the subject that carries most, of those that are short of time. It could
        have begun when its window did: then that was pressing, and the window is as short as those
        of the trial will be."""
        ready = [
            each
            for each, look in looks.items()
            if self._ready(self.states[each], look.window.began_ns, self.terms.windows)
        ]
        if ready and not self.trying:
            chosen = max(ready, key=lambda each: looks[each].window.bytes)
            self.begun_ns = now_ns
            self._take(chosen, self.states[chosen].begin(looks[chosen], now_ns), turned)

    def _ready(self, state: Trial[Side], at_ns: int, windows: int) -> bool:
        last_ns = self.begun_ns
        paused = last_ns is not None and at_ns - last_ns < self.terms.between_ns
        return not paused and bool(state.ready(at_ns, windows))

    def _take(self, subject: Subject, turn: TrialTurn[Side], turned: list[Turned[Subject]]) -> None:
        self.states[subject] = turn.trial
        if turn.kind is not None:
            turned.append(Turned(subject, turn.kind, turn.what, turn.why))

    def _forget(self) -> None:
        surplus = len(self.states) - _KNOWN
        idle = (each for each, state in self.states.items() if not state.trying)
        for each in [each for each, _ in zip(idle, range(surplus), strict=False)]:
            del self.states[each]
