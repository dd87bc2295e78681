# SPDX-License-Identifier: GPL-2.0-or-later
"""One trial: is something else better than the usual? Each candidate is tried for a window, and
then the usual once more: A, B, C, A. Pure.

A window counts only if what is measured was in force from its begin to its end. What pays against
both windows of the usual (`window.Comparison.pays`) and carries most is kept. A candidate rests
when it did not pay, or a window said nothing: twice as long after each time. What is kept stays,
however the figures vary, until it has lost its reason in several windows in a row.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from atfnd.compare.window import Comparison, Window, paid
from atfnd.model.reason import UNSAID, Code, Why
from atfnd.model.rests import Ladder, Rests

__all__ = ["Side", "Trial", "TrialLook", "TrialPhase", "TrialTerms", "TrialTurn"]

Side = TypeVar("Side", bound=Hashable)


class TrialTerms(NamedTuple, Generic[Side]):
    """What is usual, when to try something else, and what to believe."""

    usual: Side
    at_first: Why  # why that is in force
    gone: Why  # says of a trial that its subject was not seen
    share: float  # of a CPU: it is short of time
    margin: float  # of a gain; below is noise
    back_off_ns: int  # of a candidate that failed, at first
    windows: int = 2  # in a row, before a trial
    leave_windows: int = 5  # in a row, with a reason to leave what was kept
    between_ns: int = 0  # between the begins of two trials of a NIC
    every_ns: int = 60_000_000_000  # and of the same subject
    patience_ns: int = 60_000_000_000  # until what is tried is in force
    back_off_max_ns: int = 3_600_000_000_000
    uneven: float = 1.5  # windows are of equal length, up to this
    give_up: float | None = None  # so much less carried already while it is being set; None: never


class TrialLook(NamedTuple, Generic[Side]):
    """One more window, and what it means for its subject."""

    window: Window
    able: tuple[Side, ...]  # what can be had; the first is tried first
    cpu: int | None  # the one that may be short of time
    share: float  # of it, that the subject takes
    why: Why | None = None  # nothing is tried; None: as before
    leave: Why | None = None  # what is kept has lost its reason
    failed: bool = True  # if so, it rests
    at_once: bool = False  # not only after several windows
    other: bool | None = None  # its load is another one than when it was judged; None: not known


class TrialPhase(Enum):
    USUAL = "usual"
    TRIED = "tried"  # B
    AGAIN = "the usual is measured once more"  # the second A
    KEPT = "kept"


class TrialTurn(NamedTuple, Generic[Side]):
    """The new state; and an event, if what is in force changed or a trial ended."""

    trial: Trial[Side]
    kind: str | None = None  # trial, kept, back
    what: str = ""
    why: Why = UNSAID


@dataclass(frozen=True, slots=True)
class Trial(Generic[Side]):
    """The state of one subject."""

    terms: TrialTerms[Side]
    side: Side  # in force
    why: Why
    phase: TrialPhase = TrialPhase.USUAL
    since_ns: int = 0
    in_place: bool = False  # at the last look it was so
    count: int = 0  # windows in a row: short of time (USUAL), a reason to leave (KEPT)
    ahead: tuple[Side, ...] = ()  # still to be tried; USUAL: in the next trial
    before: Window | None = None  # A
    tried: tuple[tuple[Side, Window], ...] = ()  # what has paid until now
    rests: Rests[Side] = field(default_factory=Rests)
    judged: float | None = None  # bytes a second, at the last verdict
    other: int = 0  # windows in a row with another load
    began_ns: int | None = None  # its last trial

    @classmethod
    def of(cls, terms: TrialTerms[Side]) -> Trial[Side]:
        """Of a subject that is not known."""
        return cls(terms, terms.usual, terms.at_first)

    @property
    def trying(self) -> bool:
        return self.phase in (TrialPhase.TRIED, TrialPhase.AGAIN)

    def ready(self, at_ns: int, windows: int) -> tuple[Side, ...]:
        """What may be tried at this time, if it was short of time for so many windows."""
        paused = self.began_ns is not None and at_ns - self.began_ns < self.terms.every_ns
        if self.phase is not TrialPhase.USUAL or self.count < windows or paused:
            return ()
        return tuple(each for each in self.ahead if not self.rests.on(each, at_ns))

    def begin(self, look: TrialLook[Side], now_ns: int) -> TrialTurn[Side]:
        """A trial begins; this window is the A before it."""
        window, ahead = look.window, self.ready(look.window.began_ns, self.terms.windows)
        takes, carries = Code.TAKES(look.share, look.cpu), window.figures(window.cpus)
        begun = replace(self, ahead=ahead, before=window, tried=(), began_ns=now_ns)
        return begun._next(Code.SHORT_OF_TIME(takes, carries), now_ns)

    def watched(self, look: TrialLook[Side], now_ns: int) -> TrialTurn[Side]:
        """One more window."""
        match self.phase:
            case TrialPhase.USUAL:
                return TrialTurn(self._usual(look))
            case TrialPhase.TRIED | TrialPhase.AGAIN:
                return self._trying(look.window, now_ns)
            case TrialPhase.KEPT:
                return self._kept(look, now_ns)

    def void(self, why: Why, now_ns: int) -> TrialTurn[Side]:
        """A trial ends without a result."""
        failed = [each for each, _ in self.tried] + [self.side] * (self.side != self.terms.usual)
        return self._back(Code.VOID(why), now_ns, failed)

    def abandoned(self, why: Why, now_ns: int) -> TrialTurn[Side]:
        """It ends, and what was tried is not to blame."""
        return self._back(Code.VOID(why), now_ns)

    def in_words(self, now_ns: int) -> str:
        """For `explain`, in a clause."""
        age = f"{max(0, now_ns - self.since_ns) / 1e9:.0f} s"
        if self.trying:
            return f"auto: {self.side} for {age}, on trial"
        again = "".join(
            f"; {each} is not tried again within {(rest.until_ns - now_ns) / 1e9:.0f} s"
            for each, rest in self.rests.items()
            if rest.until_ns > now_ns and self.phase is TrialPhase.USUAL
        )
        since = f" since {age}" if self.since_ns else ""
        return f"auto: {self.side}{since}, {self.why}{again}"

    def _usual(self, look: TrialLook[Side]) -> Trial[Side]:
        """Count the windows that call for a trial: a CPU is short of time, and there is something
        to try."""
        window, other, rests, judged = look.window, self.other, self.rests, self.judged
        if look.other is not None:
            other = other + 1 if look.other else 0
        if other >= self.terms.leave_windows:  # what was judged then may be judged anew
            other, rests, judged = 0, Rests[Side](), None
        calls = window.void is None and look.share >= self.terms.share and bool(look.able)
        count = self.count + 1 if self.in_place and window.there and calls else 0
        return replace(
            self, why=look.why or self.why, in_place=window.there, count=count, ahead=look.able,
            other=other, rests=rests, judged=judged,
        )  # fmt: skip

    def _trying(self, window: Window, now_ns: int) -> TrialTurn[Side]:
        """A trial goes on: something is being set, or this is one of its windows."""
        terms, before, why = self.terms, self.before, window.void
        in_place = self.in_place and window.there
        assert before is not None
        if why is None and in_place:
            shorter, longer = sorted((window.length_ns, before.length_ns))
            why = Code.UNEVEN() if longer > terms.uneven * shorter else None
        elif why is None and now_ns - self.since_ns > terms.patience_ns:
            why = Code.NOT_IN_FORCE(self.side, terms.patience_ns // 10**9)
        if why is not None:
            return self.void(why, now_ns)
        again = self.phase is TrialPhase.AGAIN
        verdict = self._compared(self.side, window, before)
        worse = terms.give_up is not None and verdict.rate * (1 + terms.give_up) < 1
        if not in_place and (again or not window.there or not worse):
            return TrialTurn(replace(self, in_place=window.there))
        if again:
            return self._judged(before, window, now_ns)
        if verdict.pays(terms.margin):
            known = replace(self, tried=(*self.tried, (self.side, window)))
        else:
            known = self._resting([self.side], now_ns)
        if known.ahead:
            return known._next(verdict.in_full(), now_ns)
        if not known.tried:
            return known._back(verdict.in_full(), now_ns)
        home = known._set(TrialPhase.AGAIN, terms.usual, verdict.in_full(), now_ns)
        return TrialTurn(home, "trial", f"{self.side} -> {terms.usual}, to compare", home.why)

    def _next(self, why: Why, now_ns: int) -> TrialTurn[Side]:
        """Try the next candidate."""
        chosen, *ahead = self.ahead
        trial = replace(self, ahead=tuple(ahead))._set(TrialPhase.TRIED, chosen, why, now_ns)
        return TrialTurn(trial, "trial", f"{self.side} -> {chosen}", why)

    def _judged(self, before: Window, after: Window, now_ns: int) -> TrialTurn[Side]:
        """The end of a trial: of what pays against both windows, what carries most is kept; of what
        comes within the margin of it, what was tried first."""
        margin = self.terms.margin
        verdicts = [
            (self._compared(each, window, before, after), each, window)
            for each, window in self.tried
        ]
        paying = [each for each in verdicts if each[0].pays(margin)]
        lost = [each for found, each, _ in verdicts if not found.pays(margin)]
        if not paying:
            nearest = max((verdict for verdict, _, _ in verdicts), key=lambda each: each.gain)
            return self._back(nearest.in_full(), now_ns, lost)
        most = max(window.bytes_per_s for _, _, window in paying) / (1 + margin)
        verdict, best, window = next(each for each in paying if each[2].bytes_per_s >= most)
        kept = self._resting(lost, now_ns)._set(TrialPhase.KEPT, best, verdict.why(), now_ns)
        usual = max(before, after, key=lambda each: each.bytes_per_s)
        kept = replace(kept, before=usual, tried=(), judged=window.bytes_per_s)
        return TrialTurn(kept, "kept", f"{self.terms.usual} -> {best}", verdict.in_full())

    def _compared(self, side: Side, window: Window, *usual: Window) -> Comparison:
        names = str(self.terms.usual), str(side)
        return paid(self.terms.margin, window, *usual, names=names)

    def _kept(self, look: TrialLook[Side], now_ns: int) -> TrialTurn[Side]:
        """It stays, unless it has lost its reason. A window that says nothing changes nothing."""
        there = look.window.there
        if look.leave is None:
            silent = look.window.void is not None
            return TrialTurn(self if silent else replace(self, count=0, in_place=there))
        left = replace(self, count=self.count + 1, in_place=there)
        if look.at_once:
            return left._back(look.leave, now_ns)
        if left.count < self.terms.leave_windows:
            return TrialTurn(left)
        long = now_ns - self.since_ns >= self.terms.back_off_max_ns  # it was good
        left = replace(left, rests=Rests() if long else self.rests, judged=look.window.bytes_per_s)
        return left._back(look.leave, now_ns, [self.side] if look.failed else ())

    def _back(self, why: Why, now_ns: int, failed: Collection[Side] = ()) -> TrialTurn[Side]:
        """The usual again. What has failed rests."""
        usual, judged = self.terms.usual, self.judged
        if self.trying and self.before is not None:
            judged = self.before.bytes_per_s
        home = self._resting(failed, now_ns)._set(TrialPhase.USUAL, usual, why, now_ns)
        home = replace(home, ahead=(), before=None, tried=(), judged=judged)
        what = f"stays {usual}" if self.side == usual else f"{self.side} -> {usual}"
        return TrialTurn(home, "back", what, why)

    def _resting(self, failed: Collection[Side], now_ns: int) -> Trial[Side]:
        rests, terms = Rests(self.rests), self.terms
        for each in failed:
            rests.vain(each, Ladder(terms.back_off_ns, terms.back_off_max_ns), now_ns)
        return replace(self, rests=rests)

    def _set(self, phase: TrialPhase, side: Side, why: Why, now_ns: int) -> Trial[Side]:
        """What is in force changes: what was before says nothing of it."""
        in_place = self.in_place and side == self.side
        return replace(
            self, phase=phase, side=side, why=why, since_ns=now_ns, in_place=in_place, count=0,
            other=0,
        )  # fmt: skip
