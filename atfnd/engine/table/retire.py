# SPDX-License-Identifier: GPL-2.0-or-later
"""How entries end: with their socket, by expiry, with their NIC, or by the operator. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, Flow, FlowState, NicView, Outcome, Plan
from atfnd.model.reason import Code, Why

__all__ = ["gone", "idle", "nic_gone", "retire", "taken_out", "withdraw"]

_CLOSED = Code.CLOSED()


def retire(flow: Flow, memory: Memory, why: Why, *, live: bool = True) -> Plan:
    """Delete a flow's rule; if it has none, end its entry at once."""
    memory.table.defer(flow.key, None)
    memory.table.gives(flow.key, None)
    if flow.location is None:
        memory.unused(flow)
        memory.table.remove(flow.key)
        return ()
    return (
        Action(
            ActionKind.DELETE,
            flow.nic,
            flow.key,
            flow.location,
            flow.target_queue,
            None,
            why,
            flow.rule_name,
            live=live,
            generation=memory.table.generation(flow.key),
        ),
    )


def gone(cookie: int, memory: Memory, why: Why = _CLOSED) -> Plan:
    """A socket ended: its entries end, and their rules with them. Until a rule is deleted, nothing
    else is decided for its flow."""
    plan: list[Action] = []
    for flow in memory.table.of_cookie(cookie):
        if not flow.key.listens:
            memory.table.close(flow.key, True)
        plan += retire(flow, memory, why, live=False)
    return tuple(plan)


def idle(cookie: int, memory: Memory, why: Why) -> Plan:
    """A socket is open but unused: its entries end as those of a closed one."""
    plan: list[Action] = []
    for flow in memory.table.of_cookie(cookie):
        plan += retire(flow, memory, why)
    return tuple(plan)


def nic_gone(name: str, memory: Memory) -> list[Flow]:
    """A NIC is gone, and its filters with it: forget it and its flows, and return them, with those
    that found no room in the table."""
    gone = [flow for flow in memory.table if flow.nic == name]
    for flow in gone:
        memory.table.remove(flow.key)
    turned_away = [flow for flow in memory.table.overflowed.values() if flow.nic == name]
    for flow in turned_away:
        del memory.table.overflowed[flow.key]
    del memory.nics[name]
    return [*gone, *turned_away]


def withdraw(nic: NicView, memory: Memory, why: Why) -> Plan:
    """Delete every filter of ours in a NIC. Its flows stay in the table as observed ones: `take_up`
    brings their rules back."""
    plan: list[Action] = []
    for flow in memory.table.steered(nic.name):
        flow = flow._replace(state=FlowState.OBSERVED)
        memory.table.put(flow)
        plan += retire(flow, memory, why)
    return tuple(plan)


def taken_out(name: str, outcomes: Iterable[Outcome], memory: Memory) -> None:
    """The filters that `withdraw` was to delete are no longer in the NIC, but for those that the
    kernel left there."""
    kept = {each.action.key for each in outcomes if each.errno and each.location is not None}
    for flow in [flow for flow in memory.table.steered(name) if flow.key not in kept]:
        memory.table.put(flow._replace(location=None, target_queue=None))
    memory.nics[name].strays.clear()
