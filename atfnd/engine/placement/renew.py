# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy comes into force: every flow of the Flow-to-Core table is matched anew. Pure.

A flow that is now left alone loses its filter by a normal move, in the order it was steered with;
until that is done it is in `FlowTable.leaving`, and nothing else moves it. A flow that falls under
another rule takes the terms of that rule. A smaller table evicts no flow: it turns newcomers away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from atfnd.engine.ownership.follow import owner_of
from atfnd.engine.ownership.owner import OwnerId
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.engine.table.retire import retire
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    Mode,
    Plan,
    Policy,
)
from atfnd.model.reason import Code

__all__ = ["Judge", "leave", "renew"]

# The name of the rule that steers a flow by the new policy. None: it is left alone.
Judge = Callable[[Flow], str | None]


def renew(policy: Policy, judge: Judge, memory: Memory, moving: Callable[[FlowKey], bool]) -> Plan:
    """Put the terms of `policy` in force, and return what that changes at once; `steer.take_up`
    must follow. `moving`: a move of this flow waits or is under way.

    A port's entry is not judged here: `ports.look` knows its connections.
    """
    before, table = memory.in_force, memory.table
    memory.in_force, table.capacity = RulesInForce.of(policy), policy.table_max
    was_left = table.stay()
    plan: list[Action] = []
    leaving: dict[str, Mode] = {}
    for flow in [each for each in table if not each.key.listens and not table.is_closed(each.key)]:
        if (rule := judge(flow)) is None:
            table.leave(flow.key)
            leaving[flow.rule_name] = before.order(flow.rule_name)
            continue
        if rule != flow.rule_name:
            table.put(flow._replace(rule_name=rule))
        if flow.key in was_left and flow.location is not None and moving(flow.key):
            plan.append(_kept(flow, rule, memory))
    memory.in_force = replace(memory.in_force, leaving=leaving)
    _release(memory)
    for key, flow in list(memory.table.overflowed.items()):
        if (rule := judge(flow)) is None:
            del memory.table.overflowed[key]
        else:
            memory.table.overflowed[key] = flow._replace(rule_name=rule)
    return (*plan, *leave(memory, moving))


def leave(memory: Memory, moving: Callable[[FlowKey], bool]) -> Plan:
    """Delete the rules that a new policy does not want, as far as they are still there and nothing
    is under way with them."""
    plan: list[Action] = []
    for key in list(memory.table.leaving()):
        flow = memory.table.get(key)
        if flow is not None and not moving(key) and not memory.is_pinned(flow):
            plan += retire(flow, memory, Code.LEAVES())
    return tuple(plan)


def _release(memory: Memory) -> None:
    """Owners without a flow that entitles them lose their queue."""
    owners: defaultdict[str, set[OwnerId | None]] = defaultdict(set)
    for flow in memory.table:
        owners[flow.nic].add(owner_of(flow, memory))
    for name, nic in memory.nics.items():
        if nic.owned:
            nic.owned = {q: each for q, each in nic.owned.items() if each.owner in owners[name]}
            memory.look_at_queues(name)


def _kept(flow: Flow, rule: str, memory: Memory) -> Action:
    """Its filter was about to be deleted: that is revoked."""
    kind, queue, why = ActionKind.REWRITE, flow.target_queue, Code.STEERED_AGAIN()
    return Action(
        kind, flow.nic, flow.key, flow.location, queue, queue, why, rule,
        generation=memory.table.generation(flow.key),
    )  # fmt: skip
