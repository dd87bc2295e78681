# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves in mode `immediate` (T_timer = 0, the paper's baseline). Pure.

Every change of a live flow's queue goes through this room. Here a move is one write, with no wait
for the old ring to drain: a flow may be reordered once.
"""

from __future__ import annotations

from atfnd.model import Action, ActionKind, FlowKey, Plan

__all__ = ["schedule"]

_ORDER = {
    ActionKind.KNOB: 0,  # before rules: another steering is off before ours is on
    ActionKind.QUEUE_CPU: 0,
    ActionKind.DELETE: 1,  # before inserts: they may need the slot
    ActionKind.REWRITE: 2,
    ActionKind.INSERT: 3,
}


def schedule(plan: Plan) -> Plan:
    """The order in which a plan is carried out: one operation a flow (ordering.md, I1), the last
    one wanted, those that free room first."""
    last: dict[FlowKey | int, Action] = {}
    for index, action in enumerate(plan):
        last[action.key if action.key is not None else index] = action
    return tuple(sorted(last.values(), key=lambda action: _ORDER[action.kind]))
