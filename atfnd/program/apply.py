# SPDX-License-Identifier: GPL-2.0-or-later
"""One action, by its kind: a rule, a queue's CPU, or another knob."""

from __future__ import annotations

from atfnd.model import Action, ActionKind, Outcome
from atfnd.nic import Nic
from atfnd.program import knob, ntuple, queue_cpu
from atfnd.program.journal import Journal
from atfnd.program.originals import Originals

__all__ = ["apply"]


def apply(nic: Nic, journal: Journal, originals: Originals, action: Action) -> Outcome:
    """Journal, write, and say what is in place now. OSError: a journal cannot be written."""
    match action.kind:
        case ActionKind.INSERT | ActionKind.REWRITE | ActionKind.DELETE:
            return ntuple.apply(nic, journal, action)
        case ActionKind.QUEUE_CPU:
            return queue_cpu.apply(nic, originals, action)
        case ActionKind.KNOB:
            return knob.apply(nic, originals, action)
