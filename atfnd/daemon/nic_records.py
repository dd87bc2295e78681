# SPDX-License-Identifier: GPL-2.0-or-later
"""What the journals say under the name of a NIC: it ends with the NIC, or goes on under a new
name."""

from __future__ import annotations

from contextlib import suppress

from atfnd.program.balance import rename_bans
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import UndoJournal

__all__ = ["NicRecords"]


class NicRecords:
    """Of all NICs."""

    def __init__(
        self, journal: FilterJournal, undo_journal: UndoJournal, operator_journal: OperatorJournal
    ) -> None:
        self._journal, self._undo_journal = journal, undo_journal
        self._operator_journal = operator_journal

    def armed(self, name: str) -> bool | None:
        """The operator armed or disarmed it. None: neither."""
        return self._operator_journal.armed(name)

    def paused(self, name: str) -> bool:
        """The operator paused it."""
        return self._operator_journal.paused(name)

    def gone(self, name: str) -> None:
        """Its filters went with it."""
        for match in list(self._journal.left.get(name, {})):
            self._journal.release(name, match)

    def renamed(self, old: str, new: str) -> None:
        """Its filters, settings and bans are named under its new name."""
        self._journal.rename(old, new)
        rename_bans(self._undo_journal, old, new)
        self._undo_journal.rename(old, new)

    def catch_up(self) -> None:
        """A new name that the disk refused is written now."""
        self._journal.catch_up()
        self._undo_journal.catch_up()

    def keep_orders(self, new: str, *, armed: bool, paused: bool) -> None:
        """What holds for it goes on to hold under its new name, unless the operator gave an order
        for that name. `paused`: by the operator, not by a measurement."""
        if self._operator_journal.armed(new) is None:
            self._say("arm" if armed else "disarm", new)
        if paused:
            self._say("pause", new)

    def resumed(self, name: str) -> None:
        """Its pause goes on under another name, and may end there."""
        self._say("resume", name)

    def _say(self, verb: str, name: str) -> None:
        """Where the disk refuses it, it holds for this run."""
        with suppress(Unrecorded):
            self._operator_journal.say(verb, name)
