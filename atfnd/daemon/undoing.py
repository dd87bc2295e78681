# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes all our changes out of one NIC of a running daemon, and updates the Flow-to-Core table."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace

from atfnd.engine.table import retire
from atfnd.engine.table.memory import Memory
from atfnd.model import NicView, Outcome, Restored
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

    def __init__(
        self, memory: Memory, journal: FilterJournal, undo_journal: UndoJournal, log: EventLog
    ) -> None:
        self._memory, self._journal, self._undo_journal = memory, journal, undo_journal
        self._log = log

    def take_out(
        self,
        nic: Nic,
        view: NicView,
        why: str,
        report: Callable[[Sequence[Outcome]], object],
    ) -> list[Restored]:
        """Delete every filter of ours, put back every setting that still has our value, then read
        the NIC. Its flows stay in the table, without a filter. `report` gets the outcome of each
        filter.

        The NIC is not armed, and no move of it waits or is under way: what is undone must not be
        written again. ValueError: it is armed. OSError(ENODEV): it is gone.
        """
        name, memory = view.name, self._memory
        if view.armed:
            raise ValueError(f"{name} is armed")
        undo = Undo(nic, self._journal, self._undo_journal)
        outcomes = undo.filters(why, retire.withdraw(view, memory, why))
        report(outcomes)
        kept = {each.action.key for each in outcomes if each.errno and each.location is not None}
        for flow in [flow for flow in memory.table.steered(name) if flow.key not in kept]:
            memory.table.put(replace(flow, location=None, target_queue=None))
        memory.nics[name].strays.clear()
        memory.nics[name].buckets = None
        done = [_of_rule(outcome) for outcome in outcomes]
        deleted = sum(not outcome.errno for outcome in outcomes)
        done = [each for each in done if each.errno]
        if deleted:
            done.insert(0, Restored(name, f"{deleted} rules", 0, "deleted"))
        undone = self._settings(nic, view)
        done += (Restored(name, *each) for each in undone)
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


def _of_rule(outcome: Outcome) -> Restored:
    action = outcome.action
    return Restored(
        action.nic, f"rule {action.location} ({action.key})", outcome.errno, outcome.left
    )
