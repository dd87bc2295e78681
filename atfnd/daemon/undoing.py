# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes all our changes out of one NIC of a running daemon."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from atfnd.model import NicView, Outcome, Plan, Restored
from atfnd.model.reason import Why
from atfnd.nic import Nic
from atfnd.program import setting
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import Undone
from atfnd.program.undo import Undo
from atfnd.serve.log.event_log import EventLog

__all__ = ["Undoing"]


class Undoing:
    """What it works on, for all NICs."""

    def __init__(self, journal: FilterJournal, undo_journal: UndoJournal, log: EventLog) -> None:
        self._journal, self._undo_journal, self._log = journal, undo_journal, log

    def take_out(
        self,
        nic: Nic,
        view: NicView,
        why: Why,
        withdraw: Callable[[], Plan],
        report: Callable[[Sequence[Outcome]], object],
    ) -> list[Restored]:
        """Delete every filter of ours, put back every setting that still has our value, then read
        the NIC. `withdraw` gives the deletes of those that have an entry; `report` gets the outcome
        of each filter.

        The NIC is not armed, and no move of it waits or is under way: what is undone must not be
        written again. ValueError: it is armed. OSError(ENODEV): it is gone.
        """
        if view.armed:
            raise ValueError(f"{view.name} is armed")
        undo = Undo(nic, self._journal, self._undo_journal)
        outcomes = undo.filters(why, withdraw())
        report(outcomes)
        done = [_of_filter(outcome) for outcome in outcomes]
        deleted = sum(not outcome.errno for outcome in outcomes)
        done = [each for each in done if each.errno]
        if deleted:
            done.insert(0, Restored(view.name, f"{deleted} filters", 0, "deleted"))
        undone = self._settings(nic, view)
        done += (Restored(view.name, *each) for each in undone)
        return [*done, *undo.differences(undone)]

    def _settings(self, nic: Nic, view: NicView) -> list[Undone]:
        name, held = view.name, self._undo_journal.held(view.name)
        undone = setting.undo(nic, self._undo_journal)
        for each, code, left in undone:
            self._log.add(
                "refused" if code else "undo", f"{each} {left}", "asked for", nic=name,
                old=view.settings.get(each), new=held[each].original,
                errno=errno.errorcode.get(code),
            )  # fmt: skip
        return undone


def _of_filter(outcome: Outcome) -> Restored:
    action = outcome.action
    return Restored(
        action.nic, f"filter {action.location} ({action.key})", outcome.errno, outcome.left
    )
