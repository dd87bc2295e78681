# SPDX-License-Identifier: GPL-2.0-or-later
"""What would be done to a NIC, and how an admin would do it. Pure; it may take long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atfnd.engine.plan import Copied, foreseen
from atfnd.model import Flow, FlowKey, NicView, Plan, Planned, Topology
from atfnd.move.plan import in_order
from atfnd.program.shell_commands import shell_commands

__all__ = ["planned"]


def planned(
    view: NicView,
    cpus: Topology,
    known: Copied,
    flows: Sequence[Flow],
    now_ns: int,
    deferred: Mapping[FlowKey, int],
    more: Plan,
) -> list[Planned]:
    """`known` is a copy, as for `foreseen`, and is changed; `more` comes after that."""
    actions = (*in_order(foreseen(view, cpus, known, flows, now_ns)), *more)
    return [
        Planned(action, deferred.get(action.key) if action.key else None, *typed)
        for action, typed in zip(actions, shell_commands(actions, view), strict=True)
    ]
