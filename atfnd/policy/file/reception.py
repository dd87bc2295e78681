# SPDX-License-Identifier: GPL-2.0-or-later
"""Reception modes of a policy as values. Pure."""

from __future__ import annotations

from atfnd.model import Reception, ReceptionMode
from atfnd.policy.file.schema import ReceptionEntry

__all__ = ["reception_of"]


def reception_of(entry: ReceptionEntry | str) -> Reception:
    """A dedicated queue is polled each `pause`, until it has been empty for `idle_after`."""
    if isinstance(entry, str):
        return Reception(ReceptionMode(entry))
    if (deferred := entry.deferred) is not None:
        return Reception(ReceptionMode.DEFERRED, deferred.timeout, deferred.polls)
    if (suspended := entry.suspended) is not None:
        times = suspended.timeout, suspended.polls, suspended.limit
        return Reception(ReceptionMode.SUSPENDED, *times)
    assert entry.dedicated is not None
    pause_ns = entry.dedicated.pause
    polls = max(1, entry.dedicated.idle_after // pause_ns)
    return Reception(ReceptionMode.DEDICATED, pause_ns, polls)
