# SPDX-License-Identifier: GPL-2.0-or-later
"""One filter for the connections of a port, where filters are short, with all of them on one queue.
Pure.

The port's filter comes first (`port_filters`): it is written where it moves no flow, or only flows
that wait for a filter and belong to its queue. Then the filters of the flows that it would deliver
to the same queue are deleted, and no flow changes its queue. A flow that goes elsewhere has a
filter of its own, which wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from atfnd.engine.filters import budget
from atfnd.engine.ownership import follow
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, Flow, FlowKey, FlowState, NicView
from atfnd.model.reason import Code
from atfnd.move.event import Wanted

__all__ = ["belongs", "joined", "queue_of_most", "rests", "saves", "stranded"]

_JOIN = 8  # flows of a port in one look: each write is done before anything else is decided
_RESTS_NS = 5_000_000_000  # since its last move


def queue_of_most(flows: Iterable[Flow], nic: NicView, memory: Memory) -> int | None:
    """The queue that most of these flows have filters to, or wait for a filter to. None: no two
    flows share one."""
    rules = Counter(
        flow.target_queue if flow.location is not None else belongs(flow, nic, memory)
        for flow in flows
        if flow.location is not None or budget.waits(flow)
    )
    rules.pop(None, None)
    queue = min(rules, key=lambda each: (-rules[each], each or 0), default=None)
    return queue if rules[queue] > 1 else None


def belongs(flow: Flow, nic: NicView, memory: Memory) -> int | None:
    """The queue that its owner owns."""
    home = follow.home(flow, nic, memory)
    return None if home is None else home.index


def saves(port: FlowKey, flows: Iterable[Flow], nic: NicView, memory: Memory) -> bool:
    """A filter for this port would make other filters needless, or carry flows that wait."""
    covered = (each for each in flows if port.covers(each.key))
    return queue_of_most(covered, nic, memory) is not None


def rests(key: FlowKey, nic: NicView, memory: Memory, now_ns: int) -> bool:
    """A port's filter that could not be written a moment ago."""
    return memory.nics[nic.name].spending.later.on(key, now_ns)


def stranded(nic: NicView, memory: Memory, now_ns: int) -> None:
    """Flows whose port's filter is gone, or leads elsewhere now, wait for a filter of their own."""
    asked = memory.table.inserting(nic.name)
    for flow in (each for each in memory.table.led(nic.name) if each.key not in asked):
        port = memory.table.covering(flow.key)
        if port is None or port.target_queue != flow.target_queue:
            why = Code.PORT_LEADS_NO_MORE()
            flow = flow._replace(state=FlowState.OVERFLOW, target_queue=None, why=why)
            memory.table.put(flow)
            memory.table.defer(flow.key, now_ns)


def joined(
    key: FlowKey, flows: Iterable[Flow], nic: NicView, memory: Memory, now_ns: int
) -> Iterator[Wanted]:
    """Delete the filters of `flows` that their port's makes needless, a few in one look; flows that
    wait for a filter are served by it."""
    table, port = memory.table, memory.table.get(key)
    if port is None or port.location is None or port.target_queue is None:
        return
    if port.state is not FlowState.STEERED or key in table.rewriting(nic.name):
        return
    queues = frozenset({port.target_queue})
    served = [
        flow
        for flow in flows
        if key.covers(flow.key)
        and flow.rule_name == port.rule_name
        and _home(flow, port, nic, memory)
    ]
    for flow in served:
        if budget.waits(flow) and flow.key not in table.inserting(nic.name):
            why = Code.PORT_LEADS(port.target_queue)
            target = port.target_queue
            memory.table.put(flow._replace(state=FlowState.PORT, target_queue=target, why=why))
    for flow in [each for each in served if _joins(each, port, memory, now_ns)][:_JOIN]:
        table.gives(flow.key, (None,))
        action = Action(
            ActionKind.DELETE, nic.name, flow.key, flow.location, flow.target_queue, None,
            Code.NEEDLESS(), flow.rule_name,
            generation=memory.table.generation(flow.key),
        )  # fmt: skip
        yield Wanted(action, memory.in_force.order(flow.rule_name), queues, queues)


def _home(flow: Flow, port: Flow, nic: NicView, memory: Memory) -> bool:
    """Its port's filter leads to its owner's queue: it needs no filter of its own, wherever its
    thread runs."""
    home = follow.home(flow, nic, memory)
    return home is not None and home.index == port.target_queue


def _joins(flow: Flow, port: Flow, memory: Memory, now_ns: int) -> bool:
    """It has a filter that leads where its port's filter does, and has not moved lately."""
    table = memory.table
    moving = table.due_ns(flow.key) is not None or flow.key in table.rewriting(flow.nic)
    return (
        flow.state is FlowState.STEERED
        and flow.location is not None
        and flow.target_queue == port.target_queue
        and not moving
        and flow.key not in table.swaps(flow.nic)
        and (not flow.moved_ns or now_ns - flow.moved_ns >= _RESTS_NS)
    )
