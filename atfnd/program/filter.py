# SPDX-License-Identifier: GPL-2.0-or-later
"""One filter action on a NIC: journal, write, and say what is in place now."""

from __future__ import annotations

import errno
import os
import time

from atfnd.errors import refusable
from atfnd.model import Action, ActionKind, Filter, Match, Outcome
from atfnd.nic import Nic
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.record_file import Unrecorded

__all__ = ["apply"]

# A refused insert with one of these has changed nothing; after any other, the NIC is read.
_NOTHING_DONE = {
    errno.EEXIST, errno.ENOSPC, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ENODEV,
}  # fmt: skip


def apply(nic: Nic, journal: FilterJournal, action: Action) -> Outcome:
    """Insert, rewrite or delete one filter. A kernel refusal is an Outcome, never an exception.

    Reads and writes the NIC's filter table; the journal is written before an insert and after a
    delete, so that at any instant every filter of ours in the NIC is in it. A match that the
    journal names already may be in the NIC: an insert of it first reads all filters there, and what
    it finds of ours is the outcome (EEXIST, with its `location` and `queue`). After a refused
    rewrite the NIC is asked what it has now: some drivers lose the filter. `location` None: it is
    lost.
    """
    try:
        if action.kind is ActionKind.INSERT and (there := _there(nic, journal, action)):
            left = f"its filter was there already, and points to queue {there.queue}"
            now_ns = time.monotonic_ns()
            return Outcome(action, now_ns, errno.EEXIST, there.location, left, there.queue)
        location = _write(nic, journal, action)
    except Unrecorded as refusal:
        left = f"the journal cannot be written ({refusal.strerror}): nothing is changed"
        return Outcome(action, time.monotonic_ns(), errno.EIO, action.location, left)
    except OSError as refusal:
        code = refusal.errno or errno.EIO
        location, left = action.location, _left(action, code)
        if action.kind is ActionKind.REWRITE:
            code, location, left = _after_rewrite(nic, journal, action, code)
        return Outcome(action, time.monotonic_ns(), code, location, left)
    return Outcome(action, time.monotonic_ns(), 0, location, "as planned")


def _after_rewrite(
    nic: Nic, journal: FilterJournal, action: Action, code: int
) -> tuple[int, int | None, str]:
    """The result of a rewrite that was refused: errno, where the filter is, and a description."""
    refused = f"the NIC refused to change its filter ({os.strerror(code)})"
    if action.location is None or action.key is None:
        raise ValueError(f"a rewrite without a flow or a location: {action}")
    try:
        there = nic.filter(action.location)
    except OSError as error:
        words = os.strerror(error.errno or errno.EIO)
        return code, action.location, f"{refused}, and does not say what is left of it ({words})"
    match = Match.of(action.key)
    if there is not None and _is_ours(nic, journal, there, match):
        if there.queue == action.new:
            journal.locate(nic.name, match, action.location)
            return 0, action.location, f"{refused}, but changed it nevertheless"
        if there.queue is not None:
            journal.stays(nic.name, match, action.location, there.queue)
        return code, action.location, f"{refused}: it still points to queue {there.queue}"
    journal.release(nic.name, match)
    if code == errno.ENOENT:
        return code, None, "another program deleted its filter, or replaced it: delivered by RSS"
    return code, None, f"{refused} and lost it: delivered by RSS"


def _write(nic: Nic, journal: FilterJournal, action: Action) -> int | None:
    if action.kind is ActionKind.DELETE:
        if action.location is None or action.key is None:
            raise ValueError(f"a delete without a flow or a location: {action}")
        match = Match.of(action.key)
        with refusable(errno.ENOENT):
            if _there_still(nic, journal, action.location, match) is not None:
                nic.delete(action.location)
        at = journal.location(nic.name, match)
        if at in (None, action.location) and not journal.anywhere(nic.name, match):
            journal.release(nic.name, match)
        return None
    if action.key is None or action.new is None:
        raise ValueError(f"an insert without a flow or a queue: {action}")
    match = Match.of(action.key)
    if action.kind is ActionKind.REWRITE:
        there = _to_rewrite(nic, journal, action.location, match)
        journal.turn(nic.name, match, there.queue, action.new)
        _to_rewrite(nic, journal, action.location, match)  # the journal's disk may be slow
        location = nic.insert(match, action.new, action.location)
        journal.locate(nic.name, match, location)
        return location
    journal.claim(nic.name, match, action.new)
    try:
        location = nic.insert(match, action.new)
    except OSError as refusal:
        done = None if refusal.errno in _NOTHING_DONE else _found(nic, journal, match)
        if done is None:
            journal.release(nic.name, match)
            raise
        location = done.location
    journal.locate(nic.name, match, location)
    return location


def _there(nic: Nic, journal: FilterJournal, action: Action) -> Filter | None:
    """The filter of ours that is there before an insert: an earlier run's, which no entry has. A
    named match that is not there, or that belongs to another program, is released. A match that is
    ours `anywhere` stays so: a probe that was killed may have left several filters of it."""
    if action.key is None or not journal.names(nic.name, match := Match.of(action.key)):
        return None
    if (found := _found(nic, journal, match)) is None:
        journal.release(nic.name, match)
    elif not journal.anywhere(nic.name, match):
        journal.locate(nic.name, match, found.location)
    return found


def _found(nic: Nic, journal: FilterJournal, match: Match) -> Filter | None:
    """The filter of ours with this match, in all that the NIC lists. OSError: it does not list
    them, and the journal still names the match."""
    ours = journal.ours(nic.name, [rule for rule in nic.filters() if rule.match == match])
    return next(iter(ours), None)


def _there_still(nic: Nic, journal: FilterJournal, location: int, match: Match) -> Filter | None:
    """Our filter at this location, if it is still there. A program that deletes our filter may put
    its own there, and a program that points our filter elsewhere has made it its own. A NIC changes
    or deletes whatever is at the location we give. There are microseconds between this look and the
    write."""
    there = nic.filter(location)
    return there if there is not None and _is_ours(nic, journal, there, match) else None


def _to_rewrite(nic: Nic, journal: FilterJournal, location: int | None, match: Match) -> Filter:
    """OSError(ENOENT): no filter of ours is at this location."""
    there = None if location is None else _there_still(nic, journal, location, match)
    if there is None:
        raise OSError(errno.ENOENT, f"no filter of ours at location {location}")
    return there


def _is_ours(nic: Nic, journal: FilterJournal, there: Filter, match: Match) -> bool:
    return there.match == match and bool(journal.ours(nic.name, [there]))


def _left(action: Action, code: int) -> str:
    words = os.strerror(code)
    if action.kind is ActionKind.INSERT:
        if code == errno.ENOSPC:
            return "the NIC's filter table is full: delivered by RSS"
        return f"the NIC refused a filter ({words}): delivered by RSS"
    return f"the NIC refused to delete the filter at location {action.location} ({words})"
