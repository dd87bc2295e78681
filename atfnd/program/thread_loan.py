# SPDX-License-Identifier: GPL-2.0-or-later
"""NAPI threads that are borrowed for moves (move/loan.py): the settings `threaded` and `threaded:N`
of a NIC, through the Nic.

Journaled as every setting, and forgotten when given back: an operator finds nothing of it unless we
died meanwhile. Threads that another program switched on are not ours to switch off, and once it has
changed a switch that was ours, that switch is left alone.
"""

from __future__ import annotations

import errno
import time

from atfnd.model import Action, ActionKind, Outcome
from atfnd.move.loan import BORROWED
from atfnd.program import setting
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import Settings, Undone

__all__ = ["apply", "end", "lends", "of"]


def lends(action: Action) -> bool:
    """It borrows threads, or gives them back."""
    return action.kind is ActionKind.SETTING and of(action.setting or "")


def of(name: str) -> bool:
    """A setting by which threads are borrowed."""
    return name.partition(":")[0] == "threaded"


def apply(nic: Settings, undo_journal: UndoJournal, action: Action) -> Outcome:
    """Borrow, or give back. ESTALE: another program switched it."""
    name = action.setting or ""

    def outcome(code: int, left: str) -> Outcome:
        return Outcome(action, time.monotonic_ns(), code, None, left)

    try:
        now = nic.setting(name)
    except OSError as refusal:
        return outcome(refusal.errno or errno.EIO, f"{name} {setting.unchanged(refusal)}")
    if action.value == BORROWED:
        if now == BORROWED:
            return outcome(errno.ESTALE, f"another program switched {name} on")
        return setting.apply(nic, undo_journal, action)
    held = undo_journal.held(nic.name).get(name)
    if held is not None and held.wrote is not None and now == held.original:
        undo_journal.leave_alone(nic.name, name)
        return outcome(errno.ESTALE, f"another program switched {name} off")
    for _, code, left in end(nic, undo_journal, name):
        return outcome(code, left)
    return outcome(0, "nothing was borrowed")


def end(nic: Settings, undo_journal: UndoJournal, only: str | None = None) -> list[Undone]:
    """Give back what the journal says is borrowed: this, or all."""
    names = {name for name in undo_journal.held(nic.name) if of(name) and only in (None, name)}
    done = setting.undo(nic, undo_journal, names)
    for each in done:
        if each.errno == errno.ESTALE:
            undo_journal.leave_alone(nic.name, each.setting)
    return done
