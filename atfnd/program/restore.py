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

__all__ = ["restored"]


def restored(journal: Journal, originals: Originals) -> list[Restored]:
    """Delete every rule that the journal names and put every knob back that is as we left it. What
    somebody else changed since stays his; what the kernel refuses stays in the journals."""
    done: list[Restored] = []
    with_rules = [nic for nic, ours in journal.left.items() if ours]
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
            done += _rules(nic, journal)
            done += (Restored(name, *each) for each in knob.undo(nic, originals))
        finally:
            nic.close()
        originals.take_back(name)
    return done


def _forget(name: str, journal: Journal, originals: Originals) -> None:
    for match in list(journal.left.get(name, ())):
        journal.release(name, match)
    for each in originals.held(name):
        originals.forget(name, each)


def _rules(nic: Nic, journal: Journal) -> Iterator[Restored]:
    named = list(journal.left.get(nic.name, ()))
    if not named:
        return
    try:
        rules = nic.rules()
    except OSError as refusal:
        code = refusal.errno or errno.EIO
        why = f"are left: the kernel does not list them ({os.strerror(code)})"
        yield Restored(nic.name, "rules", code, why)
        return
    deleted, left = 0, set()
    for rule in journal.ours(nic.name, rules):
        try:
            nic.delete(rule.location)
            deleted += 1
        except OSError as refusal:
            code = refusal.errno or errno.EIO
            if code != errno.ENOENT:
                left.add(rule.match)
                why = f"is left: the kernel refused to delete it ({os.strerror(code)})"
                yield Restored(nic.name, f"rule {rule.location}", code, why)
    for match in named:
        if match not in left:
            journal.release(nic.name, match)
    others = len(named) - deleted - len(left)
    if deleted:
        yield Restored(nic.name, f"{deleted} rules", 0, "deleted")
    if others:
        why = f"{others} not there any more, or changed by somebody since"
        yield Restored(nic.name, "rules", errno.ESTALE, why)
