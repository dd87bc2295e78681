# SPDX-License-Identifier: GPL-2.0-or-later
"""From what was observed to what should change: same-core placement with hysteresis. Pure.

Each function takes one kind of evidence and the Memory, and returns the actions wanted now. A
flow's entry believes in a rule only after `settle` has seen the outcome.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import islice

from atfnd.decide.means import no_filter, without_filter
from atfnd.decide.memory import NEVER_NS, Memory
from atfnd.decide.queues import same_core
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowRule,
    FlowState,
    Means,
    NicView,
    Placement,
    Plan,
    SocketSeen,
)

__all__ = ["due", "gone", "idle", "nic_gone", "retry", "seen", "take_up", "withdraw"]

_RETRIES = 16  # a look
_HELD = FlowState.MANUAL, FlowState.RSS, FlowState.SHARED, FlowState.RFS  # and with a rule: kept


@lru_cache(maxsize=4096)
def _reason(cpu: int, queue: int | None) -> str:
    if queue is None:
        return f"its thread runs on CPU {cpu}, and no queue is delivered there"
    return f"its thread runs on CPU {cpu}, where queue {queue} is delivered"


def seen(
    event: SocketSeen,
    nic: NicView,
    rule: FlowRule | None,
    memory: Memory,
    now_ns: int,
    rss_cpu: int | None = None,
) -> Plan:
    """A qualified socket is used off the CPU it was last reported on. `rss_cpu` is where RSS would
    deliver it, for an observer that does not see where packets arrive."""
    table = memory.table
    old = table.get(event.key)
    if old is not None and _anothers(old, event, nic):
        return ()
    if rule is None or rule.placement is Placement.LEAVE:
        return _retire(old, memory, "its policy now leaves it alone") if old else ()
    arrives = rss_cpu if event.rx_cpu is None else event.rx_cpu
    manual = old is not None and old.state is FlowState.MANUAL
    unsteered = old is None or (old.location is None and old.state not in _HELD)
    by_rules = nic.means is Means.RULES or not nic.armed  # else it is evidence for what it shares
    if unsteered and by_rules and arrives == event.app_cpu:
        return _retire(old, memory, "RSS delivers it there by itself") if old else ()
    queue = same_core(nic.queues, event.app_cpu, lambda index: table.rules_on(nic.name, index))
    flow = Flow(
        key=event.key,
        cookie=event.cookie,
        nic=nic.name,
        state=old.state if old else FlowState.WANTED,
        app_cpu=event.app_cpu,
        thread=event.thread,
        target_queue=old.target_queue if old else None,
        target_cpu=queue.cpu if queue else None,
        location=old.location if old else None,
        rx_queue=next((q.index for q in nic.queues if q.napi_id == event.napi_id), None)
        if event.napi_id is not None
        else None,
        rx_cpu=event.rx_cpu,
        bytes=event.bytes,
        used_ns=now_ns,
        moved_ns=old.moved_ns if old else 0,
        policy=rule.name,
        why=old.why if old and manual else _reason(event.app_cpu, queue.index if queue else None),
    )
    if old is None and table.full():
        memory.turn_away(
            replace(flow, state=FlowState.OVERFLOW, why="the Flow-to-Core table is full")
        )
        return ()
    memory.overflowed.pop(flow.key, None)
    table.put(flow)
    plan = _place_after(event.off_since_ns + rule.dwell_ns, flow, nic, memory, now_ns)
    return (*plan, *_taken_along(event, nic, memory, now_ns))


def _place_after(at_ns: int, flow: Flow, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """Place a flow, or put it off: the observer waits for the shortest dwell of all rules, and
    this one's may be longer."""
    if at_ns > now_ns:
        memory.defer(flow.key, at_ns)
        return ()
    return _place(flow, nic, memory, now_ns)


def _taken_along(event: SocketSeen, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """A thread that moved takes its other flows along: one socket that proves it is enough, and
    the rest need not wait for a call of their own."""
    if event.thread is None:
        return ()
    tid, cpu = event.thread.tid, event.app_cpu
    known_cpu, since_ns = memory.thread_cpu.get(tid, (None, -1))
    if known_cpu == cpu or since_ns > event.off_since_ns:
        return ()
    memory.thread_cpu[tid] = cpu, event.off_since_ns
    plan: list[Action] = []
    for flow in memory.table.of_thread(tid):
        if flow.app_cpu == cpu or flow.nic != nic.name or flow.state is FlowState.MANUAL:
            continue
        flow = replace(flow, app_cpu=cpu)
        memory.table.put(flow)
        dwell_ns = memory.settling.dwell_by_policy_ns.get(flow.policy, 0)
        plan += _place_after(event.off_since_ns + dwell_ns, flow, nic, memory, now_ns)
    return tuple(plan)


def _anothers(old: Flow, event: SocketSeen, nic: NicView) -> bool:
    """The entry of this key is of another living socket: one in another namespace with the same
    addresses, or one bound to the same UDP port. A rule serves one; who came first keeps it."""
    if old.nic != nic.name:
        return True
    return old.cookie != event.cookie and not event.key.remote_port


def _place(flow: Flow, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """The action that brings a flow of the table to its application's core, if one is due."""
    table = memory.table
    memory.deferred.pop(flow.key, None)
    if flow.state is FlowState.MANUAL:
        return ()
    if flow.location is None and nic.armed and (why := no_filter(nic, flow.key)) is not None:
        without_filter(flow, nic, memory, why)
        return ()
    queue = same_core(nic.queues, flow.app_cpu, lambda index: table.rules_on(nic.name, index))
    if queue is None:
        if flow.location is None:
            state = FlowState.WANTED if nic.armed else FlowState.OBSERVED
            table.put(replace(flow, state=state, target_queue=None, target_cpu=None))
        return ()
    current = next((q for q in nic.queues if q.index == flow.target_queue), None)
    if flow.target_cpu != queue.cpu:
        flow = replace(flow, target_cpu=queue.cpu)
        table.put(flow)
    if flow.location is not None and current is not None and current.cpu == flow.app_cpu:
        return ()
    if not nic.armed or nic.means is not Means.RULES:
        if flow.location is None:
            table.put(replace(flow, state=FlowState.OBSERVED, target_queue=queue.index))
        return ()
    again_ns = memory.dropped.get(flow.key, (0, 0))[1]
    if flow.location is None and now_ns < again_ns:
        if again_ns != NEVER_NS:
            memory.defer(flow.key, again_ns)
        table.put(replace(flow, target_queue=None, why=memory.why_dropped(flow.key)))
        return ()
    if flow.moved_ns and now_ns - flow.moved_ns < memory.settling.hold_down_ns:
        memory.defer(flow.key, flow.moved_ns + memory.settling.hold_down_ns)
        return ()
    if flow.location is None and nic.budget is not None and table.rules_in(nic.name) >= nic.budget:
        memory.overflow += flow.state is not FlowState.OVERFLOW
        why = f"our {nic.budget} rules of this NIC are in use: delivered by RSS"
        table.put(replace(flow, state=FlowState.OVERFLOW, target_queue=None, why=why))
        return ()
    kind = ActionKind.INSERT if flow.location is None else ActionKind.REWRITE
    old = flow.rx_queue if flow.location is None else flow.target_queue
    why = _reason(flow.app_cpu, queue.index)
    return (Action(kind, nic.name, flow.key, flow.location, old, queue.index, why, flow.policy),)


def gone(cookie: int, memory: Memory, why: str = "its socket was closed") -> Plan:
    """A socket ended: its entries end, and their rules with them."""
    plan: list[Action] = []
    for flow in memory.table.of_cookie(cookie):
        plan += _retire(flow, memory, why, live=False)
    return tuple(plan)


def idle(cookie: int, memory: Memory, why: str) -> Plan:
    """A socket is not used, and lives: its entries end as those of one that is gone."""
    plan: list[Action] = []
    for flow in memory.table.of_cookie(cookie):
        plan += _retire(flow, memory, why)
    return tuple(plan)


def nic_gone(name: str, memory: Memory) -> list[Flow]:
    """A NIC is gone, and its rules with it: forget its flows, and return those that had one."""
    gone = [flow for flow in memory.table if flow.nic == name]
    for flow in gone:
        memory.deferred.pop(flow.key, None)
        memory.table.remove(flow.key)
    for key in [key for key, flow in memory.overflowed.items() if flow.nic == name]:
        del memory.overflowed[key]
    memory.buckets.pop(name, None)
    return [flow for flow in gone if flow.location is not None]


def _retire(flow: Flow, memory: Memory, why: str, *, live: bool = True) -> Plan:
    """Delete a flow's rule, or at once its entry when it has none."""
    memory.deferred.pop(flow.key, None)
    if flow.location is None:
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
            flow.policy,
            live=live,
        ),
    )


def due(nics: dict[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """Moves whose dwell or hold-down is over."""
    plan: list[Action] = []
    for key in memory.take_due(now_ns):
        flow = memory.table.get(key)
        if flow is not None and flow.nic in nics:
            plan += _place(flow, nics[flow.nic], memory, now_ns)
    return tuple(plan)


def retry(nics: dict[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """A few of the flows that found a NIC full, as far as it has room again."""
    plan: list[Action] = []
    full = (flow for flow in memory.table if flow.state is FlowState.OVERFLOW)
    for flow in list(islice(full, _RETRIES)):
        nic = nics.get(flow.nic)
        slots = nic.caps.rule_slots if nic else None
        if nic and (slots is None or memory.table.rules_in(nic.name) + len(plan) < slots):
            plan += _place(flow, nic, memory, now_ns)
    return tuple(plan)


def take_up(nic: NicView, memory: Memory, now_ns: int, *, manual: bool = False) -> Plan:
    """Look at every flow of one NIC again: it was armed, or its queues moved. With `manual`, also
    at those that were let go."""
    plan: list[Action] = []
    for flow in [flow for flow in memory.table if flow.nic == nic.name]:
        if manual:
            memory.dropped.pop(flow.key, None)
        if manual and flow.state is FlowState.MANUAL:
            flow = replace(flow, state=FlowState.WANTED)
            memory.table.put(flow)
        plan += _place(flow, nic, memory, now_ns)
    return tuple(plan)


def withdraw(nic: NicView, memory: Memory, why: str) -> Plan:
    """Delete every rule of ours in a NIC. Its flows stay in the table as observed ones: `take_up`
    brings their rules back."""
    plan: list[Action] = []
    for flow in list(memory.table.steered(nic.name)):
        flow = replace(flow, state=FlowState.OBSERVED)
        memory.table.put(flow)
        plan += _retire(flow, memory, why)
    return tuple(plan)
