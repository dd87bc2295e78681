# SPDX-License-Identifier: GPL-2.0-or-later
"""One rule for many flows, where filters are short: those of one port that go to one queue. Pure.

The port's rule comes first, where that moves no connection (`ports`); then the rules of those that
it would deliver just so are deleted, and no flow changes its queue. A flow that goes elsewhere has
a rule of its own, which wins. Whose flows a port's rule may serve is the policy's to say, of all
its connections at once: one that leaves some of them alone has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from atfnd.decide import budget, follow
from atfnd.decide.birth import Birth
from atfnd.decide.listeners import Listeners, covers, overlap
from atfnd.decide.memory import Memory
from atfnd.model import Action, ActionKind, Flow, FlowKey, FlowState, NicView

__all__ = ["joined", "queue_of_most", "saves", "short"]

_MOST = 0.75  # before it is full: flows that wait would be moved by their port's rule
_JOIN = 8  # flows of a port a look: each write is done before anything else is decided
_RESTS_NS = 5_000_000_000  # since its last move
_WHY = "the rule of its port leads it there too, and filters are short"


def short(nic: NicView, memory: Memory) -> bool:
    """Most of our share is in use, or a flow waits for a filter."""
    room = budget.share(nic)
    if room is not None and memory.table.rules_in(nic.name) >= room * _MOST:
        return True
    return any(flow.nic == nic.name and budget.waits(flow) for flow in memory.table)


def queue_of_most(flows: Iterable[Flow]) -> int | None:
    """The queue that most of these flows have rules to. None: no two have one to the same."""
    rules = Counter(flow.target_queue for flow in flows if flow.location is not None)
    queue = min(rules, key=lambda each: (-rules[each], each or 0), default=None)
    return queue if rules[queue] > 1 else None


def saves(port: FlowKey, flows: Iterable[Flow]) -> bool:
    """A rule for this port would make others needless."""
    return queue_of_most(each for each in flows if covers(port, each.key)) is not None


def joined(
    key: FlowKey, flows: Iterable[Flow], nic: NicView, listeners: Listeners, memory: Memory,
    now_ns: int,
) -> Iterator[Birth]:  # fmt: skip
    """The rules of connections (`flows`) that their port's makes needless, a few a look; those that
    wait for one are served by it. Not where two ports' rules serve a connection: which of them wins
    is not known."""
    port, spending = memory.table.get(key), memory.spending_of(nic.name)
    others = (*listeners.sockets, *listeners.closed_ns)
    if any(o != key and overlap(o, key) and memory.table.get(o) is not None for o in others):
        return
    if port is None or port.location is None or port.target_queue is None:
        return
    if port.state is not FlowState.STEERED or key in spending.rewriting:
        return
    queues = frozenset({port.target_queue})
    served = [
        flow
        for flow in flows
        if covers(key, flow.key) and flow.policy == port.policy and _home(flow, port, nic, memory)
    ]
    for flow in served:
        if budget.waits(flow) and flow.key not in spending.inserting:
            why = f"the rule of its port leads it to queue {port.target_queue}"
            target = port.target_queue
            memory.table.put(replace(flow, state=FlowState.PORT, target_queue=target, why=why))
    for flow in [each for each in served if _joins(each, port, memory, now_ns)][:_JOIN]:
        spending.swaps[flow.key] = None
        action = Action(
            ActionKind.DELETE, nic.name, flow.key, flow.location, flow.target_queue, None, _WHY,
            flow.policy,
        )  # fmt: skip
        yield Birth(action, memory.settling.order(flow.policy), queues, queues)


def _home(flow: Flow, port: Flow, nic: NicView, memory: Memory) -> bool:
    """Its port's rule leads to its owner's queue: it wants no other, wherever its thread runs."""
    home = follow.home(flow, nic, memory)
    return home is not None and home.index == port.target_queue


def _joins(flow: Flow, port: Flow, memory: Memory, now_ns: int) -> bool:
    """It has a rule that leads where its port's does, and rests."""
    spending = memory.spending_of(flow.nic)
    moving = flow.key in memory.deferred or flow.key in spending.rewriting
    return (
        flow.state is FlowState.STEERED
        and flow.location is not None
        and flow.target_queue == port.target_queue
        and not moving
        and flow.key not in spending.swaps
        and (not flow.moved_ns or now_ns - flow.moved_ns >= _RESTS_NS)
    )
