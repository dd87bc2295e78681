# SPDX-License-Identifier: GPL-2.0-or-later
"""The moves of one NIC, driven by one event after the other, with a clock of its own."""

from __future__ import annotations

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.move.command import Command, Ended
from atfnd.move.device import NicMoves, step
from atfnd.move.event import Event, Wanted, Written
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from tests.move.check import PORT
from tests.values import key

__all__ = ["TIMES", "SteppedNic", "to"]

TIMES = Times(burst=8, late_ns=0)


def to(number: int, mode: Mode, old: int = 0, new: int = 1) -> Wanted:
    action = Action(ActionKind.REWRITE, "nic", key(number), number, old, new, Code.UNSAID(), "")
    return Wanted(action, mode, frozenset({old}), frozenset({2}))


class SteppedNic:
    """The moves of a NIC, their clock, and the last commands."""

    def __init__(self) -> None:
        self.device, self.now_ns = NicMoves(PORT, TIMES), 1_000_000_000
        self.commands: tuple[Command, ...] = ()

    def __call__(self, event: Event, after_ns: int = 0) -> tuple[Command, ...]:
        self.now_ns += after_ns
        self.device, self.commands = step(self.device, event, self.now_ns)
        return self.commands

    def written(self, wanted: Wanted, code: int = 0) -> tuple[Command, ...]:
        outcome = Outcome(wanted.action, self.now_ns, code, 7, "the NIC said no")
        return self(Written(outcome, self.now_ns, self.now_ns))

    def verdicts(self) -> list[Verdict]:
        return [each.verdict for each in self.commands if isinstance(each, Ended)]
