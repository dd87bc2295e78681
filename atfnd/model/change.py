# SPDX-License-Identifier: GPL-2.0-or-later
"""A change of one knob: wanted, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from errno import EEXIST, ENODEV, ENOENT, ESTALE
from typing import NamedTuple

from atfnd.model.flow import FlowKey

__all__ = ["Action", "ActionKind", "Outcome", "Plan", "Planned", "Restored", "brief"]


class ActionKind(Enum):
    INSERT = "insert"
    REWRITE = "rewrite"
    DELETE = "delete"
    QUEUE_CPU = "queue-cpu"
    KNOB = "knob"


@dataclass(frozen=True, slots=True)
class Action:
    """One change of one knob: what, old, new, why; and of which entry of the table, by generation
    (`FlowTable.generation`): it must not outlive that."""

    kind: ActionKind
    nic: str
    key: FlowKey | None
    location: int | None
    old: int | None  # queue (or CPU for QUEUE_CPU) before
    new: int | None  # and after
    why: str
    policy: str
    queue: int | None = None  # QUEUE_CPU: the queue moved
    knob: str | None = None  # KNOB: its name (`nic.Nic.knobs`)
    value: str | None = None  # KNOB: what to write
    live: bool = True  # False: the flow's socket is gone
    generation: int = 0  # 0: of no entry, as what is left of an earlier run


Plan = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action. `errno` 0 is applied; `left` says what is in place now. EEXIST of
    an insert, with a location: our rule was there already, and points to `queue`."""

    action: Action
    at_ns: int
    errno: int
    location: int | None
    left: str
    queue: int | None = None

    @property
    def superseded(self) -> bool:
        """It was dropped: the entry that a flow's action was decided for is no more."""
        return self.action.key is not None and self.errno == ESTALE

    @property
    def found(self) -> bool:
        """An insert that was not needed: our rule was there."""
        inserted = self.action.kind is ActionKind.INSERT
        return inserted and self.errno == EEXIST and self.location is not None


@dataclass(frozen=True, slots=True)
class Planned:
    """An action that would be carried out, and how an admin would do it."""

    action: Action
    due_ns: int | None  # not before, CLOCK_MONOTONIC; None: now
    commands: tuple[str, ...]  # of a shell, in order
    cannot: str | None  # why there are no commands


class Restored(NamedTuple):
    """What became of one thing that was ours, when all was to be as before us."""

    nic: str  # `/cgroups`: of no NIC
    what: str  # `rules`, or a knob's name
    errno: int  # 0: it is as it was; ESTALE: somebody else's now; or the kernel's refusal
    left: str  # what is in place, in words

    def __str__(self) -> str:
        return f"{'' if self.nic.startswith('/') else f'{self.nic}: '}{self.what} {self.left}"

    @property
    def done(self) -> bool:
        """Nothing of ours is left of it."""
        return self.errno in (0, ESTALE, ENOENT, ENODEV)


def brief(value: str) -> str:
    """A knob's value in a line: `none`, or the beginning of a table of hundreds of entries."""
    return (value if len(value) <= 40 else f"{value[:37]}...") or "none"
