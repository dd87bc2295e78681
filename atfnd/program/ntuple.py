# SPDX-License-Identifier: GPL-2.0-or-later
"""One filter action on a NIC: journal, write, and say what is in place now."""

from __future__ import annotations

import errno
import os
import time

from atfnd.model import Action, ActionKind, Match, Outcome
from atfnd.nic import Nic
from atfnd.program.journal import Journal
from atfnd.program.record_file import Unrecorded

__all__ = ["apply"]


def apply(nic: Nic, journal: Journal, action: Action) -> Outcome:
    """Insert, rewrite or delete one rule. A kernel refusal is an Outcome, never an exception.

    Reads and writes the NIC's filter table; the journal is written before an insert and after a
    delete, so that at any instant every rule of ours in the NIC is in it. After a refused rewrite
    the NIC is asked what it has now: some drivers lose the rule. `location` None: it is lost.
    """
    try:
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
    nic: Nic, journal: Journal, action: Action, code: int
) -> tuple[int, int | None, str]:
    """What came of a rewrite that was refused: errno, where the rule is, and in words."""
    refused = f"the NIC refused to change its rule ({os.strerror(code)})"
    if action.location is None or action.key is None:
        raise ValueError(f"a rewrite without a flow or a location: {action}")
    try:
        there = nic.rule(action.location)
    except OSError as error:
        words = os.strerror(error.errno or errno.EIO)
        return code, action.location, f"{refused}, and does not say what is left of it ({words})"
    match = Match.of(action.key)
    if there is not None and there.match == match:
        if there.queue == action.new:
            return 0, action.location, f"{refused}, and yet it did"
        return code, action.location, f"{refused}: it still points to queue {there.queue}"
    journal.release(nic.name, match)
    if code == errno.ENOENT:
        return code, None, "somebody else deleted its rule, or replaced it: delivered by RSS"
    return code, None, f"{refused} and lost it: delivered by RSS"


def _write(nic: Nic, journal: Journal, action: Action) -> int | None:
    if action.kind is ActionKind.DELETE:
        if action.location is None or action.key is None:
            raise ValueError(f"a delete without a flow or a location: {action}")
        try:
            if _is_there(nic, action.location, Match.of(action.key)):
                nic.delete(action.location)
        except OSError as refusal:
            if refusal.errno != errno.ENOENT:
                raise
        journal.release(nic.name, Match.of(action.key))
        return None
    if action.key is None or action.new is None:
        raise ValueError(f"an insert without a flow or a queue: {action}")
    match = Match.of(action.key)
    if action.kind is ActionKind.REWRITE:
        if action.location is None or not _is_there(nic, action.location, match):
            raise OSError(errno.ENOENT, f"no rule of ours at location {action.location}")
        journal.turn(nic.name, match, action.new)
        location = nic.insert(match, action.new, action.location)
        if location != action.location:
            journal.locate(nic.name, match, location)
        return location
    journal.claim(nic.name, match, action.new)
    try:
        location = nic.insert(match, action.new)
    except OSError:
        journal.release(nic.name, match)
        raise
    journal.locate(nic.name, match, location)
    return location


def _is_there(nic: Nic, location: int, match: Match) -> bool:
    """Still: who deletes a rule of ours frees its location for his own, and a NIC is told to change
    or delete whatever is at a location. Between this look and the write lie microseconds."""
    there = nic.rule(location)
    return there is not None and there.match == match


def _left(action: Action, code: int) -> str:
    words = os.strerror(code)
    if action.kind is ActionKind.INSERT:
        if code == errno.ENOSPC:
            return "the NIC's filter table is full: delivered by RSS"
        return f"the NIC refused a rule ({words}): delivered by RSS"
    return f"the NIC refused to delete the rule at location {action.location} ({words})"
