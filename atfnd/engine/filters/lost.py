# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters that a NIC lost by itself: a reset, a link that went down, a change of channels. Pure.

Some drivers replay their filters after a reset, some do not (docs/hardware.md). A missing
filter was lost when something happened to the NIC, or when its whole table is empty at once; if
only one is missing, another program deleted it (`audit.check_filters`).
"""

from __future__ import annotations

from collections.abc import Sequence

from atfnd.engine.table.memory import Memory
from atfnd.model import Filter, Flow, FlowState, Match, NicView
from atfnd.model.reason import Code

__all__ = ["lost"]


def lost(nic: NicView, filters: Sequence[Filter], memory: Memory, *, disturbed: bool) -> list[Flow]:
    """Entries whose filter the NIC lost: their filter is wanted again, and they are returned.
    `disturbed`: the link, the channels or a feature has just changed."""
    ours = [
        flow
        for flow in memory.table.steered(nic.name)
        if memory.was_there(flow) or not nic.caps.asynchronous  # else it may never have been there
    ]
    there = {(each.location, each.match) for each in filters}
    missing = [flow for flow in ours if (flow.location, Match.of(flow.key)) not in there]
    wiped = not filters and len(ours) > 1
    if not missing or not (disturbed or wiped):
        return []
    why = Code.LOST_AT_RESET() if wiped else Code.LOST_BY_NIC()
    again = [
        flow._replace(state=FlowState.WANTED, location=None, target_queue=None, why=why)
        for flow in missing
    ]
    for flow in again:
        memory.table.put(flow)
    return again
