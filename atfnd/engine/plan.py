# SPDX-License-Identifier: GPL-2.0-or-later
"""What would be done to a NIC now: the decisions of the daemon on a copy of what it knows. Pure.

The decisions are those of `prepare`, the engine and `entries`, as when a NIC is armed. What depends
on the outcome of those actions (which queue follows which owner, a port's rule) is decided after
them, and is not foreseen.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from dataclasses import fields, replace

from atfnd.engine.command import Begin
from atfnd.engine.engine import Engine
from atfnd.engine.event import NicAttached, RemainsDue, TakenUp
from atfnd.engine.indirection import entries
from atfnd.engine.prepare import prepare
from atfnd.engine.table.flow_table import FlowNotes, FlowTable
from atfnd.engine.table.memory import Memory, NicMemory, Spending
from atfnd.model import ActionKind, Flow, NicView, Plan, SteeringMethod, Topology

__all__ = ["copy_of", "foreseen"]


def foreseen(
    nic: NicView,
    topology: Topology,
    entry_of: entries.EntryOf,
    known: Memory,
    flows: Iterable[Flow],
    now_ns: int,
) -> Plan:
    """The actions that arming this NIC would begin with, or that wait if it is armed. `known` is a
    `copy_of` what is known, and is changed; `flows` are those of the NIC; `entry_of` is as for
    `entries.plan`."""
    for flow in flows:
        known.table.put(flow)
    for key in [key for key in known.left if known.table.get(key) is None]:
        del known.left[key]
    armed = replace(nic, armed=True, manual=nic.manual if nic.armed else frozenset())
    plan = prepare(armed, topology, known.in_force.dedicated)
    cpus = {each.queue: each.new for each in plan if each.kind is ActionKind.QUEUE_CPU}
    queues = tuple(replace(q, cpu=cpus.get(q.index, q.cpu)) for q in nic.queues)
    armed = replace(armed, queues=queues)
    engine = Engine(known, lambda nic, key: None)
    taken_up = TakenUp(nic.name, manual=not nic.armed)
    events = NicAttached(armed), RemainsDue(frozenset()), taken_up
    for event in events:
        begun = [each for each in engine.handle(event, now_ns) if isinstance(each, Begin)]
        plan += tuple(wanted.action for each in begun for wanted in each.wanted)
    if nic.method is SteeringMethod.RSS:
        entries.look(armed, entry_of, known)
        plan += entries.plan(armed, entry_of, known, now_ns)
    return plan


def copy_of(memory: Memory, nic: str) -> Memory:
    """What is known of one NIC, as a copy that may be changed; its flows, which may be many, are
    left to `foreseen`."""
    known = memory.nics[nic]
    copied = NicMemory(
        known.view,
        buckets=deepcopy(known.buckets),
        owned=known.owned,
        spending=_copied(known.spending),
    )
    notes = memory.table.notes().items()
    dropped = {key: FlowNotes(dropped=each.dropped) for key, each in notes if each.dropped[0]}
    return Memory(
        FlowTable(memory.table.capacity, dropped),
        memory.in_force,
        nics={nic: copied},
        cpus=memory.cpus,
        busy=memory.busy,
        cpusets=dict(memory.cpusets),
        left=dict(memory.left),
        trials=memory.trials,
    )


def _copied(spending: Spending) -> Spending:
    """The containers are copied; what is in them is never changed."""
    return Spending(**{each.name: copy(getattr(spending, each.name)) for each in fields(spending)})
