# SPDX-License-Identifier: GPL-2.0-or-later
"""From a plan of the engine to the moves of a NIC: in which order, and from which queues. Pure."""

from __future__ import annotations

from atfnd.model import Action, ActionKind, FlowKey, Plan

__all__ = ["in_order", "origins"]

_ORDER = {
    ActionKind.SETTING: 0,  # before rules: another steering is off before ours is on
    ActionKind.QUEUE_CPU: 0,
    ActionKind.DELETE: 1,  # before inserts: they may need the slot
    ActionKind.REWRITE: 2,
    ActionKind.INSERT: 3,
}


def in_order(plan: Plan) -> Plan:
    """A plan in the order it is carried out: one operation per flow (ordering.md, I1), the last one
    wanted, and first those that free room."""
    last: dict[FlowKey | int, Action] = {}
    for index, action in enumerate(plan):
        last[action.key if action.key is not None else index] = action
    return tuple(sorted(last.values(), key=lambda action: _ORDER[action.kind]))


def origins(action: Action, rss: frozenset[int] | None, seen: int | None) -> frozenset[int] | None:
    """The queues a flow's packets come through before an action. `rss`: by the indirection table;
    `seen`: where the last packet of an observed flow came. None: not known."""
    if action.kind is ActionKind.QUEUE_CPU:
        return None if action.queue is None else frozenset({action.queue})
    if action.kind is ActionKind.INSERT:
        if rss is None:
            return None if seen is None else frozenset({seen})
        return rss if seen is None else rss | {seen}
    by_filter = seen if action.old == action.new and seen is not None else action.old
    return None if by_filter is None else frozenset({by_filter})
