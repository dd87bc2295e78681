# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of `auto` on all NICs: which application is next, and what was learned. Pure.

On a NIC there is one trial at a time, and one in `Terms.every_ns`. What was learned is kept by
application, not by flow: flows come and go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from atfnd.engine.trials import trial
from atfnd.engine.trials.trial import State, TrialPhase, TrialTerms, Turn
from atfnd.engine.trials.window import Window
from atfnd.model import Placement

__all__ = ["Application", "Trials", "Turned"]

_KNOWN = 1024  # applications; the one not seen for the longest is forgotten


class Application(NamedTuple):
    """Flows that are tried together: of threads of one name, in a cgroup, under a rule, on a
    NIC."""

    nic: str
    rule_name: str
    comm: str
    cgroup: int | None


class Turned(NamedTuple):
    """An event: the placement of an application has changed, or its trial has ended."""

    application: Application
    kind: str  # trial, kept, back
    what: str
    why: str


@dataclass(slots=True)
class Trials:
    """Of all applications."""

    terms: TrialTerms = field(default_factory=TrialTerms)
    states: OrderedDict[Application, State] = field(default_factory=OrderedDict)
    begun_ns: dict[str, int] = field(default_factory=dict)  # by NIC: its last trial

    def placement(self, application: Application) -> Placement:
        """In force now."""
        state = self.states.get(application)
        return Placement.CORE if state is None else state.placement

    def trying(self, nic: str) -> bool:
        """A trial goes on on this NIC."""
        return any(state.trying for each, state in self.states.items() if each.nic == nic)

    def pressing(self, now_ns: int) -> bool:
        """A trial goes on, or begins if the core of some application is full in one more window."""
        return any(
            state.trying or (state.full(now_ns, 1) and self._may_begin(each.nic, now_ns))
            for each, state in self.states.items()
        )

    def in_words(self, application: Application, now_ns: int) -> str:
        """Of an application's flows, in a clause."""
        return trial.in_words(self.states.get(application, State()), now_ns)

    def look(self, nic: str, windows: Mapping[Application, Window], now_ns: int) -> list[Turned]:
        """One look at a NIC: `windows` since the last one, of every application with flows."""
        turned: list[Turned] = []
        for each, state in [known for known in self.states.items() if known[0].nic == nic]:
            if each not in windows and state.trying:
                self._take(each, trial.void(state, "it has no flows", now_ns, self.terms), turned)
            elif each not in windows and state.phase is TrialPhase.CORE:
                self.states[each] = replace(state, count=0, in_place=False)
        for each, window in windows.items():
            state = self.states.get(each, State())
            self._take(each, trial.watched(state, window, now_ns, self.terms), turned)
            self.states.move_to_end(each)
        self._begin(nic, windows, now_ns, turned)
        self._forget()
        return turned

    def abandon(self, but: Collection[str], why: str, now_ns: int) -> list[Turned]:
        """End the trials on all other NICs, which are not to blame."""
        turned: list[Turned] = []
        for each, state in list(self.states.items()):
            if state.trying and each.nic not in but:
                home = State(since_ns=now_ns, last=state.last, failed=state.failed)
                self._take(each, Turn(home, "back", "near core", f"void: {why}"), turned)
        return turned

    def _begin(
        self,
        nic: str,
        windows: Mapping[Application, Window],
        now_ns: int,
        turned: list[Turned],
    ) -> None:
        """Begin a trial of the application that carries most, of those whose core is saturated. It
        could have begun when its window did: then that was pressing, and the window is as short as
        those of the trial will be."""
        if self.trying(nic):
            return
        ready = [each for each, window in windows.items() if self._may_try(each, window.began_ns)]
        chosen = max(ready, key=lambda each: windows[each].bytes, default=None)
        if chosen is not None:
            self.begun_ns[nic] = now_ns
            turn = trial.begin(self.states[chosen], windows[chosen], now_ns)
            self._take(chosen, turn, turned)

    def _may_try(self, application: Application, now_ns: int) -> bool:
        full = self.states[application].full(now_ns, self.terms.windows)
        return full and self._may_begin(application.nic, now_ns)

    def _may_begin(self, nic: str, now_ns: int) -> bool:
        last_ns = self.begun_ns.get(nic)
        return last_ns is None or now_ns - last_ns >= self.terms.every_ns

    def _take(self, application: Application, turn: Turn, turned: list[Turned]) -> None:
        self.states[application] = turn.state
        if turn.kind is not None:
            what = f"{application.comm}: {turn.what}"
            turned.append(Turned(application, turn.kind, what, turn.why))

    def _forget(self) -> None:
        surplus = len(self.states) - _KNOWN
        idle = (each for each, state in self.states.items() if not state.trying)
        for each in [each for each, _ in zip(idle, range(surplus), strict=False)]:
            del self.states[each]
