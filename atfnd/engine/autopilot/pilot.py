# SPDX-License-Identifier: GPL-2.0-or-later
"""The reception `auto`, of one queue: by interrupts, or in another mode where that was measured to
pay. Pure.

It begins with interrupts. When the CPU of the queue is short of time (two windows in a row), each
candidate is tried for a window, and then interrupts once more: A, B, C, A. A window counts only if
the mode was in force from its begin to its end; but what carries a fifth less already in the window
in which it was set is given up then. What pays against both windows of interrupts
(`window.Comparison.pays`) and carries most is kept. A candidate rests when it did not pay, or a
window said nothing: twice as long after each time, unless the load becomes another one.

What is kept stays, however the figures vary, until it has lost its reason, five windows in a row
(`_why_leave`). A queue of fewer than a thousand packets a second has interrupts at once.

How many polls find nothing is not asked: nothing cheap tells. But each poll that finds something
takes a packet at least: with fewer than a thousand a second, four of five polls 200 us apart find
none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from atfnd.engine.trials.window import Comparison, Window, compare, rate_of
from atfnd.model import Reception, ReceptionMode

__all__ = [
    "DEFERRED",
    "INTERRUPT",
    "SUSPENDED",
    "PilotPhase",
    "PilotState",
    "PilotTerms",
    "PilotTurn",
    "QueueWindow",
    "Rest",
    "begin",
    "in_words",
    "void",
    "watched",
]

INTERRUPT = Reception(ReceptionMode.INTERRUPT)
# A timer of 20 us comes before the epoll and takes more than it saves (docs/reception.md). Where no
# epoll takes part, the first is as the second.
SUSPENDED = Reception(ReceptionMode.SUSPENDED, 200_000, 100, 20_000_000)
DEFERRED = Reception(ReceptionMode.DEFERRED, 200_000, 100)


class PilotTerms(NamedTuple):
    """When to try, and what to believe."""

    least_pps: float = 1000.0  # fewer packets have interrupts
    share: float = 0.7  # of the queue's CPU, that it and its threads take: that is short of time
    windows: int = 2  # in a row
    margin: float = 0.05  # of a gain
    slack: float = 0.5  # of its CPU, if it had interrupts
    worse: float = 0.25  # more CPU time a byte than interrupts took
    other: float = 2.0  # times as many bytes a second: another load
    leave_windows: int = 5  # in a row
    uneven: float = 1.5  # windows are of equal length, up to this
    patience_ns: int = 60_000_000_000  # until a mode is in force
    every_ns: int = 60_000_000_000  # between the begins of two trials of a queue
    back_off_ns: int = 60_000_000_000
    back_off_max_ns: int = 3_600_000_000_000


class QueueWindow(NamedTuple):
    """What a queue received between two looks."""

    cpu: int  # that it is delivered on
    packets: int
    used: Window  # with all that CPUs were busy with
    own: Window | None = None  # with what it and these threads took; None: none is known
    threads: frozenset[int] = frozenset()  # that use its flows

    @property
    def pps(self) -> float:
        """Packets a second."""
        return self.packets * 1e9 / self.used.length_ns

    @property
    def bytes_per_s(self) -> float:
        return self.used.bytes * 1e9 / self.used.length_ns

    @property
    def share(self) -> float:
        """Of its CPU."""
        return self.charged.spent_ns.get(self.cpu, 0) / self.used.length_ns

    @property
    def charged(self) -> Window:
        """With what it took, as far as that is known."""
        return self.own or self.used

    def beside(self, other: QueueWindow) -> Window:
        """To be compared with that one: by what it took, if the same threads used it."""
        return self.charged if self.threads == other.threads else self.used


class PilotPhase(Enum):
    USUAL = "interrupts"
    TRIED = "another mode is tried"  # B
    AGAIN = "interrupts are measured once more"  # the second A
    KEPT = "another mode"


class Rest(NamedTuple):
    """A candidate did not pay."""

    failed: int  # times in a row
    until_ns: int


@dataclass(frozen=True, slots=True)
class PilotState:
    """The state of a queue."""

    phase: PilotPhase = PilotPhase.USUAL
    reception: Reception = INTERRUPT  # in force
    why: str = "nothing is measured yet"
    since_ns: int = 0
    in_place: bool = False  # at the last look it was received so
    count: int = 0  # windows in a row: short of time (USUAL), a reason to leave (KEPT)
    ahead: tuple[Reception, ...] = ()  # still to be tried; USUAL: in the next trial
    before: QueueWindow | None = None  # A
    tried: tuple[tuple[Reception, QueueWindow], ...] = ()  # what has paid until now
    rests: Mapping[Reception, Rest] = field(default_factory=dict)
    judged: float | None = None  # bytes a second, at the last verdict
    other: int = 0  # windows in a row with another load
    began_ns: int | None = None  # its last trial

    @property
    def trying(self) -> bool:
        return self.phase in (PilotPhase.TRIED, PilotPhase.AGAIN)

    def ready(self, now_ns: int, windows: int, terms: PilotTerms) -> bool:
        """It was short of time for this many windows, and a trial may begin."""
        short = self.phase is PilotPhase.USUAL and self.count >= windows and bool(self.ahead)
        rested = self.began_ns is None or now_ns - self.began_ns >= terms.every_ns
        return short and rested


class PilotTurn(NamedTuple):
    """Its new state; and an event, if its mode changed or a trial ended."""

    state: PilotState
    kind: str | None = None  # trial, kept, back
    what: str = ""
    why: str = ""


def watched(
    state: PilotState,
    window: QueueWindow,
    able: Collection[Reception],
    now_ns: int,
    terms: PilotTerms,
) -> PilotTurn:
    """One more window. `able`: candidates that can be had on this queue, the first is tried
    first."""
    if window.used.void is None and window.pps < terms.least_pps:
        return _seldom(state, window, now_ns, terms)
    match state.phase:
        case PilotPhase.USUAL:
            return PilotTurn(_usual(state, window, able, terms))
        case PilotPhase.TRIED | PilotPhase.AGAIN:
            return _trying(state, window, now_ns, terms)
        case PilotPhase.KEPT:
            return _kept(state, window, now_ns, terms)


def begin(state: PilotState, window: QueueWindow, now_ns: int) -> PilotTurn:
    """A trial begins; `window` is the A before it."""
    figures = window.charged.figures(window.used.cpus)
    why = f"it takes {window.share:.0%} of CPU {window.cpu}; it carries {figures}"
    trial = replace(state, count=0, other=0, before=window, tried=(), began_ns=now_ns)
    return _next(trial, why, now_ns)


def void(state: PilotState, why: str, now_ns: int, terms: PilotTerms) -> PilotTurn:
    """A trial ends without a result."""
    failed = (*(each for each, _ in state.tried), *((state.reception,) if _away(state) else ()))
    return _back(state, f"void: {why}", now_ns, terms, failed)


def in_words(state: PilotState, now_ns: int) -> str:
    """For `explain`, in a clause."""
    age = f"{max(0, now_ns - state.since_ns) / 1e9:.0f} s"
    if state.trying:
        return f"auto: {state.reception} for {age}, on trial"
    resting = {each: rest.until_ns - now_ns for each, rest in state.rests.items()}
    again = "".join(
        f"; {each} is not tried again within {wait_ns / 1e9:.0f} s"
        for each, wait_ns in resting.items()
        if wait_ns > 0 and state.phase is PilotPhase.USUAL
    )
    since = f" since {age}" if state.since_ns else ""
    return f"auto: {state.reception}{since}, {state.why}{again}"


def _away(state: PilotState) -> bool:
    return state.reception != INTERRUPT


def _seldom(state: PilotState, window: QueueWindow, now_ns: int, terms: PilotTerms) -> PilotTurn:
    why = f"it receives fewer than {terms.least_pps:.0f} packets a second"
    if state.trying:
        return void(state, why, now_ns, terms)
    if state.phase is PilotPhase.KEPT:
        return _back(state, why, now_ns, terms)
    state = _load_noted(state, window, terms)
    return PilotTurn(replace(state, why=why, count=0, ahead=(), in_place=window.used.there))


def _usual(
    state: PilotState, window: QueueWindow, able: Collection[Reception], terms: PilotTerms
) -> PilotState:
    """Count the windows that call for a trial: its CPU is short of time, and there is something to
    try."""
    used = window.used
    if used.void is None and used.there and state.in_place:
        state = _load_noted(state, window, terms)
    short = window.share >= terms.share
    counts = state.in_place and used.there and used.void is None and short and used.bytes > 0
    # It must have been so when the window began: then it was pressing, and the window is as short
    # as those of the trial will be.
    ahead = tuple(
        each for each in able if used.began_ns >= state.rests.get(each, Rest(0, 0)).until_ns
    )
    why = used.void or state.why
    if used.void is None and not short:
        why = f"it takes {window.share:.0%} of CPU {window.cpu}"
    elif used.void is None and not able:
        why = "nothing else can be had here"
    count = state.count + 1 if counts else 0
    return replace(state, why=why, count=count, ahead=ahead, in_place=used.there)


def _load_noted(state: PilotState, window: QueueWindow, terms: PilotTerms) -> PilotState:
    """What was judged at another load may be judged anew."""
    if state.judged is None:
        return state
    rate, then = max(1.0, window.bytes_per_s), max(1.0, state.judged)
    other = state.other + 1 if max(rate / then, then / rate) > terms.other else 0
    if other < terms.leave_windows:
        return replace(state, other=other)
    return replace(state, other=0, judged=None, rests={})


def _trying(state: PilotState, window: QueueWindow, now_ns: int, terms: PilotTerms) -> PilotTurn:
    """A trial goes on: a mode is being set, or this is one of its windows."""
    before, used = state.before, window.used
    if before is None:
        raise ValueError(f"a trial without a window before it: {state}")
    in_place = state.in_place and used.there
    why = used.void
    if why is None and in_place:
        why = _unlike(used, before.used, terms)
    elif why is None and now_ns - state.since_ns > terms.patience_ns:
        why = f"the mode was not in force within {terms.patience_ns // 10**9} s"
    if why is not None:
        return void(state, why, now_ns, terms)
    again = state.phase is PilotPhase.AGAIN
    verdict = _compared(terms, state.reception, window, before)
    if not in_place and (again or not used.there or verdict.rate * (1 + terms.worse) >= 1):
        return PilotTurn(replace(state, in_place=used.there))
    if again:
        return _judged(state, before, window, now_ns, terms)
    if verdict.pays(terms.margin):
        state = replace(state, tried=(*state.tried, (state.reception, window)))
    else:
        state = _resting(state, [state.reception], now_ns, terms)
    if state.ahead:
        return _next(state, verdict.in_full(), now_ns)
    if not state.tried:
        return _back(state, verdict.in_full(), now_ns, terms)
    what = f"{state.reception} -> {INTERRUPT}, to compare"
    state = _set(state, PilotPhase.AGAIN, INTERRUPT, verdict.in_full(), now_ns)
    return PilotTurn(state, "trial", what, verdict.in_full())


def _next(state: PilotState, why: str, now_ns: int) -> PilotTurn:
    """Try the next candidate."""
    chosen, *ahead = state.ahead
    what = f"{state.reception} -> {chosen}"
    trial = _set(replace(state, ahead=tuple(ahead)), PilotPhase.TRIED, chosen, why, now_ns)
    return PilotTurn(trial, "trial", what, why)


def _judged(
    state: PilotState, before: QueueWindow, after: QueueWindow, now_ns: int, terms: PilotTerms
) -> PilotTurn:
    """The end of a trial: of what pays against both windows, what carries most is kept; what comes
    within the margin of it delays less if it was tried first."""
    verdicts = [
        (_compared(terms, each, window, before, after), each, window)
        for each, window in state.tried
    ]
    paying = [each for each in verdicts if each[0].pays(terms.margin)]
    if not paying:
        nearest = max((verdict for verdict, _, _ in verdicts), key=lambda each: each.gain)
        failed = [each for each, _ in state.tried]
        return _back(state, nearest.in_full(), now_ns, terms, failed)
    most = max(window.bytes_per_s for _, _, window in paying) / (1 + terms.margin)
    verdict, best, window = next(each for each in paying if each[2].bytes_per_s >= most)
    lost = [each for found, each, _ in verdicts if not found.pays(terms.margin)]
    state = _set(_resting(state, lost, now_ns, terms), PilotPhase.KEPT, best, str(verdict), now_ns)
    usual = max(before, after, key=lambda each: each.bytes_per_s)
    state = replace(state, before=usual, tried=(), judged=window.bytes_per_s)
    return PilotTurn(state, "kept", f"{INTERRUPT} -> {best}", verdict.in_full())


def _compared(
    terms: PilotTerms, reception: Reception, window: QueueWindow, *usual: QueueWindow
) -> Comparison:
    names = INTERRUPT.mode.value, str(reception)
    verdicts = (
        compare(terms.margin, window.beside(each), each.beside(window), names=names)
        for each in usual
    )
    return min(verdicts, key=lambda each: (each.pays(terms.margin), each.gain))


def _kept(state: PilotState, window: QueueWindow, now_ns: int, terms: PilotTerms) -> PilotTurn:
    before = state.before
    if before is None:
        raise ValueError(f"kept, and never measured: {state}")
    why = _why_leave(state, before, window, terms)
    state = replace(state, count=0 if why is None else state.count + 1, in_place=window.used.there)
    if why is None or state.count < terms.leave_windows:
        return PilotTurn(state)
    if now_ns - state.since_ns >= terms.back_off_max_ns:
        state = replace(state, rests={})  # it was good for long
    failed = [state.reception] if _worse(before, window, terms) is not None else []
    left = replace(state, judged=window.bytes_per_s)
    return _back(left, why, now_ns, terms, failed)


def _why_leave(
    state: PilotState, before: QueueWindow, window: QueueWindow, terms: PilotTerms
) -> str | None:
    """Why what is kept has lost its reason. None: it has one."""
    if window.used.void is not None:
        return window.used.void
    if not window.used.there:
        return "another mode is set up there"
    rate, then = window.bytes_per_s, max(1.0, before.bytes_per_s)
    if (usual := before.share * rate / then) < terms.slack:
        return f"with interrupts it would take {usual:.0%} of CPU {window.cpu}"
    if rate > terms.other * max(1.0, state.judged or 0.0):
        return f"it carries {rate_of(rate)}, and was tried at {rate_of(state.judged or 0.0)}"
    return _worse(before, window, terms)


def _worse(before: QueueWindow, window: QueueWindow, terms: PilotTerms) -> str | None:
    """It takes more CPU time than interrupts took, where that is short. None: it does not."""
    if window.used.void is not None or window.share < terms.share:
        return None
    cpus = before.used.cpus | window.used.cpus
    pair = window.beside(before), before.beside(window)
    now, then = (each.figures(cpus).bytes_per_cpu_s for each in pair)
    if now * (1 + terms.worse) >= then:
        return None
    return f"it carries {now / max(1.0, then):.2f} x the bytes a CPU-second of interrupts"


def _unlike(window: Window, before: Window, terms: PilotTerms) -> str | None:
    """Why this window cannot be compared with that one."""
    shorter, longer = sorted((window.length_ns, before.length_ns))
    return "its windows are of unequal length" if longer > terms.uneven * shorter else None


def _back(
    state: PilotState,
    why: str,
    now_ns: int,
    terms: PilotTerms,
    failed: Sequence[Reception] = (),
) -> PilotTurn:
    """Interrupts again. What has failed rests."""
    before = state.before
    if state.trying and before is not None:
        state = replace(state, judged=before.bytes_per_s)
    what = f"{state.reception} -> {INTERRUPT}" if _away(state) else f"stays {INTERRUPT}"
    rested = _resting(state, failed, now_ns, terms)
    usual = _set(rested, PilotPhase.USUAL, INTERRUPT, why, now_ns)
    return PilotTurn(replace(usual, ahead=(), before=None, tried=()), "back", what, why)


def _resting(
    state: PilotState, failed: Sequence[Reception], now_ns: int, terms: PilotTerms
) -> PilotState:
    rests = dict(state.rests)
    for each in failed:
        times = rests.get(each, Rest(0, 0)).failed
        wait_ns = min(terms.back_off_ns << min(times, 32), terms.back_off_max_ns)
        rests[each] = Rest(times + 1, now_ns + wait_ns)
    return replace(state, rests=rests)


def _set(
    state: PilotState, phase: PilotPhase, reception: Reception, why: str, now_ns: int
) -> PilotState:
    """The mode changes: what was in force before says nothing of it."""
    return replace(
        state,
        phase=phase,
        reception=reception,
        why=why,
        since_ns=now_ns,
        in_place=state.in_place and reception == state.reception,
        count=0,
        other=0,
    )
