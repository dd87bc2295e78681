# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything back to what it was before us, by the journals alone: no daemon runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from atfnd.errors import OperatorError
from atfnd.model import Restored
from atfnd.nic import Nic
from atfnd.nic.driver import open_nic
from atfnd.program import balance, knob
from atfnd.program.cpuset import CGROUPS, Cpusets
from atfnd.program.journal import Journal
from atfnd.program.originals import Originals
from atfnd.program.undo import Undo

__all__ = ["restored"]


def restored(journal: Journal, originals: Originals) -> list[Restored]:
    """Delete every rule that the journal names, put every knob back that is as we left it, and read
    each NIC afterwards. What somebody else changed since stays his; what the kernel refuses stays
    in the journals; what is not as it was before us is told, and not `done`."""
    done: list[Restored] = []
    with_rules = [nic for nic, rules in journal.left.items() if rules]
    done += balance.restored(originals)
    for name in dict.fromkeys([*with_rules, *originals.nics()]):
        if name == balance.BALANCER:
            continue  # it kept what it was told
        if name == CGROUPS:
            done += (Restored(name, *each) for each in knob.undo(Cpusets(), originals))
            originals.take_back(name)
            continue
        try:
            nic = open_nic(name)
        except OperatorError as gone:
            _forget(name, journal, originals)
            why = f"{gone.message}: they went with it"
            done.append(Restored(name, "its rules and knobs", errno.ENODEV, why))
            continue
        try:
            done += _undone(nic, journal, originals)
        finally:
            nic.close()
        originals.take_back(name)
    return done


def _forget(name: str, journal: Journal, originals: Originals) -> None:
    for match in list(journal.left.get(name, ())):
        journal.release(name, match)
    for each in originals.held(name):
        originals.forget(name, each)


def _undone(nic: Nic, journal: Journal, originals: Originals) -> Iterator[Restored]:
    named = len(journal.left.get(nic.name, ()))
    undo = Undo(nic, journal, originals)
    outcomes = undo.filters("atfnd restore")
    refused = [each for each in outcomes if each.errno]
    for each in refused:
        words = os.strerror(each.errno)
        why = f"is left: the kernel refused to delete it ({words})"
        yield Restored(nic.name, f"rule {each.action.location}", each.errno, why)
    deleted = len(outcomes) - len(refused)
    if deleted:
        yield Restored(nic.name, f"{deleted} rules", 0, "deleted")
    if others := named - len(outcomes) if undo.read else 0:
        why = f"{others} not there any more, or changed by somebody since"
        yield Restored(nic.name, "rules", errno.ESTALE, why)
    undone = knob.undo(nic, originals)
    yield from (Restored(nic.name, *each) for each in undone)
    yield from undo.differences(undone)
