# SPDX-License-Identifier: GPL-2.0-or-later
"""The connections of a port, and what a filter for it would do to them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from atfnd.engine.filters import aggregate, budget
from atfnd.engine.filters.listeners import Listeners, Place, place_of
from atfnd.engine.table.memory import Memory
from atfnd.model import Flow, FlowKey, NicView, Protocol, SocketUse

__all__ = ["accepted", "by_place", "going", "moves", "queue_of", "rivalled"]
__all__ += ["unsettled", "waits_for"]


def rivalled(key: FlowKey, listeners: Listeners, memory: Memory) -> bool:
    """The filters of two ports match a connection: it is not known which of them wins."""
    return any(memory.table.get(each) is not None for each in listeners.neighbours(key))


def waits_for(key: FlowKey, queue: int, nic: NicView, memory: Memory) -> bool:
    """A connection without a filter that belongs to this queue."""
    own = memory.table.get(key)
    return own is not None and budget.waits(own) and aggregate.belongs(own, nic, memory) == queue


def moves(port: FlowKey, queue: int | None, use: SocketUse, nic: NicView, memory: Memory) -> bool:
    """A connection of a port has no filter of its own, and does not come through `queue`."""
    own = memory.table.get(use.key)
    if not port.covers(use.key) or (own is not None and own.location is not None):
        return False
    at = queue_of(use.napi_id, nic)
    return at is None or at != queue


def going(port: FlowKey, flows: Iterable[Flow], nic: NicView, memory: Memory) -> bool:
    """The filter of one of these connections is about to be deleted: it goes where that was decided
    to send it."""
    swaps = memory.table.swaps(nic.name)
    return any(flow.key in swaps and port.covers(flow.key) for flow in flows)


def unsettled(port: FlowKey, flows: Iterable[Flow], nic: NicView, memory: Memory) -> bool:
    """The filter of one of these connections is about to be rewritten or deleted, by a move that
    was planned with the port's filter as it is: meanwhile that may deliver the connection."""
    rewriting = memory.table.rewriting(nic.name)
    return any(
        flow.key in rewriting or (flow.left is not None and flow.location is not None)
        for flow in flows
        if port.covers(flow.key)
    )


def queue_of(napi_id: int | None, nic: NicView) -> int | None:
    found = (q.index for q in nic.queues if q.napi_id is not None and q.napi_id == napi_id)
    return next(found, None)


def accepted(nic: NicView, memory: Memory) -> Mapping[Place, list[Flow]]:
    """The connections of this NIC that the table knows."""
    found: defaultdict[Place, list[Flow]] = defaultdict(list)
    for flow in memory.table:
        key = flow.key
        if flow.nic == nic.name and key.protocol == Protocol.TCP and not key.listens:
            found[place_of(key)].append(flow)
    return found


def by_place(uses: Iterable[SocketUse]) -> Mapping[Place, list[SocketUse]]:
    found: defaultdict[Place, list[SocketUse]] = defaultdict(list)
    for use in uses:
        if use.key.protocol == Protocol.TCP and not use.key.listens:
            found[place_of(use.key)].append(use)
    return found
