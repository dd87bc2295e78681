# SPDX-License-Identifier: GPL-2.0-or-later
"""What is borrowed for moves (move/loan.py), through the Nic: NAPI threads, by the settings
`threaded` and `threaded:N`, and the absence of a timeout, by `gro-flush-timeout` and
`gro-flush-timeout:N`.

Journaled as every setting, and forgotten when given back: an operator finds nothing of it unless we
died meanwhile. Threads that another program switched on are not ours to switch off, and once it has
changed a switch that was ours, that switch is left alone. What a policy asks for by the switch's
other name is kept for it.
"""

from __future__ import annotations

import errno
import time
from contextlib import suppress

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reception import BORROWED_THREAD, TIMEOUT, other_name
from atfnd.move.loan import BORROWED, GIVEN_BACK, borrows
from atfnd.program import setting
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from atfnd.program.setting import Settings, Undone

__all__ = ["apply", "end", "keep", "lends", "of"]


_WAYS = {BORROWED: "on", GIVEN_BACK: "off"}


def lends(action: Action) -> bool:
    """It borrows something, or gives it back."""
    return action.kind is ActionKind.SETTING and action.loan


def of(name: str, held: OwnedSetting) -> bool:
    """A setting that is borrowed: a thread, or a timeout that was there before and is 0 now, also
    if a run was killed while it gave that back."""
    kind = name.partition(":")[0]
    taken = held.original != "0" and "0" in (held.wrote, held.earlier)
    return kind == BORROWED_THREAD or (kind == TIMEOUT and taken)


def apply(nic: Settings, undo_journal: UndoJournal, action: Action) -> Outcome:
    """Borrow, or give back. ESTALE: another program, or a policy, switched it."""
    name = action.setting or ""

    def outcome(code: int, left: str) -> Outcome:
        return Outcome(action, time.monotonic_ns(), code, None, left)

    try:
        now = nic.setting(name)
    except OSError as refusal:
        return outcome(refusal.errno or errno.EIO, f"{name} {setting.unchanged(refusal)}")
    held = undo_journal.held(nic.name)
    if name.partition(":")[0] == TIMEOUT:
        lent = name in held and of(name, held[name])
        if now == action.value and borrows(action) and not lent:
            return outcome(errno.ESTALE, f"another program set {name} to 0")
        return _timeout(nic, undo_journal, action)
    if name in held and now is not None and not held[name].ours(now):
        undo_journal.leave_alone(nic.name, name)
        return outcome(errno.ESTALE, f"another program switched {name} {_WAYS.get(now, now)}")
    if action.value == BORROWED:
        if other_name(name) in held:
            return outcome(errno.ESTALE, f"{name} is a policy's")
        if name not in held and now not in (None, GIVEN_BACK):
            return outcome(errno.ESTALE, f"another program switched {name} on")
        return setting.apply(nic, undo_journal, action)
    for _, code, left in end(nic, undo_journal, name):
        return outcome(code, left)
    return outcome(0, "nothing was borrowed")


def keep(nic: Settings, undo_journal: UndoJournal, action: Action) -> Outcome:
    """Write what a policy asks for. If that is borrowed, it stays when the loan is over, and what
    it was before the loan is its original: a run that did not borrow it reads the loan."""
    asked, held = action.setting or "", undo_journal.held(nic.name)
    other, inherited = other_name(asked) or "", None
    if other in held and asked not in held:
        try:
            if nic.setting(asked) == held[other].wrote:
                inherited = held[other]._replace(earlier=None)
                undo_journal.inherit(nic.name, asked, inherited)
        except OSError as refusal:
            left = f"{asked} {setting.unchanged(refusal)}"
            return Outcome(action, time.monotonic_ns(), refusal.errno or errno.EIO, None, left)
    outcome = setting.apply(nic, undo_journal, action)
    if not outcome.errno and other in held:
        undo_journal.forget(nic.name, other)
    elif inherited is not None and undo_journal.held(nic.name).get(asked) == inherited:
        undo_journal.forget(nic.name, asked)  # nothing was written
    return outcome


def _timeout(nic: Settings, undo_journal: UndoJournal, action: Action) -> Outcome:
    """A value that a policy asked for stays in the journal, also while it is 0 as before us: it is
    given back."""
    outcome, name = setting.apply(nic, undo_journal, action), action.setting or ""
    held = undo_journal.held(nic.name).get(name)
    is_before = held is not None and held.original == action.value
    if not outcome.errno and is_before and not borrows(action):
        undo_journal.forget(nic.name, name)
    return outcome


def end(nic: Settings, undo_journal: UndoJournal, only: str | None = None) -> list[Undone]:
    """Give back what the journal says is borrowed: this, or all."""
    every = undo_journal.held(nic.name).items()
    names = {name for name, held in every if of(name, held) and only in (None, name)}
    for name in [each for each in names if _is_kept(nic, undo_journal, each)]:
        undo_journal.forget(nic.name, name)
    done = setting.undo(nic, undo_journal, names)
    for each in done:
        if each.errno == errno.ESTALE:
            undo_journal.leave_alone(nic.name, each.setting)
    return done


def _is_kept(nic: Settings, undo_journal: UndoJournal, name: str) -> bool:
    """A policy's value is there: it was written just before a kill, in `keep`."""
    other = other_name(name) or ""
    held = undo_journal.held(nic.name).get(other)
    with suppress(OSError):
        return held is not None and held.wrote is not None and held.wrote == nic.setting(other)
    return False
