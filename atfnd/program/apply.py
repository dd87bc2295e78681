# SPDX-License-Identifier: GPL-2.0-or-later
"""One action, by its kind: a rule, a queue's CPU, or another setting."""

from __future__ import annotations

from atfnd.model import Action, ActionKind, Outcome
from atfnd.nic import Nic
from atfnd.program import filter, queue_cpu, setting
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal

__all__ = ["apply"]


def apply(nic: Nic, journal: FilterJournal, undo_journal: UndoJournal, action: Action) -> Outcome:
    """Journal, write, and return what is in place now. OSError: a journal cannot be written."""
    match action.kind:
        case ActionKind.INSERT | ActionKind.REWRITE | ActionKind.DELETE:
            return filter.apply(nic, journal, action)
        case ActionKind.QUEUE_CPU:
            return queue_cpu.apply(nic, undo_journal, action)
        case ActionKind.SETTING:
            return setting.apply(nic, undo_journal, action)
