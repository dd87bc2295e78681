# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters of ours that are in a NIC and in no entry: they are deleted when nothing else is under
way with their flow. Pure."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, FlowKey, Outcome, Plan

__all__ = ["due", "keys", "note", "record"]


def note(delete: Action, memory: Memory) -> None:
    """A filter was written, or found, that no entry has (`audit.record`): its delete is asked for
    until it is done."""
    memory.nics[delete.nic].strays[delete.key] = delete


def due(
    memory: Memory, moving: Callable[[FlowKey], bool], lives: Callable[[str, FlowKey], bool]
) -> Plan:
    """Deletes to be carried out now. If the flow has an entry with a filter, the delete is dropped:
    that is the filter. Packets of a flow that `lives` on a NIC keep their order; the filter of a
    dead one goes at once."""
    plan: list[Action] = []
    for nic, delete in _every(memory):
        entry = None if delete.key is None else memory.table.get(delete.key)
        if entry is not None and entry.location is not None and entry.nic == nic:
            del memory.nics[nic].strays[delete.key]
        elif delete.key is None:
            plan.append(replace(delete, generation=0))
        elif not moving(delete.key):
            generation = memory.table.generation(delete.key)
            live = lives(nic, delete.key)
            plan.append(replace(delete, generation=generation, live=live))
    return tuple(plan)


def keys(memory: Memory) -> tuple[tuple[str, FlowKey], ...]:
    """The flows to ask about for `due`: do they have a socket? By NIC and flow."""
    return tuple(
        (nic, key)
        for nic, delete in _every(memory)
        if (key := delete.key) is not None
        and ((entry := memory.table.get(key)) is None or entry.location is None)
    )


def record(outcome: Outcome, memory: Memory) -> None:
    """A delete that succeeded is finished; any other is asked for again."""
    action = outcome.action
    if action.kind is ActionKind.DELETE and outcome.errno in (0, errno.ENOENT):
        memory.nics[action.nic].strays.pop(action.key, None)


def _every(memory: Memory) -> list[tuple[str, Action]]:
    return [(nic, each) for nic, known in memory.nics.items() for each in known.strays.values()]
