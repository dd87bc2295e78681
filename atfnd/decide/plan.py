# SPDX-License-Identifier: GPL-2.0-or-later
"""What would be done to a NIC now: the decisions of the daemon on a copy of what it knows. Pure.

Nothing here decides: `prepare`, `steer` and `buckets` do, as when a NIC is armed. What depends on
the outcome of those actions (whose queue follows whom, a port's rule) is decided after them, and is
not foreseen.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from dataclasses import fields, replace

from atfnd.decide import buckets, steer
from atfnd.decide.memory import Memory, Spending
from atfnd.decide.prepare import prepare
from atfnd.decide.renew import leave
from atfnd.decide.table import FlowTable
from atfnd.model import ActionKind, Flow, Means, NicView, Plan, Topology

__all__ = ["copy_of", "foreseen"]


def foreseen(
    nic: NicView,
    topology: Topology,
    entry_of: buckets.EntryOf,
    known: Memory,
    flows: Iterable[Flow],
    now_ns: int,
) -> Plan:
    """The actions that arming this NIC would begin with, or that wait where it is armed. `known` is
    a `copy_of` what is known, and is changed; `flows` are the NIC's; `entry_of` is as for
    `buckets.plan`."""
    for flow in flows:
        known.table.put(flow)
    for key in [key for key in known.left if known.table.get(key) is None]:
        del known.left[key]
    armed = replace(nic, armed=True, manual=nic.manual if nic.armed else frozenset())
    plan = prepare(armed, topology, known.settling.dedicated)
    cpus = {each.queue: each.new for each in plan if each.kind is ActionKind.QUEUE_CPU}
    queues = tuple(replace(q, cpu=cpus.get(q.index, q.cpu)) for q in nic.queues)
    armed = replace(armed, queues=queues)
    plan += leave(known, lambda key: False)
    plan += steer.take_up(armed, known, now_ns, manual=not nic.armed)
    if nic.means is Means.RSS:
        buckets.look(armed, entry_of, known)
        plan += buckets.plan(armed, entry_of, known, now_ns)
    return plan


def copy_of(memory: Memory, nic: str) -> Memory:
    """What is known of one NIC, to be changed without a trace; its flows, which may be many, are
    left to `foreseen`."""
    known = {nic: deepcopy(memory.buckets[nic])} if nic in memory.buckets else {}
    return Memory(
        FlowTable(memory.table.capacity),
        memory.settling,
        buckets=known,
        dropped=dict(memory.dropped),
        owned=dict(memory.owned),
        cpus=memory.cpus,
        busy=memory.busy,
        cpusets=dict(memory.cpusets),
        spending={nic: _copied(memory.spending[nic])} if nic in memory.spending else {},
        left=dict(memory.left),
        trials=memory.trials,
    )


def _copied(spending: Spending) -> Spending:
    """What is in it is never changed, only what holds it."""
    return Spending(**{each.name: copy(getattr(spending, each.name)) for each in fields(spending)})
