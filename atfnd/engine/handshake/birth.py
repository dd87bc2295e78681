# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows that we open, placed before data can come. Pure.

Data needs our ACK, which needs the answer to our SYN: a filter written before the answer comes is
written before any data is classified. Whether there is time for that is predicted (`distance`); a
connect to an unknown remote is left to RSS, and its flow is moved later if that is worth it. So is
one that its user's or control group's share of the moves does not allow.
"""

from __future__ import annotations

from atfnd.engine.filters import budget
from atfnd.engine.handshake.distance import Distances
from atfnd.engine.ownership import follow
from atfnd.engine.ownership.shares import tenants_of
from atfnd.engine.placement.auto import in_force
from atfnd.engine.placement.place import Spot, guest, spares
from atfnd.engine.placement.steering_method import no_filter
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Connecting,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Mode,
    NicView,
    Placement,
)
from atfnd.model.reason import UNSAID, Code
from atfnd.model.rss_hash import rss_rings
from atfnd.move.event import Wanted

__all__ = ["again", "connecting", "spot_for", "unborn"]


def connecting(
    event: Connecting,
    nic: NicView,
    rule: FlowRule | None,
    rss_queue: int | None,
    distances: Distances,
    memory: Memory,
    now_ns: int,
) -> Wanted | None:
    """A thread connects. `rule` is the policy's rule for it at 0 bytes and age 0, `rss_queue` where
    RSS will deliver. None: there is nothing to do, or it is too late."""
    if rule is None or rule.placement is Placement.LEAVE or not nic.armed:
        return None
    if spares(event.key, rule, event.cpu, memory) is not None:
        return None
    table, least_ns = memory.table, distances.least_ns(event.key.remote)
    if table.get(event.key) is not None or table.full():
        return None
    tenants = tenants_of(event.thread)
    if no_filter(nic, event.key) is not None:
        return None
    if budget.no_room(nic, memory, event.key, tenants, rule.name) is not None:
        return None
    if least_ns is None and rule.order is Mode.STRICT:
        return None
    flow = Flow(
        key=event.key, cookie=event.cookie, nic=nic.name, state=FlowState.WANTED,
        app_cpu=event.cpu, thread=event.thread, target_queue=None, target_cpu=event.cpu,
        location=None, rx_queue=None, rx_cpu=None, bytes=0, used_ns=now_ns, moved_ns=0,
        rule_name=rule.name, why=UNSAID,
    )  # fmt: skip
    spot = spot_for(flow, rule.placement, nic, memory, rss_queue)
    if spot.queue is None or spot.queue.index == rss_queue:
        return None
    rates, every_ns = memory.nics[nic.name].rates, memory.in_force.move_every_ns
    if rates.next_ns(tenants, every_ns, now_ns) > now_ns:
        return None
    rates.take(tenants, every_ns, now_ns)
    queue = spot.queue.index
    why = Code.CONNECTS(event.cpu, queue)
    cpu = event.cpu if rule.placement is Placement.CORE else spot.cpu
    table.put(flow._replace(target_cpu=cpu, fell_back=spot.fell_back, why=why))
    rss = rss_rings(nic, event.key) if rss_queue is None else frozenset({rss_queue})
    action = Action(
        ActionKind.INSERT, nic.name, event.key, None, rss_queue, queue, why, rule.name,
        generation=table.generation(event.key),
    )  # fmt: skip
    budget.ask(action, memory)
    first_ns = None if least_ns is None else event.at_ns + least_ns
    return Wanted(action, rule.order, rss, rss, first_data_ns=first_ns)


def again(event: Connecting, nic: NicView, rule: FlowRule, memory: Memory, now_ns: int) -> bool:
    """A thread connects from a port that has a filter to that remote. The socket that the filter
    was for is gone, whether or not its end was reported, and the filter now belongs to this one; if
    it leads to the wrong queue, it is moved as any other. False: there is no such filter."""
    old = memory.table.get(event.key)
    if old is None or old.location is None or old.nic != nic.name or old.cookie == event.cookie:
        return False
    memory.table.put(
        old._replace(cookie=event.cookie, thread=event.thread, app_cpu=event.cpu, rx_queue=None,
            rx_cpu=None, bytes=0, used_ns=now_ns, rule_name=rule.name,
            why=Code.USED_AGAIN(),
        )
    )  # fmt: skip
    memory.table.defer(event.key, now_ns)
    return True


def unborn(key: FlowKey, memory: Memory) -> None:
    """The filter was not in time (its move was deferred or refused): forget the flow. Its first use
    reports it, as any flow."""
    flow = memory.table.get(key)
    if flow is not None and flow.location is None:
        memory.table.remove(key)


def spot_for(
    flow: Flow, placement: Placement, nic: NicView, memory: Memory, rss_queue: int | None = None
) -> Spot:
    """The queue that its owner owns, else one that meets its placement: if its current queue does,
    that one."""
    placement = in_force(placement, nic.name, flow.rule_name, flow.thread, memory)
    own = follow.home(flow, nic, memory)
    if own is not None:
        return Spot(own, UNSAID, None)
    if placement is not Placement.CORE:
        current = flow.target_queue if rss_queue is None else rss_queue
        return guest(placement, flow.app_cpu, flow.thread, nic, memory, current)
    for queue in nic.queues:
        if queue.index == flow.target_queue and queue.cpu == flow.app_cpu:
            return Spot(queue, UNSAID, None)
    return guest(placement, flow.app_cpu, flow.thread, nic, memory)
