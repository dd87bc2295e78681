# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy comes into force: every flow of the Flow-to-Core table is matched anew. Pure.

A flow that is now left alone loses its rule by a normal move, in the order it was steered with;
until that is done it is in `Memory.left`, and nothing else moves it. One that falls under another
rule takes that one's terms. A smaller table evicts nobody: it turns newcomers away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from atfnd.decide.follow import owner_of
from atfnd.decide.means import of_queue
from atfnd.decide.memory import Memory, Settling
from atfnd.decide.owner import OwnerId
from atfnd.decide.prepare import prepare
from atfnd.decide.queues import confine
from atfnd.decide.retire import retire
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    Mode,
    NicView,
    Plan,
    Policy,
    Topology,
)

__all__ = ["Judge", "homeward", "leave", "renew", "strays"]

_LEFT = "its policy now leaves it alone"

# The name of the rule that steers a flow by the new policy. None: it is left alone.
Judge = Callable[[Flow], str | None]


def renew(policy: Policy, judge: Judge, memory: Memory, moving: Callable[[FlowKey], bool]) -> Plan:
    """Take the terms of `policy` into force, and say what that changes at once; `steer.take_up` is
    to follow. `moving`: a move of this flow waits or is under way.

    A port's entry is not judged here: `ports.look` knows its connections.
    """
    before, table = memory.settling, memory.table
    memory.settling, table.capacity = Settling.of(policy), policy.table_max
    was_left, memory.left = memory.left, {}
    plan: list[Action] = []
    leaving: dict[str, Mode] = {}
    for flow in [flow for flow in table if not flow.key.wide]:
        if (rule := judge(flow)) is None:
            memory.left[flow.key] = flow.cookie
            leaving[flow.policy] = before.order(flow.policy)
            continue
        if rule != flow.policy:
            table.put(replace(flow, policy=rule))
        if flow.key in was_left and flow.location is not None and moving(flow.key):
            plan.append(_kept(flow, rule))
    memory.settling = replace(memory.settling, leaving=leaving)
    _release(memory)
    for key, flow in list(memory.overflowed.items()):
        if (rule := judge(flow)) is None:
            del memory.overflowed[key]
        else:
            memory.overflowed[key] = replace(flow, policy=rule)
    return (*plan, *leave(memory, moving))


def leave(memory: Memory, moving: Callable[[FlowKey], bool]) -> Plan:
    """The rules that are to go by a new policy, as far as they are still there and nothing is under
    way with them."""
    plan: list[Action] = []
    for key in list(memory.left):
        flow = memory.table.get(key)
        if flow is None or flow.cookie != memory.left[key]:
            del memory.left[key]
        elif not moving(key):
            plan += retire(flow, memory, _LEFT)
            if flow.location is None:
                del memory.left[key]
    return tuple(plan)


def _release(memory: Memory) -> None:
    """Owners without a flow that would make them one own nothing any more."""
    owners: defaultdict[str, set[OwnerId | None]] = defaultdict(set)
    for flow in memory.table:
        owners[flow.nic].add(owner_of(flow, memory))
    for name, owned in memory.owned.items():
        memory.owned[name] = {q: each for q, each in owned.items() if each.owner in owners[name]}
        released = owned.keys() - memory.owned[name].keys()
        if released:
            memory.homeward.setdefault(name, set()).update(released)


def strays(nic: NicView, memory: Memory) -> None:
    """`nic` was armed, or has another policy (`Memory.strays`). Where no flow has a queue follow
    anybody, those that did go home: also of an owner that is gone, and of an earlier run. While it
    is not known whose a flow is, it is to be asked again."""
    for flow in memory.table if nic.name in memory.strays else ():
        if flow.nic == nic.name and not flow.key.wide:
            if not flow.policy:
                return  # taken over from an earlier run
            if owner_of(flow, memory) is not None:
                memory.strays.discard(nic.name)
                return
    if nic.name in memory.strays:
        memory.strays.discard(nic.name)
        memory.homeward[nic.name] = {queue.index for queue in nic.queues}


def homeward(
    nic: NicView, originals: Mapping[str, str], topology: Topology, memory: Memory
) -> Plan:
    """Queues that followed an owner and are nobody's by another policy: back to where a fresh start
    has them. `originals` are the knobs that we wrote, as they were before. Until all are there,
    it is to be asked again."""
    queues = memory.homeward.get(nic.name, set()) - memory.owned.get(nic.name, {}).keys()
    knobs = {of_queue("queue-cpu", index) for index in queues}
    ours = {k: v for k, v in originals.items() if k in knobs and k not in nic.manual}
    cpus = {queue.index: ours.get(of_queue("queue-cpu", queue.index)) for queue in nic.queues}
    fresh = tuple(
        q
        if (was := cpus[q.index]) is None
        else replace(q, cpu=int(was) if was.isdecimal() else None)
        for q in nic.queues
    )
    dedicated = memory.settling.dedicated
    plan = prepare(replace(nic, queues=fresh, knobs={**nic.knobs, **ours}), topology, dedicated)
    placed = {queue.index: queue.cpu for queue in fresh}
    placed |= {each.queue or 0: each.new for each in plan if each.kind is ActionKind.QUEUE_CPU}
    online = {cpu.index for cpu in topology.cpus if cpu.online}
    moved = [(q, cpu) for q in nic.queues if (cpu := placed[q.index]) != q.cpu]
    wanted = [(q, cpu) for q, cpu in moved if cpu in online]
    if not wanted:
        memory.homeward.pop(nic.name, None)
    return confine(nic.name, wanted, "by its policy it follows nobody any more")


def _kept(flow: Flow, rule: str) -> Action:
    """Its rule was about to be deleted: that is revoked."""
    kind, queue, why = ActionKind.REWRITE, flow.target_queue, "its policy steers it again"
    return Action(kind, flow.nic, flow.key, flow.location, queue, queue, why, rule)
