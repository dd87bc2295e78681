# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that follow their owners: a migration is one write, however many flows it moves. Pure.

A thread (or process, or cgroup: the policy's `owner`) whose flows may not be moved at once owns a
queue (`engine.ownership.owner`). Its flows are placed there, and when it migrates, the queue goes
with it and no flow changes its queue. A thread without a queue is a guest; its flows are moved one
by one.

Only flows placed on their own core have an owner. All others are moved one by one, and seldom: one
stays where it is while its thread's new CPU is as near. No queue follows to a dedicated CPU, or to
one that `serve_on` of the interface leaves out.

A queue that has no owner any more goes home (`NicMemory.lent`), by a move like any other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from atfnd.engine.ownership.owner import Lent, Owner, OwnerId, OwnerTerms, assign, most_on_a_cpu
from atfnd.engine.ownership.shares import tenants_of
from atfnd.engine.placement.auto import placement_of
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Distance,
    Flow,
    FlowState,
    Migrant,
    Mode,
    NicView,
    Placement,
    Plan,
    Queue,
    SocketSeen,
    SteeringMethod,
)
from atfnd.model.reason import Code, Why

__all__ = [
    "TERMS",
    "along",
    "arrived",
    "followed",
    "free",
    "home",
    "left",
    "look",
    "may_follow",
    "moved_with",
    "owner_of",
    "stayed",
    "unhindered",
]

TERMS = OwnerTerms()
_AGAIN_NS = 1_000_000_000  # a look reads the whole table


def owner_of(flow: Flow, memory: Memory) -> OwnerId | None:
    """The owner that takes this flow along; None: it has none, and is moved by itself."""
    if flow.left is not None or flow.home is not Distance.CPU:
        return None  # it has no CPU that a queue could follow to
    return _unit(flow, memory)


def _unit(flow: Flow, memory: Memory) -> OwnerId | None:
    """What would own a queue for this flow if its thread stayed on a CPU."""
    thread, in_force, table = flow.thread, memory.in_force, memory.table
    if flow.key in table.leaving() or table.is_closed(flow.key):
        return None
    if thread is None or in_force.order(flow.rule_name) is Mode.IMMEDIATE:
        return None
    if flow.app_cpu in in_force.dedicated:
        return None
    if not memory.nics[flow.nic].view.serve_on.allows(flow.app_cpu):
        return None
    if memory.nics[flow.nic].trials.states and placement_of(flow, memory) is not Placement.CORE:
        return None
    match in_force.owner(flow.rule_name):
        case Migrant.THREAD:
            return "thread", thread.tid
        case Migrant.PROCESS:
            return "process", thread.pid
        case Migrant.CGROUP:
            return None if thread.cgroup is None else ("cgroup", thread.cgroup)
        case None:
            return None


def home(flow: Flow, nic: NicView, memory: Memory) -> Queue | None:
    """The queue that its owner owns."""
    owned = memory.nics[nic.name].owned
    owner = owner_of(flow, memory) if owned else None
    if owner is None:
        return None
    for index, each in owned.items():
        if each.owner == owner:
            return next((queue for queue in nic.queues if queue.index == index), None)
    return None


def free(nic: NicView, memory: Memory) -> bool:
    """Some queue has no owner, and may have one."""
    if memory.lent_of(nic).crowded:
        return False
    owned = memory.nics[nic.name].owned
    return any(queue not in owned for queue in _queues(nic, memory))


def may_follow(flow: Flow, queue: Queue, nic: NicView, memory: Memory) -> bool:
    """The CPU that this flow is used on has room for its owner's queue. If it has not, the owner
    loses the queue, and is a guest there."""
    cpus = nic.serve_on.among(memory.online(nic)) - memory.in_force.dedicated
    most = most_on_a_cpu(len(nic.queues), len(cpus | {flow.app_cpu}))
    known = memory.nics[nic.name]
    sent = known.lent.sent
    there = {q.index for q in nic.queues if sent.get(q.index, q.cpu) == flow.app_cpu}
    if queue.index in there or len(there) < most:
        return True
    known.owned = {q: each for q, each in known.owned.items() if q != queue.index}
    return False


def along(flow: Flow, queue: Queue, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """The queue follows the owner of this flow, which is used on another CPU; later, if the queue
    has just moved."""
    if queue.cpu == flow.app_cpu or queue.index not in _queues(nic, memory) or not nic.armed:
        return ()
    lent = memory.lent_of(nic)
    if lent.rests(queue.index, TERMS, now_ns):
        memory.table.defer(flow.key, lent.rests_until_ns(queue.index, TERMS))
        return ()
    if (at_ns := memory.turn_ns(flow, now_ns)) > now_ns:
        memory.table.defer(flow.key, at_ns)
        return ()
    if not memory.cpu.pays():
        memory.cpu.wait(flow.key)
        return ()
    lent.moved_ns[queue.index], lent.sent[queue.index] = now_ns, flow.app_cpu
    return (_follow(nic, queue.index, flow.app_cpu, Code.FOLLOWS(flow.app_cpu)),)


def moved_with(event: SocketSeen, memory: Memory) -> None:
    """A thread is on one CPU, and so are all its flows. Of one that is not pinned, often only one
    is reported. Else its queue would follow each of them in turn."""
    if event.thread is None or event.pinned is not False:
        return
    for flow in memory.table.of_thread(event.thread.tid):
        if flow.app_cpu != event.app_cpu and flow.key != event.key and not flow.key.listens:
            memory.table.put(flow._replace(app_cpu=event.app_cpu))


def left(flow: Flow, memory: Memory) -> bool:
    """The thread of this flow owns a queue, and does not stay on a CPU any more."""
    owned, thread = memory.nics[flow.nic].owned, flow.thread
    if not owned or thread is None or flow.home is Distance.CPU:
        return False
    return any(each.owner == ("thread", thread.tid) for each in owned.values())


def stayed(action: Action, memory: Memory, now_ns: int, *, anew: bool) -> None:
    """A queue is not on its new CPU: its move was put off or refused. `anew`: for another reason
    than the last time."""
    lent = memory.nics[action.nic].lent
    if action.queue is not None:
        if anew:
            lent.put_off.pop(action.queue, None)
        lent.stayed(action.queue, TERMS, now_ns)


def unhindered(nic: str, memory: Memory) -> None:
    """RFS of a queue was switched off: the queues of threads may follow now."""
    memory.nics[nic].lent.put_off.clear()
    owners = [each.owner for each in memory.nics[nic].owned.values()]
    for flow in (
        flow for kind, tid in owners if kind == "thread" for flow in memory.table.of_thread(tid)
    ):
        if flow.nic == nic and not flow.key.listens and memory.in_use(flow, TERMS.away_ns):
            memory.table.defer(flow.key, 0)


def arrived(action: Action, memory: Memory) -> None:
    """What was asked for a queue has ended: it is on its new CPU, or stays where it is."""
    sent = memory.nics[action.nic].lent.sent
    if action.queue is not None and sent.get(action.queue) == action.new:
        del sent[action.queue]  # else it has been sent elsewhere since


def followed(nic: str, queue: int, cpu: int, memory: Memory) -> None:
    """A queue is now delivered on this CPU, and the flows of its owner with it. If the queue has no
    owner, it went home: its guests are placed again if they are in use. So are flows that wait for
    a queue there, and flows whose moves were put off: what stood in their way may be gone."""
    memory.nics[nic].lent.put_off.pop(queue, None)
    for key in [key for key, notes in memory.table.notes().items() if notes.deferrals]:
        flow = memory.table.get(key)
        if flow is not None and flow.nic == nic:
            memory.table.defer(key, 0)
    held = memory.nics[nic].owned.get(queue)
    table = memory.table
    for flow in (*table.led_to(nic, queue), *table.aimless(nic)):
        if not flow.key.listens and memory.in_use(flow, TERMS.away_ns):
            led = held is None and flow.location is not None and flow.target_queue == queue
            aims = flow.target_cpu is not None and (held is not None or flow.location is not None)
            if led or (flow.app_cpu == cpu and not aims):
                memory.table.defer(flow.key, 0)
    if held is None:
        return
    kind, number = held.owner
    led_here = (each for each in table.led(nic) if each.target_queue == queue)
    its = [*table.led_to(nic, queue), *led_here]
    if kind == "thread":
        its = [each for each in its if each.thread is not None and each.thread.tid == number]
    for flow in its:
        if owner_of(flow, memory) == held.owner:
            stale = flow.rx_queue == queue and flow.rx_cpu != cpu  # seen before it followed
            rx_cpu = None if stale else flow.rx_cpu
            memory.table.put(flow._replace(target_cpu=cpu, rx_cpu=rx_cpu))


def look(
    nic: NicView, online: frozenset[int], memory: Memory, now_ns: int
) -> tuple[set[OwnerId], Plan]:
    """Decide which owner has which queue, by recent use. Returns the owners that have just gained
    or lost a queue, whose flows must be placed again, and the queues that follow or go home."""
    known = memory.nics[nic.name]
    known.queues_due_ns = None
    if not nic.armed:
        known.owned, known.lent = {}, Lent()
        return set(), ()
    queues, dedicated = _queues(nic, memory), memory.in_force.dedicated
    usual = nic.serve_on.among(online) - dedicated
    if not queues or not usual:
        known.owned = {}
        return set(), ()
    before = known.owned
    lent = memory.lent_of(nic)
    queues |= {queue: cpu for queue, cpu in lent.sent.items() if queue in queues}
    owners = _owners(nic, memory, now_ns) if nic.method is SteeringMethod.FILTERS else []
    for queue in _of_unknown(nic, memory):
        if queue in lent.free_ns:
            lent.free_ns[queue] = now_ns
    fixed = Counter(q.cpu for q in nic.queues if q.cpu is not None and q.index not in queues)
    after, follows = assign(
        before, owners, queues, usual, TERMS, now_ns, lent,
        fixed=fixed, dedicated=nic.serve_on.among(online & dedicated),
        left_out=online - nic.serve_on.among(online), shares=memory.in_force.queues,
    )  # fmt: skip
    known.owned = after
    lent.looked_ns = now_ns
    lent.sent.update((each.queue, each.cpu) for each in follows)
    _again(nic, queues, online, lent, memory, now_ns)
    had, have = ({each.owner for each in owned.values()} for owned in (before, after))
    return had ^ have, tuple(_follow(nic, each.queue, each.cpu, each.why) for each in follows)


def _again(
    nic: NicView,
    queues: Mapping[int, int | None],
    online: frozenset[int],
    lent: Lent,
    memory: Memory,
    now_ns: int,
) -> None:
    """When the next look is due: a queue rests before it follows, or waits to go home."""
    known = memory.nics[nic.name]
    resting = (queue for queue in known.owned if lent.rests(queue, TERMS, now_ns))
    due_ns = [lent.rests_until_ns(queue, TERMS) for queue in resting]
    due_ns += [
        free_ns + TERMS.away_ns
        for queue, free_ns in lent.free_ns.items()
        if (home := lent.homes.get(queue)) in online and queues[queue] != home
    ]
    if due_ns:
        known.queues_due_ns = max(min(due_ns), now_ns + _AGAIN_NS)


def _of_unknown(nic: NicView, memory: Memory) -> set[int]:
    """The queues of flows in use that were taken over from an earlier run: their owner is not known
    until they are used on another CPU."""
    return {
        flow.target_queue
        for flow in memory.table.adopted(nic.name)
        if not flow.key.listens and memory.in_use(flow, TERMS.away_ns)
        if flow.target_queue is not None
    }


def _queues(nic: NicView, memory: Memory) -> dict[int, int | None]:
    """The CPU of each queue that we may move. A queue whose home is a dedicated CPU stays there."""
    if not nic.caps.queue_cpu:
        return {}
    mine = {q.index: q.cpu for q in nic.queues if f"queue-cpu:{q.index}" not in nic.manual}
    dedicated = memory.in_force.dedicated
    if not dedicated:
        return mine
    homes = memory.lent_of(nic).homes
    return {q: cpu for q, cpu in mine.items() if cpu not in dedicated or homes.get(q, cpu) != cpu}


def _owners(nic: NicView, memory: Memory, now_ns: int) -> list[Owner]:
    """The owners that use flows of this NIC, and those that would be if their threads stayed on a
    CPU: the CPU of their busiest flow, and how much they carried lately, with the time before the
    last look counting half."""
    flows: defaultdict[OwnerId, list[Flow]] = defaultdict(list)
    settled, users = set[OwnerId](), defaultdict[int, set[OwnerId]](set)
    for flow in memory.table:
        if flow.nic != nic.name or flow.state is FlowState.MANUAL:
            continue
        served = flow if flow.listener is None else flow._replace(thread=flow.listener)
        owner, queue = _unit(served, memory), flow.target_queue
        if flow.location is None:
            queue = flow.rx_queue if memory.in_use(flow, TERMS.away_ns) else None
        if owner is not None and queue is not None:
            users[queue].add(owner)
        if owner is None or flow.thread is None:
            continue
        flows[owner].append(flow)
        if owner_of(flow, memory) is not None:
            settled.add(owner)
    before, loads = memory.nics[nic.name].load, dict[OwnerId, tuple[int, int]]()
    for owner, used in flows.items():
        total = sum(flow.bytes for flow in used)
        then, recently = before.get(owner, (0, 0))
        loads[owner] = total, recently // 2 + max(0, total - then)
    memory.nics[nic.name].load = loads
    # Use since the last audit is not known: owners that were in use then count as still in use.
    unknown_ns = now_ns - memory.audited_ns
    found = []
    for owner, used in flows.items():
        cpu, used_ns, at = _used_at(owner, used, memory.table)
        used_ns, tenants = min(used_ns + unknown_ns, now_ns), tenants_of(used[0].thread)
        stays, avoids = owner in settled, frozenset[int]()
        pinned = any(flow.pinned is not False for flow in used)
        if not pinned:
            avoids = frozenset(queue for queue, some in users.items() if some - {owner})
        load = loads[owner][1]
        found.append(Owner(owner, cpu, load, used_ns, at, tenants, stays, pinned, avoids))
    return found


def _used_at(
    owner: OwnerId, flows: Sequence[Flow], table: FlowTable
) -> tuple[int, int, int | None]:
    """The CPU that an owner runs on, when it last used one of these flows, and the queue that most
    of them are led to."""
    if len(flows) == 1:
        [flow] = flows
        filtered = flow if flow.location is not None else table.covering(flow.key)
        return flow.app_cpu, flow.used_ns, None if filtered is None else filtered.target_queue
    by_cpu = defaultdict[int, tuple[int, int]](lambda: (0, 0))
    filters: Counter[int] = Counter()
    for flow in flows:
        filtered = flow if flow.location is not None else table.covering(flow.key)
        if filtered is not None and filtered.target_queue is not None:
            filters[filtered.target_queue] += 1
        used_ns, carried = by_cpu[flow.app_cpu]
        by_cpu[flow.app_cpu] = max(used_ns, flow.used_ns), carried + flow.bytes
    latest_ns = max(used_ns for used_ns, _ in by_cpu.values())
    busiest = max(by_cpu, key=lambda cpu: (by_cpu[cpu][1], -cpu))
    last = max(by_cpu, key=lambda cpu: (by_cpu[cpu][0], -cpu))
    cpu = last if owner[0] == "thread" else busiest  # a thread is on one CPU: its last one is right
    at = min(filters, key=lambda queue: (-filters[queue], queue), default=None)
    return cpu, latest_ns, at


def _follow(nic: NicView, queue: int, cpu: int, why: Why) -> Action:
    old = next((each.cpu for each in nic.queues if each.index == queue), None)
    return Action(ActionKind.QUEUE_CPU, nic.name, None, None, old, cpu, why, "", queue)
