# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads settings of the whole machine, on which the engine decides (`engine.host_settings`), has
the executor write them, and gives back what they were."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.engine.command import LeaveHostSetting, PutBackHostSetting, WriteHostSetting
from atfnd.engine.event import (
    Event,
    HostSettingRefused,
    HostSettingsDue,
    HostSettingsEnded,
    HostSettingsRead,
)
from atfnd.model import BUDGET_SETTINGS, HostSetting, Restored
from atfnd.program.host_settings import HOST, HostSettings
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import DONE, Undone

__all__ = ["KeptHost"]


class KeptHost:
    """Each look reads the settings again after it: an effect counts when it has been seen."""

    def __init__(self, executor: Executor, undo_journal: UndoJournal) -> None:
        self._executor, self._undo_journal = executor, undo_journal
        self._settings, self._undone = HostSettings(), list[Undone]()
        executor.answer(WriteHostSetting, self._write)
        executor.answer(PutBackHostSetting, self._put_back)
        executor.answer(LeaveHostSetting, self._leave)

    def look(self) -> None:
        """Write what the policy asks for, and put back what it asks for no more."""
        self._take(HostSettingsDue(self._read()))

    def arm(self) -> None:
        """A NIC was armed by an operator: what the kernel refused is tried again."""
        self._take(HostSettingsDue(self._read(), again=True))

    def take_back(self) -> None:
        """A NIC was resumed: what another program had changed may be written again."""
        self._undo_journal.take_back(HOST)
        self.arm()

    def pause(self) -> list[Restored]:
        """Put back what no armed NIC needs. Returns the results."""
        self._undone = []
        self._take(HostSettingsEnded(self._read()))
        return [Restored(HOST, each.setting, each.errno, each.left) for each in self._undone]

    def _take(self, event: HostSettingsDue | HostSettingsEnded) -> None:
        self._executor.take(event)
        self._executor.take(HostSettingsRead(self._read()))

    def _read(self) -> Mapping[str, HostSetting]:
        held, manual = self._undo_journal.held(HOST), self._undo_journal.manual(HOST)
        found = {}
        for name in BUDGET_SETTINGS:
            now, ours = self._settings.setting(name), held.get(name)
            original = None if ours is None else ours.original
            changed = ours is not None and now is not None and not ours.ours(now)
            found[name] = HostSetting(now, original, changed, name in manual)
        return found

    def _write(self, command: WriteHostSetting) -> Iterable[Event]:
        action, outcome = command.action, self._executor.write_host(command.action)
        if outcome.errno in (0, errno.ESTALE):
            return ()
        return (HostSettingRefused(action.setting or "", action.value, outcome.left),)

    def _put_back(self, command: PutBackHostSetting) -> Iterable[Event]:
        undone = self._executor.put_back_host(command.setting, UndoPermit(HOST, command.why))
        self._undone += undone
        for each in undone:
            if each.errno not in DONE:
                yield HostSettingRefused(each.setting, None, each.left)

    def _leave(self, command: LeaveHostSetting) -> Iterable[Event]:
        self._undo_journal.leave_alone(HOST, command.setting)
        return ()
