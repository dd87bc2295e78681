# SPDX-License-Identifier: GPL-2.0-or-later
"""From observations to changes: placement with hysteresis. Pure.

Each function takes one kind of evidence and the Memory, and returns the actions wanted now. A
flow's entry counts on a rule only after `audit.record` has seen the outcome.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import nlargest
from itertools import islice

from atfnd.engine.filters import budget
from atfnd.engine.ownership import follow
from atfnd.engine.ownership.owner import OwnerId
from atfnd.engine.ownership.shares import held_by, may_take, tenants_of
from atfnd.engine.placement.auto import in_force, placement_of
from atfnd.engine.placement.place import Spot, guest, right, spares, wanders_in
from atfnd.engine.placement.steering_method import no_filter, without_filter
from atfnd.engine.table.memory import NEVER_NS, Memory
from atfnd.engine.table.retire import retire
from atfnd.model import (
    Action,
    ActionKind,
    Distance,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    NicView,
    Placement,
    Plan,
    SocketSeen,
    SteeringMethod,
    Topology,
)
from atfnd.model.reason import UNSAID, Code, Why

__all__ = ["due", "own", "paid", "relieve", "retry", "seen", "take_up"]

_RETRIES = 16  # in one look
_LOOKED_AT = 64  # entries of one user
_STAY_NS = 60_000_000_000  # a longer stay is not expected, however long it was
_HELD = {  # these keep their place, as those with a rule do
    FlowState.MANUAL, FlowState.RSS, FlowState.SHARED, FlowState.RFS, FlowState.PORT,
}  # fmt: skip


def _why_left(event: SocketSeen, rule: FlowRule | None, memory: Memory) -> Why | None:
    """Why a filter for the socket's 5-tuple would be wrong, or would never match."""
    if event.wanders:
        return Code.LEFT_WANDERS(wanders_in(event.home, event.app_cpu, event.thread, memory))
    if event.tunnel is not None:
        return Code.LEFT_TUNNEL(event.tunnel)
    if event.group and not event.key.remote_port:
        return Code.LEFT_GROUP()
    return spares(event.key, rule, event.app_cpu, memory)


def _owns(flow: Flow, queue: int, memory: Memory) -> Why:
    kind = (follow.owner_of(flow, memory) or ("thread", 0))[0]
    if kind == "thread":
        return Code.OWNS(flow.app_cpu, queue)
    return Code.OWNS_IN_GROUP(flow.app_cpu, kind, queue, kind)


def seen(
    event: SocketSeen,
    nic: NicView,
    rule: FlowRule | None,
    memory: Memory,
    now_ns: int,
    rss_cpu: int | None = None,
) -> Plan:
    """A qualified socket is used off the CPU it was last reported on. `rss_cpu` is where RSS would
    deliver it, for an observer that does not see where packets arrive. Of a thread that is pinned,
    one report stands for all its flows of this NIC (observer.bpf.c)."""
    along = _moves_others(event, memory)  # first: a flow is placed by the newest evidence
    plan = _seen(event, nic, rule, memory, now_ns, rss_cpu)
    return (*plan, *_taken_along(event, nic, memory, now_ns)) if along else plan


def _seen(
    event: SocketSeen,
    nic: NicView,
    rule: FlowRule | None,
    memory: Memory,
    now_ns: int,
    rss_cpu: int | None,
) -> Plan:
    table = memory.table
    old, left = table.get(event.key), _why_left(event, rule, memory)
    steers = rule is not None and rule.placement is not Placement.LEAVE
    if old is not None and steers and event.wanders and _no_news(old, event, nic):
        kept = old._replace(thread=event.thread, home=event.home, pinned=event.pinned)
        table.put(kept._replace(home_ns=_home_since(event, old), used_ns=now_ns))
        return ()
    if old is not None and left is not None and old.location is not None and old.nic == nic.name:
        home_ns = _home_since(event, old)
        leaves = old._replace(state=FlowState.OBSERVED, left=left, app_cpu=event.app_cpu)
        table.put(leaves._replace(home=event.home, home_ns=home_ns))
        return retire(old, memory, left)
    if old is not None and _anothers(old, event, nic):
        return ()
    table.close(event.key, False)
    if old is not None and old.left is not None and old.location is not None:
        table.outdate(old.key)  # its filter stays: a delete of it that waits is not done
        old = old._replace(state=FlowState.STEERED)
    if rule is None or rule.placement is Placement.LEAVE:
        goes = old is not None and not memory.is_pinned(old)
        return retire(old, memory, Code.LEAVES()) if old and goes else ()
    arrives = rss_cpu if event.rx_cpu is None else event.rx_cpu
    manual = old is not None and old.state is FlowState.MANUAL
    unsteered = old is None or (old.location is None and old.state not in _HELD)
    # Without filters, the flow's indirection entry needs the evidence.
    by_filters = nic.method is SteeringMethod.FILTERS or not nic.armed
    placement = in_force(rule.placement, nic.name, rule.name, event.thread, memory)
    unsteered = unsteered and rule.placement is not Placement.AUTO  # which can only be measured
    by_itself = right(placement, event.app_cpu, arrives, event.thread, memory, event.home)
    if unsteered and by_filters and _is_for_rfs(event, placement, nic):
        where = wanders_in(event.home, event.app_cpu, event.thread, memory)
        left = Code.LEFT_WANDERS(where)  # RFS finds it in the table
    elif unsteered and by_filters and by_itself:
        return retire(old, memory, Code.BY_ITSELF()) if old else ()
    filter_queue = old.target_queue if old and old.location is not None else None
    spot = guest(placement, event.app_cpu, event.thread, nic, memory, filter_queue, event.home)
    flow = Flow(
        key=event.key,
        cookie=event.cookie,
        nic=nic.name,
        state=old.state if old else FlowState.WANTED,
        app_cpu=event.app_cpu,
        thread=event.thread,
        target_queue=old.target_queue if old else None,
        target_cpu=spot.cpu,
        location=old.location if old else None,
        rx_queue=next((q.index for q in nic.queues if q.napi_id == event.napi_id), None)
        if event.napi_id is not None
        else None,
        rx_cpu=event.rx_cpu,
        bytes=event.bytes,
        used_ns=now_ns,
        moved_ns=old.moved_ns if old else 0,
        rule_name=rule.name,
        why=old.why if old and manual else spot.why,
        fell_back=spot.fell_back,
        left=left,
        born_ns=event.born_ns,
        direction=event.direction,
        home=event.home,
        pinned=event.pinned,
        home_ns=_home_since(event, old),
    )
    if not manual and (own_queue := follow.home(flow, nic, memory)) is not None:
        why = _owns(flow, own_queue.index, memory)
        flow = flow._replace(target_cpu=event.app_cpu, why=why)
    if old is None and table.full() and not _admitted(flow, memory):
        memory.turn_away(flow._replace(state=FlowState.OVERFLOW, why=Code.TABLE_FULL()))
        return ()
    table.put(flow)
    at_ns = event.off_since_ns + rule.dwell_ns
    return _owning(flow, nic, memory, now_ns) + _place_after(at_ns, flow, nic, memory, now_ns)


def _no_news(old: Flow, event: SocketSeen, nic: NicView) -> bool:
    """A filter of an earlier run keeps its place: a thread that is first seen is not known to stay
    anywhere, wherever it has been before. Until it has stayed, that is no reason to delete it."""
    if (old.cookie, old.nic) != (event.cookie, nic.name) or old.location is None:
        return False
    return old.left is None and (old.thread is None or old.home is event.home)


def _is_for_rfs(event: SocketSeen, placement: Placement, nic: NicView) -> bool:
    """Its thread does not stay on a CPU: RFS brings its packets to wherever it is, without a
    write."""
    if event.home is Distance.CPU or event.pinned is not False or placement is not Placement.CORE:
        return False
    return nic.rfs_serves()


def _home_since(event: SocketSeen, old: Flow | None) -> int:
    if old is None or (old.home, old.pinned) != (event.home, event.pinned):
        return event.off_since_ns
    stayed = event.home is not Distance.CPU or old.app_cpu == event.app_cpu
    return old.home_ns if stayed else event.off_since_ns


def _admitted(flow: Flow, memory: Memory) -> bool:
    """In a full table a new flow takes the place of a flow without a rule, from the tenant that has
    more entries."""
    table, mine = memory.table, tenants_of(flow.thread)
    rich = max((each for each in table.entries if each not in mine), default=None,
               key=lambda each: table.entries[each])  # fmt: skip
    for key in [] if rich is None else [*islice(table.bare_of(rich), _LOOKED_AT)]:
        other = table.get(key)
        if other is None or other.state not in (FlowState.OVERFLOW, FlowState.OBSERVED):
            continue
        if may_take(mine, tenants_of(other.thread), table.entries):
            retire(other, memory, Code.TABLE_PLACE_TAKEN())
            turned_away = other._replace(state=FlowState.OVERFLOW, why=Code.TABLE_SHARE())
            memory.turn_away(turned_away)
            return True
    return False


def _spot(flow: Flow, nic: NicView, memory: Memory) -> Spot:
    filter_queue = None if flow.location is None else flow.target_queue
    return guest(
        placement_of(flow, memory), flow.app_cpu, flow.thread, nic, memory, filter_queue, flow.home
    )


def _owning(flow: Flow, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """The owner of this flow takes a queue, if one is free."""
    owner = follow.owner_of(flow, memory)
    if owner is None or follow.home(flow, nic, memory) or not follow.free(nic, memory):
        return ()
    return own(nic, memory.online(nic) | {flow.app_cpu}, memory, now_ns)


def own(nic: NicView, online: frozenset[int], memory: Memory, now_ns: int) -> Plan:
    """Look at queue owners. The flows of a thread that has gained a queue are placed there; those
    of a thread that has lost its queue are placed as a guest's."""
    others, plan = follow.look(nic, online, memory, now_ns)
    for flow in _flows_of(others, memory):
        used = memory.in_use(flow, follow.TERMS.away_ns)
        if flow.nic == nic.name and used and follow.owner_of(flow, memory) in others:
            plan += _place(flow, nic, memory, now_ns)
    return plan


def _flows_of(owners: Collection[OwnerId], memory: Memory) -> list[Flow]:
    """Flows that these may own, all of theirs among them."""
    if any(kind != "thread" for kind, _ in owners):
        return list(memory.table)
    return [flow for _, tid in sorted(owners) for flow in memory.table.of_thread(tid)]


def _place_after(at_ns: int, flow: Flow, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """Place a flow, or put it off: the observer waits for the shortest dwell of all rules, and
    this one's may be longer."""
    if at_ns > now_ns:
        memory.table.defer(flow.key, at_ns)
        return ()
    return _place_or_follow(flow, nic, memory, now_ns)


def _place_or_follow(flow: Flow, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """Place a flow; if its owner has a queue, that goes where the owner runs. What one flow last
    showed may be older than what is known of its thread: else the queue would follow each in
    turn."""
    tid, cpu = flow.thread.tid if flow.thread else 0, memory.thread(flow.thread).cpu
    moved = cpu not in (None, flow.app_cpu) and flow.state is not FlowState.MANUAL
    if cpu is not None and moved and any(each.pinned for each in memory.table.of_thread(tid)):
        flow = flow._replace(app_cpu=cpu)
        memory.table.put(flow)
    queue, owner = follow.home(flow, nic, memory), follow.owner_of(flow, memory)
    if queue is None or owner is None or owner[0] != "thread" or flow.state is FlowState.MANUAL:
        return _place(flow, nic, memory, now_ns)
    if not follow.may_follow(flow, queue, nic, memory):
        return _place(flow, nic, memory, now_ns)
    plan = _place(flow, nic, memory, now_ns)  # first: it forgets when to look again
    return follow.along(flow, queue, nic, memory, now_ns) + plan


def _moves_others(event: SocketSeen, memory: Memory) -> bool:
    """Its thread is on another CPU than was known, and this is no older than that; or another NIC
    told so before, and this one's report stands for the flows here."""
    if event.thread is None:
        return False
    known, cpu = memory.thread(event.thread), event.app_cpu
    if known.cpu == cpu:
        return event.pinned is True
    if known.since_ns > event.off_since_ns:
        return False
    newer = known._replace(cpu=cpu, since_ns=event.off_since_ns)
    memory.threads[event.thread.tid] = newer
    return True


def _taken_along(event: SocketSeen, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """A thread that moved takes its other flows along: one socket proves it, and the rest need not
    wait for a call of their own. If the scheduler may take the thread away again, each flow with a
    filter of its own waits until its thread's stay has paid for that one, too."""
    if event.thread is None:
        return ()
    tid, cpu = event.thread.tid, event.app_cpu
    plan: list[Action] = []
    for flow in [each for each in memory.table.of_thread(tid) if each.key != event.key]:
        if flow.app_cpu == cpu or flow.nic != nic.name or flow.state is FlowState.MANUAL:
            continue
        goes_along = follow.home(flow, nic, memory) is not None  # with its queue, in one write
        if event.pinned is False and not goes_along:
            continue
        flow = flow._replace(app_cpu=cpu)
        memory.table.put(flow)
        if goes_along:
            plan += _place(flow, nic, memory, now_ns)
            continue
        dwell_ns = memory.in_force.dwell_ns(flow.rule_name)
        plan += _place_after(event.off_since_ns + dwell_ns, flow, nic, memory, now_ns)
    return tuple(plan)


def _anothers(old: Flow, event: SocketSeen, nic: NicView) -> bool:
    """The entry of this key belongs to another open socket: one in another namespace with the same
    addresses, or one bound to the same UDP port. A rule serves one; the first keeps it."""
    if old.nic != nic.name:
        return True
    return old.cookie != event.cookie and not event.key.remote_port


def _place(flow: Flow, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """The action that brings a flow of the table to where it belongs, if one is due."""
    table = memory.table
    memory.table.defer(flow.key, None)
    if flow.state is FlowState.MANUAL or flow.key.listens or flow.key in memory.table.leaving():
        return ()
    if table.is_closed(flow.key):
        return ()
    if flow.left is not None and flow.location is not None:
        return retire(flow, memory, flow.left)
    if flow.left is not None:
        state = FlowState.WANTED if nic.armed else FlowState.OBSERVED
        left = flow._replace(state=state, target_queue=None, target_cpu=None, fell_back=None)
        table.put(left._replace(why=flow.left))
        return ()
    if flow.location is None and nic.armed and (why := no_filter(nic, flow.key)) is not None:
        without_filter(flow, nic, memory, why)
        return ()
    own_queue = follow.home(flow, nic, memory)
    spot = Spot(own_queue, UNSAID, None) if own_queue else _spot(flow, nic, memory)
    queue = spot.queue
    current = next((q for q in nic.queues if q.index == flow.target_queue), None)
    there = current == own_queue if own_queue else current and queue and current.cpu == queue.cpu
    asked, goes = table.asked(flow.key), None if queue is None or there else queue.index
    if asked is not None and asked.kind is ActionKind.REWRITE and asked.new != goes:
        table.outdate(flow.key)  # its thread came back, or went on, before that was done
    if queue is None:
        if flow.location is None:
            state = FlowState.WANTED if nic.armed else FlowState.OBSERVED
            flow = flow._replace(state=state, target_queue=None)
        table.put(flow._replace(target_cpu=None, fell_back=spot.fell_back, why=spot.why))
        return ()
    cpu = flow.app_cpu if own_queue else queue.cpu  # an own queue is on that CPU, or will be
    if (flow.target_cpu, flow.fell_back) != (cpu, spot.fell_back):
        flow = flow._replace(target_cpu=cpu, fell_back=spot.fell_back)
        table.put(flow)
    if flow.location is not None and current is not None and there:
        return ()
    port = table.covering(flow.key)
    if own_queue and flow.location is None and port and port.target_queue == own_queue.index:
        why = Code.LED_BY_PORT(own_queue.index)
        table.put(flow._replace(state=FlowState.PORT, target_queue=own_queue.index, why=why))
        return ()
    if not nic.armed or nic.method is not SteeringMethod.FILTERS:
        if flow.location is None:
            table.put(flow._replace(state=FlowState.OBSERVED, target_queue=queue.index))
        return ()
    again_ns = table.noted(flow.key).dropped[1]
    if flow.location is None and now_ns < again_ns:
        if again_ns != NEVER_NS:
            memory.table.defer(flow.key, again_ns)
        table.put(flow._replace(target_queue=None, why=memory.why_dropped(flow.key)))
        return ()
    if flow.moved_ns and now_ns - flow.moved_ns < memory.in_force.hold_down_ns:
        memory.table.defer(flow.key, flow.moved_ns + memory.in_force.hold_down_ns)
        return ()
    if flow.location is None and (why := budget.no_room(nic, memory, flow.key)) is not None:
        memory.overflow += flow.state is not FlowState.OVERFLOW
        waits = flow._replace(state=FlowState.OVERFLOW, target_queue=None)
        table.put(waits)
        plan = budget.make_room(waits, nic, memory, now_ns)
        promised = budget.promised(waits, memory)
        said = Code.AWAITS_FILTER() if promised else budget.said(waits, nic, memory, why)
        table.put(waits._replace(why=said))
        return plan
    if (at_ns := memory.turn_ns(flow, now_ns)) > now_ns:
        memory.table.defer(flow.key, at_ns)
        table.put(flow._replace(why=Code.AWAITS_TURN()) if flow.location is None else flow)
        return ()
    if not memory.cpu.pays():
        memory.cpu.wait(flow.key)
        table.put(flow._replace(why=Code.AWAITS_CPU_TIME()) if flow.location is None else flow)
        return ()
    kind = ActionKind.INSERT if flow.location is None else ActionKind.REWRITE
    old = flow.rx_queue if flow.location is None else flow.target_queue
    why = _owns(flow, queue.index, memory) if own_queue else spot.why
    action = Action(
        kind, nic.name, flow.key, flow.location, old, queue.index, why, flow.rule_name,
        generation=table.generation(flow.key),
    )  # fmt: skip
    budget.ask(action, memory)
    return (action,)


def due(nics: dict[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """Moves whose dwell or hold-down is over, and queues that may now follow or go home."""
    plan: list[Action] = []
    for name, known in list(memory.nics.items()):
        if known.queues_due_ns is None or known.queues_due_ns > now_ns:
            continue
        known.queues_due_ns = None
        if name in nics:
            plan += own(nics[name], memory.online(nics[name]), memory, now_ns)
    for key in memory.table.take_due(now_ns):
        flow = memory.table.get(key)
        if flow is not None and flow.nic in nics and not budget.leaves_room(flow, memory):
            plan += _place_or_follow(flow, nics[flow.nic], memory, now_ns)
    return tuple(plan)


def paid(nics: dict[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """After a reading of the daemon's CPU time: the moves that waited for it and are worth most."""
    far = budget.CpuDistances(Topology(tuple(memory.cpus.values()), memory.nodes))

    def worth(key: FlowKey) -> float | None:
        flow = memory.table.get(key)
        return None if flow is None or flow.nic not in nics else _gain(flow, far, memory, now_ns)

    plan: list[Action] = []
    for key in memory.cpu.turn(worth):
        if (flow := memory.table.get(key)) is not None:
            plan.extend(_place_or_follow(flow, nics[flow.nic], memory, now_ns))
    return tuple(plan)


def _gain(flow: Flow, far: budget.CpuDistances, memory: Memory, now_ns: int) -> float:
    """What moving it is worth: its bytes per second, times how far away they are delivered, times
    how long its thread is expected to stay: as long as it has stayed. Of a flow whose queue
    follows its thread, of all that comes along."""
    thread = flow.thread
    known = memory.thread(thread)
    stay_ns = min(now_ns - known.since_ns, _STAY_NS) if known.cpu == flow.app_cpu else _STAY_NS
    follows = thread is not None and follow.home(flow, memory.nics[flow.nic].view, memory)
    flows = memory.table.of_thread(thread.tid) if thread is not None and follows else [flow]
    rates = (each.bytes / max(now_ns - (each.born_ns or 0), 1) for each in flows)
    distance = 1.0 if flow.rx_cpu is None else far.between(flow.rx_cpu, flow.app_cpu)
    return sum(rates) * distance * stay_ns


def retry(nics: dict[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """The flows that found a NIC full and gain most from a filter, as far as it has room again.
    First those that were not put off: one that cannot be moved would keep a filter from them."""
    plan: list[Action] = []
    in_vain = {(name, each) for name in nics for each in budget.full_rules(nics[name], memory)}
    every = (flow for name in nics for flow in memory.table.waiting(name))
    waiting = (flow for flow in every if (flow.nic, flow.rule_name) not in in_vain)
    full = [flow for flow in waiting if memory.table.due_ns(flow.key) is None]
    if not full:
        return ()
    held_in = {
        name: {who: len(keys) for who, keys in memory.table.filters_of(name).items()}
        for name in nics
    }

    def first(flow: Flow) -> tuple[int, int, float]:
        deferrals = memory.table.noted(flow.key).deferrals
        fewest = -held_by(tenants_of(flow.thread), held_in[flow.nic])
        return -deferrals, fewest, budget.worth(flow, memory)

    for flow in nlargest(_RETRIES, full, key=first):
        nic = nics[flow.nic]
        if budget.no_room(nic, memory, flow.key) is None:
            plan += _place(flow, nic, memory, now_ns)
    return tuple(plan)


def relieve(nics: dict[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """After a reading of the load: flows whose CPU is full are left to RSS, and flows that were are
    steered again, once their filter has gone."""
    turned: list[Flow] = []
    memory.full.unfinished = False
    for flow in list(memory.table):
        if flow.key.listens or flow.nic not in nics or flow.state is FlowState.MANUAL:
            continue
        rule = memory.in_force.by_name.get(flow.rule_name)
        spared = spares(flow.key, rule, flow.app_cpu, memory)
        was_spared = flow.left is not None and flow.left.code is Code.LEFT_FULL
        if flow.left == spared or (flow.left is not None and not was_spared):
            continue
        if was_spared and flow.location is not None:
            memory.full.unfinished = True
            continue
        if flow.location is not None:
            flow = flow._replace(state=FlowState.OBSERVED)
        turned.append(flow._replace(left=spared))
        memory.table.put(turned[-1])
    plan: list[Action] = []
    for name in sorted({flow.nic for flow in turned}):
        plan += own(nics[name], memory.online(nics[name]), memory, now_ns)
    placed = {action.key for action in plan}
    for flow in filter(None, (memory.table.get(each.key) for each in turned)):
        if flow.key not in placed:
            plan += _place(flow, nics[flow.nic], memory, now_ns)
    return tuple(plan)


def take_up(
    nic: NicView,
    memory: Memory,
    now_ns: int,
    *,
    manual: bool = False,
    only: Collection[FlowKey] | None = None,
) -> Plan:
    """Look at every flow of one NIC again, or `only` at these: it was armed, or its queues moved,
    or they should go elsewhere. With `manual`, also at those that are MANUAL."""
    plan: list[Action] = []
    every = memory.table if only is None else filter(None, map(memory.table.get, only))
    for flow in [flow for flow in every if flow.nic == nic.name]:
        if manual:
            memory.not_dropped(flow.key)
        if manual and flow.state is FlowState.MANUAL:
            flow = flow._replace(state=FlowState.WANTED)
            memory.table.put(flow)
        plan += _place(flow, nic, memory, now_ns)
    return tuple(plan)
