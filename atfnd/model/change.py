# SPDX-License-Identifier: GPL-2.0-or-later
"""A change of one setting: what was wanted, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from errno import EEXIST, ENODEV, ENOENT, ESTALE
from typing import NamedTuple

from atfnd.model.flow import FlowKey
from atfnd.model.reason import UNSAID, Why

__all__ = ["Action", "ActionKind", "Outcome", "Plan", "Planned", "Restored", "brief"]


class ActionKind(Enum):
    INSERT = "insert"
    REWRITE = "rewrite"
    DELETE = "delete"
    QUEUE_CPU = "queue-cpu"
    SETTING = "setting"


@dataclass(frozen=True, slots=True)
class Action:
    """One change of one setting: what, old, new, why; and the generation of its table entry
    (`FlowTable.generation`), because the action must not outlive the entry."""

    kind: ActionKind
    nic: str
    key: FlowKey | None
    location: int | None
    old: int | None  # queue (or CPU for QUEUE_CPU) before
    new: int | None  # and after
    why: Why
    rule_name: str
    queue: int | None = None  # QUEUE_CPU: the queue moved
    setting: str | None = None  # SETTING: its name (`nic.Nic.settings`)
    value: str | None = None  # SETTING: what to write
    live: bool = True  # False: the flow's socket is gone
    generation: int = 0  # 0: of no entry, as for what an earlier run left
    loan: bool = False  # SETTING: it is borrowed for moves, or given back

    @classmethod
    def of_setting(
        cls,
        nic: str,
        setting: str,
        value: str | None,
        why: Why = UNSAID,
        rule_name: str = "",
    ) -> Action:
        """Write this value to this setting."""
        kind = ActionKind.SETTING
        return cls(kind, nic, None, None, None, None, why, rule_name, setting=setting, value=value)

    def shown(self) -> dict[str, object]:
        """As the API and `atfnd replay` show it."""
        return {
            "nic": self.nic,
            "kind": self.kind.value,
            "flow": None if self.key is None else str(self.key),
            "queue": self.queue,
            "setting": self.setting,
            "value": self.value,
            "old": self.old,
            "new": self.new,
            "why": str(self.why),
            "rule": self.rule_name or None,
        }


Plan = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an action. `errno` 0: applied; `left` says what is in place now. EEXIST for an
    insert, with a location: our filter was there already, and points to `queue`. `before`: what a
    setting was when it was to be written; `original`: before our first write, if it is ours."""

    action: Action
    at_ns: int
    errno: int
    location: int | None
    left: str
    queue: int | None = None
    before: str | None = None
    original: str | None = None

    @property
    def superseded(self) -> bool:
        """It was dropped: the entry that a flow's action was decided for is no more."""
        return self.action.key is not None and self.errno == ESTALE

    @property
    def found(self) -> bool:
        """An insert that was not needed: our filter was there."""
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
    """The result for one change of ours, when everything should be put back."""

    nic: str  # `/host`: of no NIC
    what: str  # `filters`, or a setting's name
    errno: int  # 0: it is as it was; ESTALE: another program's now; or the kernel's refusal
    left: str  # what is in place, in words

    def __str__(self) -> str:
        return f"{'' if self.nic.startswith('/') else f'{self.nic}: '}{self.what} {self.left}"

    @property
    def done(self) -> bool:
        """Nothing of ours is left of it."""
        return self.errno in (0, ESTALE, ENOENT, ENODEV)


def brief(value: str) -> str:
    """A setting's value in a line: `none`, or the beginning of a table of hundreds of entries."""
    return (value if len(value) <= 40 else f"{value[:37]}...") or "none"
