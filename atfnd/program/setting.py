# SPDX-License-Identifier: GPL-2.0-or-later
"""Every other setting that steers packets (`nic.Nic.settings`): write one, undo all, find drift.

The original value is journaled before the first write, and every value before it is written. A
value that another program wrote over ours stays: it is neither written again nor put back.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from atfnd.model import Action, ActionKind, Outcome, brief
from atfnd.model.reception import BORROWED_THREAD, OF_NAPI, THREAD
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal

__all__ = [
    "DONE",
    "Settings",
    "Undone",
    "apply",
    "drifted",
    "tried",
    "unchanged",
    "undo",
    "written",
]

DONE = 0, errno.ESTALE, errno.ENOENT, errno.ENODEV  # undone, or nothing of ours is there
_MACHINE_WIDE = "rps-sock-flow-entries"  # net.core: one for all NICs


class Settings(Protocol):
    """The owner of the settings: a NIC (`nic.Nic`), or the machine (`program.host_settings`)."""

    @property
    def name(self) -> str: ...
    def setting(self, name: str) -> str | None: ...
    def write_setting(self, name: str, value: str) -> None: ...


class Undone(NamedTuple):
    """The result for one setting that was ours."""

    setting: str
    errno: int  # 0: it is as it was; ESTALE: another program's now; or the kernel's refusal
    left: str


def apply(nic: Settings, undo_journal: UndoJournal, action: Action) -> Outcome:
    """As `tried`, but a journal that cannot be written is an Outcome, too. A setting that has its
    value from before us again is no longer ours, unless that value is a loan."""
    try:
        outcome = tried(nic, undo_journal, action)
    except Unrecorded as refusal:
        left = f"{action.setting} {unchanged(refusal)}"
        code = refusal.errno or errno.EIO
        return Outcome(action, time.monotonic_ns(), code, None, left)
    changed = not outcome.errno and outcome.before != action.value
    if changed and outcome.original == action.value and not action.loan:
        undo_journal.forget(nic.name, action.setting or "")
    return outcome


def tried(nic: Settings, undo_journal: UndoJournal, action: Action) -> Outcome:
    """Write `action.setting`; a refusal is an Outcome. ESTALE: it is not what we wrote last, so
    another program wrote it. EIO: the kernel took it and did nothing. A different value right after
    the write is the kernel's way to print what we wrote. Unrecorded: the journal cannot be written,
    and the kernel was not asked."""
    setting, value = action.setting, action.value
    if action.kind is not ActionKind.SETTING or setting is None or value is None:
        raise ValueError(f"a setting without name or value: {action}")
    before = None

    def outcome(code: int, left: str) -> Outcome:
        held = undo_journal.held(nic.name).get(setting)
        original = None if held is None else held.original
        return Outcome(action, time.monotonic_ns(), code, None, left, None, before, original)

    try:
        before = nic.setting(setting)
        if before == value:
            return outcome(0, "it is already so")
        if before is None:
            return outcome(errno.ENOENT, f"this NIC has no {setting} now")
        write = partial(_set, nic, setting, value)
        after = written(nic, undo_journal, setting, value, write)
    except Unrecorded:
        raise
    except OSError as refusal:
        return outcome(refusal.errno or errno.EIO, f"{setting} {unchanged(refusal)}")
    if after == before:
        return outcome(errno.EIO, f"the kernel accepted it, but {setting} is still {brief(before)}")
    if after is not None and after != value:
        return outcome(0, f"{setting} reads {brief(after)}")
    return outcome(0, "as planned")


def written(
    nic: Settings,
    undo_journal: UndoJournal,
    setting: str,
    value: str,
    write: Callable[[], None],
) -> str | None:
    """Journal, write and read back. OSError: refused, and the journal is as before, unless nobody
    can say whether it was done. A refusal of what reads differently afterwards is none. ESTALE: it
    is not what we wrote last, so another program wrote it."""
    before = nic.setting(setting)
    if before is None:
        raise OSError(errno.ENOENT, f"no {setting} now")
    if _moved(undo_journal.held(nic.name).get(setting), before):
        raise OSError(errno.ESTALE, f"another program set it to {brief(before)}")
    held = undo_journal.held(nic.name).get(setting)
    undo_journal.note(nic.name, setting, before)
    try:
        undo_journal.wrote(nic.name, setting, value)
        write()
    except Unrecorded:
        _as_before(nic, undo_journal, setting, held)
        raise
    except OSError as refusal:
        try:
            now = nic.setting(setting)
        except OSError:
            raise refusal from None  # the journal names both values
        if now in (before, None):
            _as_before(nic, undo_journal, setting, held)
            raise
    after = nic.setting(setting)  # in the kernel's words
    undo_journal.confirmed(nic.name, setting, value if after is None else after)
    return after


def _as_before(
    nic: Settings, undo_journal: UndoJournal, setting: str, held: OwnedSetting | None
) -> None:
    """Nothing was written: the journal says what it said before."""
    if held is not None and held.wrote is not None:
        undo_journal.confirmed(nic.name, setting, held.wrote)
        return
    undo_journal.forget(nic.name, setting)
    if held is not None:
        undo_journal.rely_on(nic.name, setting, held.original)


def unchanged(refusal: OSError) -> str:
    """Why a setting stays as it is, in words."""
    if refusal.errno == errno.ESTALE:
        return f"is left: {refusal.strerror}"
    why = os.strerror(refusal.errno or errno.EIO)
    if isinstance(refusal, Unrecorded):
        why = f"the journal cannot be written: {why}"
    return f"stays as it is ({why})"


def drifted(nic: str, settings: Mapping[str, str], undo_journal: UndoJournal) -> dict[str, str]:
    """Which of our settings on this NIC another program changed, and to what; `settings` are their
    values now."""
    held = undo_journal.held(nic).items()
    return {
        setting: settings[setting]
        for setting, ours in held
        if setting in settings and _moved(ours, settings[setting])
    }


def undo(
    nic: Settings, undo_journal: UndoJournal, only: Collection[str] | None = None
) -> list[Undone]:
    """Put back, last written first, every original (or `only` these) whose setting is what we
    wrote. One that another program changed since is left as it is. All are forgotten except those
    that the kernel refuses. Who polls comes first, and before that how long it is left to a timer:
    what a queue's CPU means depends on it."""
    done = []
    last_first = reversed(list(undo_journal.held(nic.name).items()))
    for setting, held in sorted(last_first, key=_depends):
        if only is not None and setting not in only:
            continue
        code, left = _undo(nic, undo_journal, setting, held)
        if code in DONE:
            undo_journal.forget(nic.name, setting)
        if code or held.wrote is not None:
            done.append(Undone(setting, code, left))
    return done


def _depends(setting: tuple[str, OwnedSetting]) -> int:
    kind = setting[0].partition(":")[0]
    return 0 if kind in OF_NAPI else 1 if kind in (BORROWED_THREAD, THREAD) else 2


def _undo(
    nic: Settings, undo_journal: UndoJournal, setting: str, held: OwnedSetting
) -> tuple[int, str]:
    try:
        now = nic.setting(setting)
        if now is None:
            return errno.ENOENT, "it is gone"
        if now == held.original:
            return 0, f"is {brief(now)} as before"
        if _moved(held, now):
            return errno.ESTALE, f"left at {brief(now)}: another program set it"
        if setting == _MACHINE_WIDE and (other := _also_needs(nic.name, undo_journal)):
            undo_journal.note(other, setting, held.original)
            undo_journal.wrote(other, setting, now)
            return 0, f"left at {brief(now)} for {other}"
        with suppress(Unrecorded):  # a journal that is full stops no undo
            undo_journal.confirmed(nic.name, setting, now)
            undo_journal.wrote(nic.name, setting, held.original)
        try:
            _set(nic, setting, held.original)
        except OSError:
            if nic.setting(setting) in (now, None):
                undo_journal.confirmed(nic.name, setting, now)
                raise
        after = nic.setting(setting)
    except OSError as refusal:
        code = refusal.errno or errno.EIO
        return code, f"the kernel refused to put back {brief(held.original)} ({os.strerror(code)})"
    if after not in (None, held.original):
        return 0, f"is {brief(after)}, which stands for {brief(held.original)}"
    return 0, f"is {brief(held.original)} again"


def _set(nic: Settings, setting: str, value: str) -> None:
    """OSError(ENOENT): it has gone since it was read, with its queue or its interface."""
    try:
        nic.write_setting(setting, value)
    except KeyError as gone:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), setting) from gone


def _moved(held: OwnedSetting | None, now: str) -> bool:
    """It does not have the value that we wrote last."""
    return held is not None and not held.ours(now)


def _also_needs(nic: str, undo_journal: UndoJournal) -> str | None:
    """Another NIC whose packets RFS hands on because we switched it on."""
    for other in undo_journal.nics():
        settings = undo_journal.held(other)
        counts = [
            held.wrote for setting, held in settings.items() if setting.startswith("rps-flow-cnt:")
        ]
        if other != nic and any(count not in (None, "0") for count in counts):
            return other
    return None
