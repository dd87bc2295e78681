# SPDX-License-Identifier: GPL-2.0-or-later
"""What decisions remember between steps: the table, deferred moves, recent overflow. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from atfnd.decide.table import FlowTable
from atfnd.model import Flow, FlowKey

__all__ = ["Memory", "Settling"]

_OVERFLOW_SHOWN = 256


@dataclass(frozen=True, slots=True)
class Settling:
    """Hysteresis between two moves of one flow, and how long an idle entry lives."""

    hold_down_ns: int
    t_delete_ns: int  # of flows whose policy names none
    t_delete_by_policy_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Memory:
    """Changed only by the functions of this room."""

    table: FlowTable
    settling: Settling
    deferred: dict[FlowKey, int] = field(default_factory=dict)  # key -> not before (ns)
    overflowed: OrderedDict[FlowKey, Flow] = field(default_factory=OrderedDict)  # bounded
    overflow: int = 0  # flows turned away since start
    locality: float | None = None  # of the table's bytes between the last two audits

    def turn_away(self, flow: Flow) -> None:
        """Count a flow that found the table full, and keep it for show."""
        self.overflow += flow.key not in self.overflowed
        self.overflowed[flow.key] = flow
        self.overflowed.move_to_end(flow.key)
        while len(self.overflowed) > _OVERFLOW_SHOWN:
            self.overflowed.popitem(last=False)
