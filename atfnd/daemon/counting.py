# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts of NICs, from what is known already. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from atfnd.engine.filters.budget import share
from atfnd.engine.table.memory import Memory
from atfnd.model import NicCounts, NicReads, NicView

__all__ = ["counts_of", "in_short"]


def counts_of(nic: NicView, reads: NicReads | None, memory: Memory) -> NicCounts:
    """Without a look at it."""
    return NicCounts(
        name=nic.name,
        armed=nic.armed,
        paused=nic.paused,
        up=nic.up,
        filters=memory.table.rules_in(nic.name),
        foreign=nic.foreign,
        filters_max=share(nic),
        filter_slots=nic.caps.filter_slots,
        reads=reads,
    )


def in_short(nics: Iterable[NicView], memory: Memory) -> str:
    """All NICs in one line. Cheap: it is computed on every pass of the loop."""
    known = list(nics)
    armed = [nic.name for nic in known if nic.armed]
    named = f": {' '.join(armed)}" if armed else ""
    rules = sum(memory.table.rules_in(nic.name) for nic in known)
    said = f"{len(armed)} of {len(known)} NICs armed{named}"
    return f"{said}; {len(memory.table)} flows known, {rules} by a rule"
