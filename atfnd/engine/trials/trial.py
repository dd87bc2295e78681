# SPDX-License-Identifier: GPL-2.0-or-later
"""The placement `auto`, of one application: on its core, or off it where that was measured to pay.

Pure. It begins on its `core`. When that is saturated (softirq and its threads, two windows in a
row), its flows are moved to `llc` for a window, and back for another of the same length: A, B, A. A
window counts only if every flow was where it is to be measured from its begin to its end. Where
`llc` did not pay against both windows on the core (`window.Verdict.pays`), or a window says
nothing, it stays on its core and waits, twice as long after each time.

Where `llc` pays it stays, however the figures vary, until the application carries less than half of
what saturated its core, five windows in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from atfnd.engine.trials.window import Comparison, Window, compare, rate_of
from atfnd.model import Placement, PlacementKind

__all__ = [
    "LLC",
    "State",
    "TrialPhase",
    "TrialTerms",
    "Turn",
    "begin",
    "in_words",
    "void",
    "watched",
]

LLC = Placement(PlacementKind.LLC)


class TrialTerms(NamedTuple):
    """When to try, and what to believe."""

    share: float = 0.9  # of a CPU: saturated
    windows: int = 2  # in a row
    margin: float = 0.25  # of a gain; below is noise
    least_bytes: int = 1 << 20  # of a window
    uneven: float = 1.5  # windows are of equal length, up to this
    patience_ns: int = 60_000_000_000  # until its flows are where they must be measured
    every_ns: int = 60_000_000_000  # between the begins of two trials of a NIC
    back_off_ns: int = 120_000_000_000
    back_off_max_ns: int = 3_600_000_000_000
    slack: float = 0.5  # of the bytes a second that saturated its core
    slack_windows: int = 5  # in a row


class TrialPhase(Enum):
    CORE = "core"
    AWAY = "llc is being tried"  # B
    HOME = "llc was tried, and core is measured once more"  # the second A
    KEPT = "llc"


@dataclass(frozen=True, slots=True)
class State:
    """The state of an application."""

    phase: TrialPhase = TrialPhase.CORE
    since_ns: int = 0
    in_place: bool = False  # at the last look its flows were where they belong
    count: int = 0  # windows in a row: saturated (CORE), slack (KEPT)
    before: Window | None = None  # A
    tried: Window | None = None  # B
    last: Comparison | None = None  # of the last conclusive trial
    failed: int = 0  # times in a row
    not_before_ns: int = 0  # the next trial

    @property
    def trying(self) -> bool:
        return self.phase in (TrialPhase.AWAY, TrialPhase.HOME)

    @property
    def placement(self) -> Placement:
        """In force now."""
        return LLC if self.phase in (TrialPhase.AWAY, TrialPhase.KEPT) else Placement.CORE

    def full(self, now_ns: int, windows: int) -> bool:
        """Its core was full for this many windows, and it may be tried."""
        saturated = self.phase is TrialPhase.CORE and self.count >= windows
        return saturated and self.not_before_ns <= now_ns


class Turn(NamedTuple):
    """Its new state; and an event, if its placement changed or a trial ended."""

    state: State
    kind: str | None = None  # trial, kept, back
    what: str = ""
    why: str = ""


def watched(state: State, window: Window, now_ns: int, terms: TrialTerms) -> Turn:
    """One more window."""
    match state.phase:
        case TrialPhase.CORE:
            return Turn(_at_core(state, window, terms))
        case TrialPhase.AWAY | TrialPhase.HOME:
            return _tried(state, window, now_ns, terms)
        case TrialPhase.KEPT:
            return _kept(state, window, now_ns, terms)


def begin(state: State, window: Window, now_ns: int) -> Turn:
    """A trial begins; `window` is the A before it."""
    cpu, share = window.fullest()
    full = f"softirq and its threads take {share:.0%} of CPU {cpu}"
    why = f"{full}; it carries {window.figures(window.cpus)}"
    away = replace(
        state,
        phase=TrialPhase.AWAY,
        since_ns=now_ns,
        in_place=False,
        count=0,
        before=window,
        tried=None,
    )
    return Turn(away, "trial", "near core -> near llc", why)


def void(state: State, why: str, now_ns: int, terms: TrialTerms) -> Turn:
    """A trial ends without a result."""
    return _fail(state, f"void: {why}", now_ns, terms)


def _fail(
    state: State, why: str, now_ns: int, terms: TrialTerms, verdict: Comparison | None = None
) -> Turn:
    """Back to its core, and no trial for a while."""
    wait_ns = min(terms.back_off_ns << min(state.failed, 32), terms.back_off_max_ns)
    home = State(
        since_ns=now_ns,
        last=verdict or state.last,
        failed=state.failed + 1,
        not_before_ns=now_ns + wait_ns,
    )
    return Turn(home, "back", "near core", why)


def in_words(state: State, now_ns: int) -> str:
    """For `explain`, in a clause."""
    age = f"{max(0, now_ns - state.since_ns) / 1e9:.0f} s"
    match state.phase:
        case TrialPhase.KEPT:
            return f"auto: llc since {age}, {state.last}"
        case TrialPhase.AWAY | TrialPhase.HOME:
            return f"auto: {state.phase.value}, for {age}"
        case TrialPhase.CORE:
            wait_s = (state.not_before_ns - now_ns) / 1e9
            again = f"; not tried again within {wait_s:.0f} s" if wait_s > 0 else ""
            if state.last is not None:
                return f"auto: core; llc carried {state.last}{again}"
            return f"auto: core, until that is saturated and llc is measured to be better{again}"


def _at_core(state: State, window: Window, terms: TrialTerms) -> State:
    """Count the windows that call for a trial: its core is saturated, and `llc` is available."""
    tells = window.void is None and window.nowhere is None and window.bytes >= terms.least_bytes
    full = window.fullest()[1] >= terms.share
    count = state.count + 1 if state.in_place and window.there and tells and full else 0
    return replace(state, in_place=window.there, count=count)


def _tried(state: State, window: Window, now_ns: int, terms: TrialTerms) -> Turn:
    """A trial goes on: its flows are being moved, or this is one of its windows."""
    before, tried = state.before, state.tried
    if before is None:
        raise ValueError(f"a trial without a window before it: {state}")
    moved = state.in_place and window.there
    why = window.void or ("its flows have changed" if window.flows != before.flows else None)
    if why is None and moved:
        why = _unlike(window, before, terms)
    elif why is None and now_ns - state.since_ns > terms.patience_ns:
        why = f"its flows were not moved within {terms.patience_ns // 10**9} s"
    if why is not None:
        return void(state, why, now_ns, terms)
    if not moved:
        return Turn(replace(state, in_place=window.there))
    off, *on = (window, before) if tried is None else (tried, before, window)
    verdict = compare(terms.margin, off, *on)
    if not verdict.pays(terms.margin):
        return _fail(state, verdict.in_full(), now_ns, terms, verdict)
    if tried is None:
        home = replace(state, phase=TrialPhase.HOME, since_ns=now_ns, in_place=False, tried=window)
        return Turn(home, "trial", "near llc -> near core, to compare", verdict.in_full())
    kept = State(TrialPhase.KEPT, now_ns, last=verdict, failed=state.failed)
    return Turn(kept, "kept", "near llc", verdict.in_full())


def _unlike(window: Window, before: Window, terms: TrialTerms) -> str | None:
    """Why this window cannot be compared with that one."""
    if window.bytes < terms.least_bytes:
        return "it carried too few bytes"
    shorter, longer = sorted((window.length_ns, before.length_ns))
    return "its windows are of unequal length" if longer > terms.uneven * shorter else None


def _kept(state: State, window: Window, now_ns: int, terms: TrialTerms) -> Turn:
    """It stays away from its core, unless it has so little to do that its core would suffice."""
    verdict = state.last
    if verdict is None:
        raise ValueError(f"kept without a verdict: {state}")
    if window.void is not None or window.bytes < terms.least_bytes:
        return Turn(state)
    rate, then = window.bytes * 1e9 / window.length_ns, verdict.usual.bytes_per_s
    state = replace(state, count=state.count + 1 if rate < terms.slack * then else 0)
    if state.count < terms.slack_windows:
        return Turn(state)
    if now_ns - state.since_ns >= terms.back_off_max_ns:
        state = replace(state, failed=0)  # it was good for long
    why = f"it carries {rate_of(rate)}, and its core was saturated by {rate_of(then)}"
    return _fail(state, why, now_ns, terms, verdict)
