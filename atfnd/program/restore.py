# SPDX-License-Identifier: GPL-2.0-or-later
"""Puts everything back to what it was before us, from the journals alone: no daemon runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from atfnd.errors import OperatorError
from atfnd.model import Restored
from atfnd.model.reason import Code
from atfnd.nic import Nic
from atfnd.nic.driver import open_nic
from atfnd.program import balance, setting
from atfnd.program.host_settings import HOST, HostSettings
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.undo import Undo

__all__ = ["restored", "take_back"]


def restored(journal: FilterJournal, undo_journal: UndoJournal) -> list[Restored]:
    """Delete every filter that the journal names, put back every setting that still has our value,
    and read each NIC afterwards. What another program changed since stays as it is; what the kernel
    refuses stays in the journals; what still differs from before us is reported as not `done`."""
    done: list[Restored] = []
    with_filters = [nic for nic, ours in journal.left.items() if ours]
    done += balance.restored(undo_journal)
    for name in dict.fromkeys([*with_filters, *undo_journal.nics()]):
        if name == balance.BALANCER:
            continue  # it stays as it was set
        if name == HOST:
            done += (Restored(name, *each) for each in setting.undo(HostSettings(), undo_journal))
            continue
        try:
            nic = open_nic(name)
        except OperatorError as gone:
            _forget(name, journal, undo_journal)
            why = f"{gone.message}: they went with it"
            done.append(Restored(name, "its filters and settings", errno.ENODEV, why))
            continue
        try:
            done += _undone(nic, journal, undo_journal)
        except OSError as refusal:  # the other NICs are restored nevertheless
            code = refusal.errno or errno.EIO
            done.append(Restored(name, "changes", code, f"not restored: {os.strerror(code)}"))
        finally:
            nic.close()
    return done


def take_back(undo_journal: UndoJournal) -> None:
    """What was left to other programs may be written again."""
    for name in undo_journal.with_manual():
        if name != balance.BALANCER:
            undo_journal.take_back(name)


def _forget(name: str, journal: FilterJournal, undo_journal: UndoJournal) -> None:
    for match in list(journal.left.get(name, ())):
        journal.release(name, match)
    for each in undo_journal.held(name):
        undo_journal.forget(name, each)


def _undone(nic: Nic, journal: FilterJournal, undo_journal: UndoJournal) -> Iterator[Restored]:
    named = len(journal.left.get(nic.name, ()))
    undo = Undo(nic, journal, undo_journal)
    outcomes = undo.filters(Code.RESTORED())
    refused = [each for each in outcomes if each.errno]
    for each in refused:
        words = os.strerror(each.errno)
        why = f"is left: the kernel refused to delete it ({words})"
        yield Restored(nic.name, f"filter {each.action.location}", each.errno, why)
    deleted = len(outcomes) - len(refused)
    if deleted:
        yield Restored(nic.name, f"{deleted} filters", 0, "deleted")
    if others := named - len(outcomes) if undo.read else 0:
        why = f"{others} gone, or changed by another program since"
        yield Restored(nic.name, "filters", errno.ESTALE, why)
    undone = setting.undo(nic, undo_journal)
    yield from (Restored(nic.name, *each) for each in undone)
    yield from undo.differences(undone)
