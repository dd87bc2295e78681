# SPDX-License-Identifier: GPL-2.0-or-later
"""What is counted of one NIC, from what is known. Pure."""

from __future__ import annotations

from atfnd.decide.budget import share
from atfnd.decide.memory import Memory
from atfnd.model import NicCounts, NicView, Received

__all__ = ["counts_of"]


def counts_of(nic: NicView, memory: Memory) -> NicCounts:
    """Without a look at it."""
    return NicCounts(
        name=nic.name,
        armed=nic.armed,
        paused=nic.paused,
        up=nic.up,
        rules=memory.table.rules_in(nic.name),
        foreign=nic.foreign,
        rules_max=share(nic),
        rule_slots=nic.caps.rule_slots,
        received=memory.received.get(nic.name, Received(0, 0)),
    )
