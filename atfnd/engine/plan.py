# SPDX-License-Identifier: GPL-2.0-or-later
"""What would be done to a NIC now: the engine's decisions on a copy of what it knows. Pure.

The events are those that follow when a NIC is armed. What depends on the outcome of its actions
(which queue follows which owner, a port's rule) is decided after them, and is not foreseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import fields, replace
from typing import NamedTuple

from atfnd.engine.command import actions_of
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    CpusRead,
    EntriesDue,
    Event,
    NicRead,
    RemainsDue,
    SettingsDue,
    TakenUp,
)
from atfnd.engine.table.flow_table import FlowRecord, FlowTable
from atfnd.engine.table.memory import Memory, NicMemory, Spending
from atfnd.model import Action, ActionKind, Flow, FlowKey, NicView, Plan, Topology

__all__ = ["Copied", "changed", "copy_of", "foreseen"]


class Copied(NamedTuple):
    """What is known of one NIC, without its flows, and what is remembered of these."""

    memory: Memory
    records: Mapping[FlowKey, FlowRecord]


def foreseen(
    nic: NicView,
    topology: Topology,
    copied: Copied,
    flows: Iterable[Flow],
    now_ns: int,
) -> Plan:
    """The actions that arming this NIC would begin with, or that wait if it is armed. `copied` is
    what is known, and is changed; `flows` are those of the NIC."""
    known = copied.memory
    for flow in flows:
        known.table.put(flow)
        if (before := copied.records.get(flow.key)) is not None:
            known.table.remember(flow.key, before)
    engine = Engine(known)

    def decided(*events: Event) -> Plan:
        commands = [each for event in events for each in engine.handle(event, now_ns)]
        return tuple(action for each in commands for action in actions_of(each))

    armed = replace(nic, armed=True, manual=nic.manual if nic.armed else frozenset())
    known.nics[nic.name].view = armed
    plan = decided(CpusRead(topology), SettingsDue(nic.name))
    for action in plan:
        armed = changed(armed, action)
    return plan + decided(
        NicRead(armed), RemainsDue(frozenset()), TakenUp(nic.name, manual=not nic.armed),
        EntriesDue(nic.name),
    )  # fmt: skip


def changed(nic: NicView, action: Action) -> NicView:
    """The NIC after an action; rules are not in it, but in the Flow-to-Core table."""
    if action.kind is ActionKind.QUEUE_CPU and action.queue is not None:
        queues = (replace(q, cpu=action.new) if q.index == action.queue else q for q in nic.queues)
        return replace(nic, queues=tuple(queues))
    if action.setting == "rss" and nic.rss is not None:
        table = tuple(map(int, (action.value or "").split()))
        return replace(nic, rss=replace(nic.rss, table=table))
    if action.setting is not None:
        return replace(nic, settings={**nic.settings, action.setting: action.value or ""})
    return nic


def copy_of(memory: Memory, nic: str) -> Copied:
    """What is known of one NIC, as a copy that may be changed; its flows, which may be many, are
    left to `foreseen`."""
    known = memory.nics[nic]
    copied = NicMemory(
        known.view,
        buckets=known.buckets,  # changed only when entries have been written
        owned=known.owned,
        trials=known.trials,
        spending=_copied(known.spending),
    )
    empty = Memory(
        FlowTable(memory.table.capacity),
        memory.in_force,
        nics={nic: copied},
        cpus=memory.cpus,
        nodes=memory.nodes,
        busy=memory.busy,
        full=memory.full,
        threads=dict(memory.threads),
    )
    return Copied(empty, memory.table.remembered(nic))


def _copied(spending: Spending) -> Spending:
    """The containers are copied; what is in them is never changed."""
    return Spending(**{each.name: copy(getattr(spending, each.name)) for each in fields(spending)})
