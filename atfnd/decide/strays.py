# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules of ours that are in a NIC and in no entry: they go again, when nothing else is under way
with their flow. Pure."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

from atfnd.decide.memory import Memory
from atfnd.model import Action, ActionKind, FlowKey, Outcome, Plan

__all__ = ["Strays"]


class Strays:
    """The deletes that are still to be done, each asked for until it is."""

    def __init__(self) -> None:
        self._deletes: dict[tuple[str, FlowKey | None], Action] = {}  # by NIC and flow

    def __len__(self) -> int:
        return len(self._deletes)

    def note(self, delete: Action) -> None:
        """A rule was written, or was found, that no entry is for (`audit.settle`)."""
        self._deletes[delete.nic, delete.key] = delete

    def due(
        self,
        memory: Memory,
        moving: Callable[[FlowKey], bool],
        living: Callable[[str, FlowKey], bool],
    ) -> Plan:
        """Deletes to be carried out now. One whose flow has an entry with a rule is over: that is
        the rule. Packets of a flow on a NIC that is `living` keep their order; the rule of a dead
        one goes at once."""
        plan: list[Action] = []
        for of, delete in list(self._deletes.items()):
            entry = None if delete.key is None else memory.table.get(delete.key)
            if entry is not None and entry.location is not None and entry.nic == delete.nic:
                del self._deletes[of]
            elif delete.key is None:
                plan.append(replace(delete, generation=0))
            elif not moving(delete.key):
                generation = memory.table.generation(delete.key)
                live = living(delete.nic, delete.key)
                plan.append(replace(delete, generation=generation, live=live))
        return tuple(plan)

    def settle(self, outcome: Outcome) -> None:
        """A delete that is done is done; any other one is asked for again."""
        action = outcome.action
        if action.kind is ActionKind.DELETE and outcome.errno in (0, errno.ENOENT):
            self._deletes.pop((action.nic, action.key), None)

    def forget(self, nic: str) -> None:
        """The NIC is gone, or nothing of ours is in it any more."""
        for of in [of for of in self._deletes if of[0] == nic]:
            del self._deletes[of]
