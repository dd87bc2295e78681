# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes what the journals name as ours out of one NIC, and reads it afterwards: is it as before us?

Filters of other programs, and settings that another program changed since, stay as they are.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence

from atfnd.model import Action, ActionKind, Filter, Match, Outcome, Restored, brief
from atfnd.model.reason import Why
from atfnd.nic import Nic
from atfnd.program import filter
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import Undone

__all__ = ["Undo"]

_NOT_AS_IT_WAS = errno.EIO


class Undo:
    """One undo of one NIC: `filters`, then the settings (`setting.undo`), then `differences`.
    Nothing else may write to the NIC meanwhile. OSError(ENODEV): the NIC is gone."""

    def __init__(self, nic: Nic, journal: FilterJournal, undo_journal: UndoJournal) -> None:
        """Reads the filters, if any is named, and what the settings were."""
        self._nic, self._journal, self._undo_journal = nic, journal, undo_journal
        self._held = undo_journal.held(nic.name)
        self._before: list[Filter] = []
        self._unread: OSError | None = None
        self._refused: set[Match | None] = set()
        if journal.names(nic.name):
            try:
                self._before = nic.filters()
            except OSError as refusal:
                if refusal.errno == errno.ENODEV:
                    raise
                self._unread = refusal
        self._ours = journal.ours(nic.name, self._before)

    @property
    def read(self) -> bool:
        """The filters could be read."""
        return self._unread is None

    def filters(self, why: Why, known: Iterable[Action] = ()) -> list[Outcome]:
        """Delete every filter of ours. `known` are deletes of those that have an entry; for one
        that is not there the outcome is ENOENT, and nothing is written. A match that is named and
        is neither there nor refused is released."""
        if self._unread is not None:
            return []
        name, outcomes = self._nic.name, []
        entries = {(Match.of(each.key), each.location): each for each in known if each.key}
        for ours in self._ours:
            if ours.match is None:
                raise ValueError(f"no filter of ours: {ours}")
            delete = entries.pop((ours.match, ours.location), None) or Action(
                ActionKind.DELETE, name, ours.match.key(), ours.location, ours.queue, None, why, ""
            )
            outcome = filter.apply(self._nic, self._journal, delete)
            outcomes.append(outcome)
            if outcome.errno:
                self._refused.add(ours.match)
        for match in self._journal.left.get(name, {}):
            if match not in self._refused:
                self._journal.release(name, match)
        left = "it is gone, or another program changed it"
        for each in entries.values():
            outcomes.append(Outcome(each, time.monotonic_ns(), errno.ENOENT, None, left))
        return outcomes

    def differences(self, undone: Sequence[Undone]) -> list[Restored]:
        """What differs from before us, and was not reported yet; `undone` are the results for the
        settings. A filter that is still there is named again, so that the next undo finds it."""
        name = self._nic.name
        if self._unread is not None:
            return [_unread(name, self._unread)]
        return [*self._filters_left(), *self._moved({each.setting: each for each in undone})]

    def _filters_left(self) -> list[Restored]:
        if not self._before:
            return []
        name = self._nic.name
        try:
            after = {(each.location, each.match) for each in self._nic.filters()}
        except OSError as refusal:
            return [_unread(name, refusal)]
        found = []
        for each in self._ours:
            still = (each.location, each.match) in after and each.match not in self._refused
            if still and each.match is not None:
                self._journal.claim(name, each.match, each.queue)
                self._journal.locate(name, each.match, each.location)
                why = "is still there: the NIC said that it deleted it"
                found.append(Restored(name, f"filter {each.location}", _NOT_AS_IT_WAS, why))
        for each in self._before:
            if each not in self._ours and (each.location, each.match) not in after:
                why = "of another program is gone, but was there before"
                found.append(Restored(name, f"filter {each.location}", _NOT_AS_IT_WAS, why))
        return found

    def _moved(self, undone: Mapping[str, Undone]) -> list[Restored]:
        found = []
        for setting, held in self._held.items():
            done = undone.get(setting)
            if done is not None and done.errno:
                continue  # another program's, gone or refused: reported already
            if any(
                setting in self._undo_journal.held(other) for other in self._undo_journal.nics()
            ):
                continue  # of the whole machine, and another NIC needs it
            try:
                now = self._nic.setting(setting)
            except OSError as refusal:
                words = os.strerror(refusal.errno or errno.EIO)
                found.append(
                    Restored(self._nic.name, setting, _NOT_AS_IT_WAS, f"unreadable: {words}")
                )
                continue
            if now is not None and now != held.original:
                why = f"is {brief(now)} and not {brief(held.original)}, as it was"
                found.append(Restored(self._nic.name, setting, _NOT_AS_IT_WAS, why))
        return found


def _unread(name: str, refusal: OSError) -> Restored:
    code = refusal.errno or errno.EIO
    why = f"are left: the kernel does not list them ({os.strerror(code)})"
    return Restored(name, "filters", code, why)
