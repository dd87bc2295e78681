# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering by the indirection table, for a NIC without 5-tuple filters. Pure.

A flow's hash selects an entry; the entry is pointed to a queue on the CPU where most of the recent
bytes of the flows that share it are used. An entry without known flows keeps what it has. Moving
an entry moves every flow that hashes to it, so it takes a clear majority, and time between moves.
Nothing proves that such a move overtakes no packet: an entry stays while one of its flows keeps its
order (`strict` or `bounded`). Flows that are not to go to their own core have no say.

The function from flow to entry is given (`model.rss_hash.known_entry`): None for a flow whose
packets do not hash to one entry, and where the hash is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from atfnd.engine.placement.auto import placement_of
from atfnd.engine.table.flow_table import Hashed
from atfnd.engine.table.memory import Buckets, Memory
from atfnd.model import (
    Action,
    Flow,
    FlowKey,
    FlowState,
    Mode,
    NicView,
    Outcome,
    Placement,
    Plan,
    Rss,
)
from atfnd.model.reason import Code, Why
from atfnd.model.rss_hash import hash_known, type_of

__all__ = ["EntryOf", "forget", "hash_anew", "leave_alone", "look", "plan", "record", "wait"]
__all__ += ["wait_no_more"]

EntryOf = Callable[[FlowKey], int | None]

_BY_ENTRY = FlowState.RSS, FlowState.SHARED
_SEEN_LATE_NS = 1_000_000_000  # after a move, an observation may still be from before it


def wait(nic: NicView, key: FlowKey, memory: Memory) -> None:
    """Look at this flow's entry in the next plan."""
    _of(nic, memory)
    memory.table.plan(key, True)


def wait_no_more(nic: str, memory: Memory) -> None:
    """Look at no flow's entry in the next plan."""
    for key in [*memory.table.planned(nic)]:
        memory.table.plan(key, False)


def forget(nic: str, memory: Memory) -> None:
    """What is known of the entries of a NIC is void: its table is not ours any more."""
    memory.nics[nic].buckets = None
    _unknown(nic, memory)
    wait_no_more(nic, memory)


def hash_anew(nic: NicView, memory: Memory) -> None:
    """The hash has become known, or is not known any more."""
    _unknown(nic.name, memory)


def look(nic: NicView, memory: Memory) -> None:
    """Look at every flow of the NIC, let older bytes count less, and drop flows that ended."""
    _of(nic, memory)
    table = memory.table
    for flow in [flow for flow in table if flow.nic == nic.name]:
        hashed = _hashed(flow.key, memory)
        if _has_filter(flow) or placement_of(flow, memory) is not Placement.CORE:
            table.hash(flow.key, None)
            continue
        if hashed is not None:
            halved = _weight(flow, memory) // 2
            table.hash(flow.key, hashed._replace(bytes=flow.bytes, recently=halved))
        if table.due_ns(flow.key) is None:
            table.plan(flow.key, True)


def plan(nic: NicView, entry_of: EntryOf, memory: Memory, now_ns: int) -> Plan:
    """At most one action: the whole table, with the entries of the waiting flows pointed to where
    these are used. Call `record` with its outcome, or with none if there was no action."""
    known = memory.nics[nic.name].buckets
    if known is None or nic.rss is None or not nic.armed:
        return ()
    known = _of(nic, memory)
    table = list(nic.rss.table)
    entries = {_index(key, entry_of, memory) for key in memory.table.planned(nic.name)}
    whys = []
    for entry in sorted(each for each in entries if each is not None):
        flows = _flows(entry, nic, memory)
        queue = _wanted(entry, flows, nic, table, known, memory)
        if queue is None or any(_keeps_order(flow, memory) for flow in flows):
            continue
        due_ns = known.moved_ns.get(entry, 0) + memory.in_force.hold_down_ns
        if entry in known.moved_ns and due_ns > now_ns:
            memory.table.defer(flows[0].key, due_ns)
            continue
        whys.append(f"entry {entry} to queue {queue}, on CPU {_cpu(nic, queue)}")
        table[entry] = queue
    if not whys:
        return ()
    more = f" and {len(whys) - 3} more" if len(whys) > 3 else ""
    why = Code.ENTRIES(f"{'; '.join(whys[:3])}{more}")
    value = " ".join(map(str, table))
    return (Action.of_setting(nic.name, "rss", value, why),)


def record(
    was: Rss | None, nic: NicView, outcomes: Iterable[Outcome], memory: Memory, now_ns: int
) -> None:
    """Write the result into the waiting flows, by the table as it is now (`nic`); entries that
    differ from how it `was` have moved."""
    if memory.nics[nic.name].buckets is None:
        return
    known, now = _of(nic, memory), nic.rss
    if was is not None and now is not None and len(was.table) == len(now.table):
        for entry, (old, new) in enumerate(zip(was.table, now.table, strict=True)):
            if old != new:
                known.moved_ns[entry] = now_ns
                for key in memory.table.hashed(nic.name).get(entry, ()):
                    memory.table.plan(key, True)
    refused = next((outcome.left for outcome in outcomes if outcome.errno), None)
    waiting = [*memory.table.planned(nic.name)]
    for touched in dict.fromkeys(_entry(key, memory) for key in waiting):
        flows = _flows(touched, nic, memory)
        used = Counter(flow.app_cpu for flow in flows if not _misled(flow, nic, known, memory))
        for flow in flows:
            if flow.key in memory.table.planned(nic.name):
                _show(flow, nic, known, used, refused, memory)
    wait_no_more(nic.name, memory)


def leave_alone(nic: NicView, memory: Memory, why: Why) -> list[Flow]:
    """Another program wrote the table: leave its flows alone until the operator takes them back.
    Returns them."""
    forget(nic.name, memory)
    flows = [flow for flow in memory.table if flow.nic == nic.name and flow.state in _BY_ENTRY]
    gone = [f._replace(state=FlowState.MANUAL, target_queue=None, why=why) for f in flows]
    for flow in gone:
        memory.table.put(flow)
    return gone


def _of(nic: NicView, memory: Memory) -> Buckets:
    """What is known of this NIC's table; nothing, if the table has a new key or size."""
    shape = (nic.rss.key, len(nic.rss.table)) if nic.rss else (b"", 0)
    known = memory.nics[nic.name].buckets
    if known is None or known.shape != shape:
        _unknown(nic.name, memory)
        known = memory.nics[nic.name].buckets = Buckets(shape)
    return known


def _unknown(nic: str, memory: Memory) -> None:
    """Which flow hashes to which entry is not known any more."""
    for key in [key for keys in memory.table.hashed(nic).values() for key in keys]:
        memory.table.hash(key, None)


def _hashed(key: FlowKey, memory: Memory) -> Hashed | None:
    record = memory.table.record(key)
    return None if record is None else record.pending.hashed


def _entry(key: FlowKey, memory: Memory) -> int | None:
    """The flow's entry, where it is known and there is one."""
    hashed = _hashed(key, memory)
    return None if hashed is None else hashed.entry


def _has_filter(flow: Flow) -> bool:
    """A filter leads this flow, whatever its entry says: the NIC took filters before."""
    return flow.location is not None


def _index(key: FlowKey, entry_of: EntryOf, memory: Memory) -> int | None:
    """The flow's entry; remembers it."""
    if (hashed := _hashed(key, memory)) is None:
        hashed = Hashed(entry_of(key))
        memory.table.hash(key, hashed)
    return hashed.entry


def _flows(entry: int | None, nic: NicView, memory: Memory) -> list[Flow]:
    """The flows of the table that hash to this entry, or (None) to no one entry."""
    keys = memory.table.hashed(nic.name).get(entry, ())
    found = [flow for key in keys if (flow := memory.table.get(key))]
    return sorted((f for f in found if f.state is not FlowState.MANUAL), key=lambda f: f.key)


def _misled(flow: Flow, nic: NicView, known: Buckets, memory: Memory) -> bool:
    """It arrives on another queue than its entry names: the NIC hashes it by other fields than
    addresses and ports (many hash UDP by addresses alone). The observation may be from before a
    move."""
    entry = _entry(flow.key, memory)
    if entry is None or nic.rss is None or flow.rx_queue is None:
        return False
    fresh = flow.used_ns > known.moved_ns.get(entry, -_SEEN_LATE_NS) + _SEEN_LATE_NS
    return fresh and nic.rss.table[entry] != flow.rx_queue


def _weight(flow: Flow, memory: Memory) -> int:
    """Its bytes, with those from before the last looks halved at each look; all bytes of a new flow
    count."""
    hashed = _hashed(flow.key, memory) or Hashed(None)
    return hashed.recently + max(0, flow.bytes - hashed.bytes)


def _wanted(
    entry: int, flows: list[Flow], nic: NicView, table: list[int], known: Buckets, memory: Memory
) -> int | None:
    """The queue this entry should point to; None: it is right, or nothing better is known."""
    weights: Counter[int] = Counter()
    for flow in flows:
        if not _misled(flow, nic, known, memory):
            weights[flow.app_cpu] += _weight(flow, memory) + 1  # an idle one is evidence too
    served = {queue.cpu for queue in nic.queues}
    there = sorted(cpu for cpu in weights if cpu in served)
    if not there:
        return None
    best = max(there, key=lambda cpu: weights[cpu])  # the first of equals
    current = _cpu(nic, table[entry])
    held = 0 if current is None else weights[current]
    if best == current or 4 * weights[best] <= 5 * held:  # or two equal CPUs would take turns
        return None
    load = Counter(table)
    queues = [queue.index for queue in nic.queues if queue.cpu == best]
    return min(queues, key=lambda index: (load[index], index))


def _keeps_order(flow: Flow, memory: Memory) -> bool:
    return memory.in_force.order(flow.rule_name) is not Mode.IMMEDIATE


def _cpu(nic: NicView, queue: int) -> int | None:
    return next((each.cpu for each in nic.queues if each.index == queue), None)


def _show(
    flow: Flow, nic: NicView, known: Buckets, used: Counter[int], refused: str | None,
    memory: Memory,
) -> None:  # fmt: skip
    """Write into the Flow-to-Core table what the flow's entry does for it. `used`: on which CPUs
    the flows of its entry are."""
    entry, table = _entry(flow.key, memory), nic.rss.table if nic.rss else ()
    queue = None if entry is None else table[entry]
    cpu = None if queue is None else _cpu(nic, queue)
    state, to_queue, to_cpu, moved_ns = FlowState.WANTED, None, flow.app_cpu, flow.moved_ns
    if entry is None:
        why = Code.ENTRY_NONE()
        said = hash_known(nic, type_of(flow.key)) if flow.key.remote_port else None
        if said is not None and not said.known:
            why = Code.ENTRY_UNKNOWN(said.why)
    elif _misled(flow, nic, known, memory):
        why = Code.ENTRY_MISLED(flow.rx_queue, queue, entry)
    elif cpu == flow.app_cpu:
        state, to_queue, moved_ns = FlowState.RSS, queue, known.moved_ns.get(entry, moved_ns)
        why = Code.ENTRY_RIGHT(entry, queue)
    elif not any(each.cpu == flow.app_cpu for each in nic.queues):
        why = Code.NO_QUEUE_THERE(flow.app_cpu)
    elif _keeps_order(flow, memory):
        why = Code.ENTRY_ORDER(memory.in_force.order(flow.rule_name).value)
    elif any(_keeps_order(each, memory) for each in _flows(entry, nic, memory)):
        why = Code.ENTRY_OTHERS_ORDER()
    elif cpu is not None and used[cpu]:
        state = FlowState.SHARED
        others = "a flow" if used[cpu] == 1 else f"{used[cpu]} flows"
        why = Code.ENTRY_SHARED(entry, others, cpu)
    else:
        why = Code.ENTRY_HELD(entry) if refused is None else Code.KERNEL(refused)
    shown = flow._replace(
        state=state, target_queue=to_queue, target_cpu=to_cpu, moved_ns=moved_ns, why=why
    )
    if shown != flow:
        memory.table.put(shown)
