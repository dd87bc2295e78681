# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that follow their owners: a migration is one write, however many flows it moves. Pure.

A thread (or process, or cgroup: the policy's `owner`) whose flows may not be moved at once owns a
queue (`decide.owner`): its flows are placed there, and when it migrates, the queue goes with it and
no flow changes its queue. Who owns none is a guest; its flows are moved one by one.

Only flows placed on their own core have an owner: all others are moved one by one, and seldom, as
one stays where it is while its thread's new CPU is as near. No queue follows to a dedicated CPU.

A queue that nobody owns any more goes home (`Memory.lent`), by a move like any other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from atfnd.decide.auto import placement_of
from atfnd.decide.memory import Memory
from atfnd.decide.owner import Lent, Owner, OwnerId, Terms, assign, most_on_a_cpu
from atfnd.decide.shares import tenants_of
from atfnd.decide.table import FlowTable
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowState,
    Means,
    Migrant,
    Mode,
    NicView,
    Placement,
    Plan,
    Queue,
)

__all__ = [
    "TERMS",
    "along",
    "followed",
    "free",
    "home",
    "is_guest",
    "look",
    "may_follow",
    "owner_of",
]

TERMS = Terms()
_AGAIN_NS = 1_000_000_000  # a look goes through the whole table


def owner_of(flow: Flow, memory: Memory) -> OwnerId | None:
    """Who takes this flow along; None: nobody, it is moved by itself."""
    thread, settling = flow.thread, memory.settling
    if flow.left is not None:
        return None
    if thread is None or settling.order(flow.policy) is Mode.IMMEDIATE or flow.key in memory.left:
        return None
    if flow.app_cpu in settling.dedicated:
        return None
    if memory.trials.states and placement_of(flow, memory) is not Placement.CORE:
        return None
    match settling.owner_by_policy.get(flow.policy, Migrant.THREAD):
        case Migrant.THREAD:
            return "thread", thread.tid
        case Migrant.PROCESS:
            return "process", thread.pid
        case Migrant.CGROUP:
            return None if thread.cgroup is None else ("cgroup", thread.cgroup)
        case None:
            return None


def home(flow: Flow, nic: NicView, memory: Memory) -> Queue | None:
    """The queue its owner owns."""
    owner, owned = owner_of(flow, memory), memory.owned.get(nic.name)
    if owner is None or not owned:
        return None
    index = next((queue for queue, each in owned.items() if each.owner == owner), None)
    return next((queue for queue in nic.queues if queue.index == index), None)


def is_guest(flow: Flow, nic: NicView, memory: Memory) -> bool:
    """A rule leads it to a queue that another one owns."""
    owner, owned = owner_of(flow, memory), memory.owned.get(nic.name, {})
    ruled = flow if flow.location is not None else memory.table.covering(flow.key)
    if owner is None or ruled is None or ruled.target_queue is None:
        return False
    held = owned.get(ruled.target_queue)
    return held is not None and held.owner != owner


def free(nic: NicView, memory: Memory) -> bool:
    """A queue may be had for the asking."""
    owned = memory.owned.get(nic.name, {})
    return any(queue not in owned for queue in _queues(nic, memory))


def may_follow(flow: Flow, queue: Queue, nic: NicView, memory: Memory) -> bool:
    """There is room for its owner's queue on the CPU that this flow is used on. If not, the owner
    has lost the queue, and is a guest there."""
    cpus = memory.online(nic) - memory.settling.dedicated
    most = most_on_a_cpu(len(nic.queues), len(cpus | {flow.app_cpu}))
    there = sum(each.cpu == flow.app_cpu for each in nic.queues)
    if queue.cpu == flow.app_cpu or there < most:
        return True
    owned = memory.owned[nic.name]
    memory.owned[nic.name] = {q: each for q, each in owned.items() if q != queue.index}
    return False


def along(flow: Flow, queue: Queue, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """The queue follows the owner of this flow, which is used on another CPU; or later, when it has
    just moved."""
    if queue.cpu == flow.app_cpu or queue.index not in _queues(nic, memory) or not nic.armed:
        return ()
    lent = memory.lent_of(nic)
    if lent.rests(queue.index, TERMS, now_ns):
        memory.defer(flow.key, lent.moved_ns[queue.index] + TERMS.rest_ns)
        return ()
    if (at_ns := memory.turn_ns(flow, now_ns)) > now_ns:
        memory.defer(flow.key, at_ns)
        return ()
    lent.moved_ns[queue.index] = now_ns
    return (_follow(nic, queue.index, flow.app_cpu, f"its owner runs on CPU {flow.app_cpu}"),)


def followed(nic: str, queue: int, cpu: int, memory: Memory) -> None:
    """A queue is delivered on this CPU from now on, and the flows of its owner with it. If it has
    none, it went home: who was led there and is in use, or waits for a queue there, is placed
    again."""
    held = memory.owned.get(nic, {}).get(queue)
    if held is None:
        for flow in memory.table:
            if flow.nic == nic and not flow.key.wide and memory.in_use(flow, TERMS.away_ns):
                led = flow.location is not None and flow.target_queue == queue
                if led or (flow.location is None and flow.app_cpu == cpu):
                    memory.defer(flow.key, 0)
        return
    kind, number = held.owner
    flows = memory.table.of_thread(number) if kind == "thread" else list(memory.table)
    for flow in flows:
        ruled = flow.location is not None or flow.state is FlowState.PORT
        here = flow.nic == nic and flow.target_queue == queue and ruled
        if here and owner_of(flow, memory) == held.owner:
            stale = flow.rx_queue == queue and flow.rx_cpu != cpu  # seen before it followed
            rx_cpu = None if stale else flow.rx_cpu
            memory.table.put(replace(flow, target_cpu=cpu, rx_cpu=rx_cpu))


def look(
    nic: NicView, online: frozenset[int], memory: Memory, now_ns: int
) -> tuple[set[OwnerId], Plan]:
    """Whose the queues are, by what was used of late. Returns who owns one now and did not, or the
    other way round, whose flows are to be placed again; and the queues that follow or go home."""
    memory.queues_due_ns.pop(nic.name, None)
    if not nic.armed:
        memory.owned.pop(nic.name, None)
        memory.lent.pop(nic.name, None)
        return set(), ()
    queues, dedicated = _queues(nic, memory), memory.settling.dedicated
    usual = online - dedicated
    if not queues or not usual:
        memory.owned.pop(nic.name, None)
        return set(), ()
    before = memory.owned.get(nic.name, {})
    lent = memory.lent_of(nic)
    owners = _owners(nic, memory, now_ns) if nic.means is Means.RULES else []
    for queue in _of_unknown(nic, memory):
        if queue in lent.free_ns:
            lent.free_ns[queue] = now_ns
    fixed = Counter(q.cpu for q in nic.queues if q.cpu is not None and q.index not in queues)
    after, follows = assign(
        before, owners, queues, usual, TERMS, now_ns, lent,
        fixed=fixed, dedicated=online & dedicated, shares=memory.settling.queues,
    )  # fmt: skip
    memory.owned[nic.name] = after
    lent.looked_ns = now_ns
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
    """When the next look is due: queues rest before they follow, or wait to go home."""
    owned = memory.owned[nic.name]
    due_ns = [
        lent.moved_ns[queue] + TERMS.rest_ns for queue in owned if lent.rests(queue, TERMS, now_ns)
    ]
    due_ns += [
        free_ns + TERMS.away_ns
        for queue, free_ns in lent.free_ns.items()
        if (home := lent.homes.get(queue)) in online and queues[queue] != home
    ]
    if due_ns:
        memory.queues_due_ns[nic.name] = max(min(due_ns), now_ns + _AGAIN_NS)


def _of_unknown(nic: NicView, memory: Memory) -> set[int]:
    """The queues of flows in use that were taken over from an earlier run: whose they are is not
    known before they are used elsewhere."""
    return {
        flow.target_queue
        for flow in memory.table
        if flow.nic == nic.name and not flow.policy and not flow.key.wide
        if flow.location is not None and memory.in_use(flow, TERMS.away_ns)
        if flow.target_queue is not None
    }


def _queues(nic: NicView, memory: Memory) -> dict[int, int | None]:
    """The CPU of each queue that we may move. One on a dedicated CPU stays there, if that is its
    home."""
    if not nic.caps.queue_cpu:
        return {}
    mine = {q.index: q.cpu for q in nic.queues if f"queue-cpu:{q.index}" not in nic.manual}
    dedicated = memory.settling.dedicated
    if not dedicated:
        return mine
    homes = memory.lent_of(nic).homes
    return {q: cpu for q, cpu in mine.items() if cpu not in dedicated or homes.get(q, cpu) != cpu}


def _owners(nic: NicView, memory: Memory, now_ns: int) -> list[Owner]:
    """Who uses flows of this NIC: where its busiest flow is used, and how much it carried lately,
    what came before the last look counting half."""
    flows: defaultdict[OwnerId, list[Flow]] = defaultdict(list)
    for flow in memory.table:
        owner = owner_of(flow, memory) if flow.nic == nic.name else None
        if owner is not None and flow.state is not FlowState.MANUAL:
            flows[owner].append(flow)
    before = memory.load.get(nic.name, {})
    memory.load[nic.name] = {}
    for owner, used in flows.items():
        total = sum(flow.bytes for flow in used)
        then, recently = before.get(owner, (0, 0))
        memory.load[nic.name][owner] = total, recently // 2 + max(0, total - then)
    loads = memory.load[nic.name]
    # What was used since the last audit is not known: who was in use then is taken to be still.
    unknown_ns = now_ns - memory.audited_ns
    found = (_owner(id, used, loads[id][1], memory.table) for id, used in flows.items())
    return [each._replace(used_ns=min(each.used_ns + unknown_ns, now_ns)) for each in found]


def _owner(owner: OwnerId, flows: Sequence[Flow], load: int, table: FlowTable) -> Owner:
    by_cpu = defaultdict[int, tuple[int, int]](lambda: (0, 0))
    rules: Counter[int] = Counter()
    for flow in flows:
        ruled = flow if flow.location is not None else table.covering(flow.key)
        if ruled is not None and ruled.target_queue is not None:
            rules[ruled.target_queue] += 1
        used_ns, carried = by_cpu[flow.app_cpu]
        by_cpu[flow.app_cpu] = max(used_ns, flow.used_ns), carried + flow.bytes
    latest_ns = max(used_ns for used_ns, _ in by_cpu.values())
    busiest = max(by_cpu, key=lambda cpu: (by_cpu[cpu][1], -cpu))
    last = max(by_cpu, key=lambda cpu: (by_cpu[cpu][0], -cpu))
    cpu = last if owner[0] == "thread" else busiest  # a thread is on one CPU: the last is true
    at = min(rules, key=lambda queue: (-rules[queue], queue), default=None)
    return Owner(owner, cpu, load, latest_ns, at, tenants_of(flows[0].thread))


def _follow(nic: NicView, queue: int, cpu: int, why: str) -> Action:
    old = next((each.cpu for each in nic.queues if each.index == queue), None)
    return Action(ActionKind.QUEUE_CPU, nic.name, None, None, old, cpu, why, "", queue)
