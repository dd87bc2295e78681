# SPDX-License-Identifier: GPL-2.0-or-later
"""The filters of a NIC, spent where they pay. Pure.

What a filter is worth is its flow's bytes per second of late, times how far from its application's
core the flow would be delivered without it. Where no filter is left for a flow, it waits; at every
look the worthiest that wait take the filters of the least worthy, if they are worth clearly more.
Before that, users and control groups get equal shares (`decide.shares`): a flow of one that has few
filters takes that of one that has more, at once.
That a rule goes is a move of its flow, back to RSS, as its policy's `order` allows; the slot is
promised to the flow it was cleared for. The Flow-to-Core table keeps both.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from heapq import nlargest, nsmallest
from itertools import islice

from atfnd.decide.memory import Memory, Weight
from atfnd.decide.shares import Tenant, fair, held_by, may_take, tenants_of
from atfnd.decide.wide import covers
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    FlowState,
    Means,
    NicView,
    Outcome,
    Plan,
    Topology,
)

__all__ = [
    "RssOf",
    "ask",
    "ended",
    "full_share",
    "make_room",
    "no_room",
    "put_off",
    "said",
    "settle",
    "share",
    "swaps",
    "waits",
    "weigh",
    "worth",
]

_SWAPS = 16  # a look
_RICHEST, _LOOKED_AT = 4, 64  # tenants, and filters of one, to choose from
_CLEARLY = 2.0  # times the worth of who has the filter
_LEAST_BYTES_PER_S = 10_000  # is worth the two moves of a swap
_HELD_NS = 5_000_000_000  # a filter, or to have lost one
_LATER_NS, _LATEST_NS = 10_000_000_000, 1_280_000_000_000  # a wide rule that was put off
_MEASURED_NS = 1_000_000_000  # at least
_PREDICTED = 512  # hashes a look
_SAME_NODE, _OTHER_NODE = 10, 20  # ACPI SLIT

RssOf = Callable[[FlowKey], int | None]  # the queue RSS gives a flow; None: not known


def share(nic: NicView) -> int | None:
    """How many filters of this NIC may be ours: what the policy allows, less what others took above
    the reserve. None: nothing says."""
    bounds = [] if nic.budget is None else [nic.budget]
    if nic.caps.rule_slots is not None and nic.foreign is not None:
        bounds.append(max(0, nic.caps.rule_slots - nic.foreign))
    return min(bounds, default=None)


def no_room(nic: NicView, memory: Memory, key: FlowKey) -> str | None:
    """Why one more rule of ours, for this flow, would be too many; None: it would not. Rules that
    are about to be inserted count, and slots that were cleared for another one."""
    bound, spending = share(nic), memory.spending_of(nic.name)
    if bound is None:
        return None
    spoken_for = spending.inserting.keys() | spending.promised
    ours = memory.table.rules_in(nic.name) + len(spoken_for) - (key in spoken_for)
    if ours < bound:
        return full_share(nic, memory, key)
    if bound != nic.budget:
        return f"the NIC's filter table is full, {nic.foreign} are others': delivered by RSS"
    return f"our {bound} rules of this NIC are in use: delivered by RSS"


def full_share(nic: NicView, memory: Memory, key: FlowKey) -> str | None:
    """Why one more rule for this flow would be more than its user or control group may have, though
    nobody else wants it; None: it would not."""
    flow, bound = memory.table.get(key), share(nic)
    most = memory.settling.filters
    if flow is None or bound is None or key.wide or all(each >= 100 for each in most.values()):
        return None
    held = _held(nic, memory)
    for tenant in tenants_of(flow.thread):
        percent = most.get(tenant[0], 100)
        if held.get(tenant, 0) * 100 >= bound * percent:
            whose = "user" if tenant[0] == "user" else "control group"
            return f"its {whose} has its share of the filters, {percent} %: delivered by RSS"
    return None


def said(flow: Flow, nic: NicView, memory: Memory, why: str) -> str:
    """Why it waits, and what others of its user or control group have."""
    mine = tenants_of(flow.thread)
    held = held_by(mine, _held(nic, memory))
    alone = memory.table.filters_of(nic.name).keys() <= {*mine}
    if alone or not held or full_share(nic, memory, flow.key) is not None:
        return why
    return f"{why}; its user or control group has {held} of the filters, and nobody has two more"


def _held(nic: NicView, memory: Memory) -> Counter[Tenant]:
    """The filters of each tenant, and those that are about to be theirs."""
    table, spending = memory.table, memory.spending_of(nic.name)
    held = Counter({who: len(keys) for who, keys in table.filters_of(nic.name).items()})
    for key in spending.inserting.keys() | spending.promised | {*spending.swaps.values()}:
        flow = None if key is None or key.wide else table.get(key)
        if flow is not None and flow.location is None:
            held.update(tenants_of(flow.thread))
    for key in spending.swaps:
        flow = table.get(key)
        if flow is not None and flow.location is not None:
            held.subtract(tenants_of(flow.thread))
    return held


def make_room(flow: Flow, nic: NicView, memory: Memory) -> Plan:
    """A rule to delete, for a flow that found no filter left: of who has more than his share. None,
    if nobody has."""
    spending, table = memory.spending_of(nic.name), memory.table
    if not nic.armed or nic.means is not Means.RULES or flow.key in spending.swaps.values():
        return ()
    if full_share(nic, memory, flow.key) is not None:
        return ()
    held, mine = _held(nic, memory), tenants_of(flow.thread)
    filters = table.filters_of(nic.name)
    others = [each for each in filters if each not in mine and held[each] >= 2]
    busy = spending.rewriting.keys() | spending.inserting.keys() | spending.swaps.keys()
    for rich in nlargest(_RICHEST, others, key=lambda each: held[each]):
        found = (table.get(key) for key in islice(filters[rich], _LOOKED_AT))
        fit = [
            each
            for each in found
            if each is not None and _ruled(each) and each.key not in busy
            if may_take(mine, tenants_of(each.thread), held) and not table.covering(each.key)
        ]
        if fit:
            loser = min(fit, key=lambda each: worth(each, memory))
            gains = f"whose user or control group has fewer ({held_by(mine, held)})"
            return (_swap(loser, worth(loser, memory), flow.key, gains, memory),)
    return ()


def ask(action: Action, memory: Memory) -> None:
    """A rule is about to be written, until `settle` or `ended`; a new one has its slot already."""
    spending = memory.spending_of(action.nic)
    if action.key is None or action.kind not in (ActionKind.INSERT, ActionKind.REWRITE):
        return
    if action.kind is ActionKind.INSERT:
        spending.inserting[action.key] = action
        spending.promised.discard(action.key)
    else:
        spending.rewriting[action.key] = action


def settle(outcome: Outcome, memory: Memory) -> bool:
    """Count what became of an action. True: a rule is gone to make room, and its flow goes on."""
    action, spending = outcome.action, memory.spending_of(outcome.action.nic)
    if action.key is None:
        return False
    swapped, newcomer = action.key in spending.swaps, spending.swaps.get(action.key)
    ended(action, memory)
    if action.kind is ActionKind.INSERT:
        spending.refused |= outcome.errno == errno.ENOSPC
        if action.key.wide and not outcome.errno:
            spending.spans_later = 0, 0
    done = action.kind is ActionKind.DELETE and outcome.errno in (0, errno.ENOENT)
    if not swapped or not done:
        return False
    flow = None if newcomer is None else memory.table.get(newcomer)
    if newcomer in spending.covers:
        spending.promised.add(newcomer)
    elif newcomer is not None and flow is not None and waits(flow):
        spending.promised.add(newcomer)
        memory.defer(newcomer, outcome.at_ns)
    return action.live


def ended(action: Action, memory: Memory) -> None:
    """Nothing of this action is under way any more, whatever became of it."""
    spending = memory.spending_of(action.nic)
    if action.key is None:
        return
    for asked in (spending.inserting, spending.rewriting):
        if asked.get(action.key) is action:  # and not one that was wanted since
            del asked[action.key]
    spending.swaps.pop(action.key, None)


def put_off(key: FlowKey, nic: str, memory: Memory, now_ns: int) -> None:
    """A rule for many flows could not be had: it is not tried again for a while, a longer one each
    time, and no filter is taken for it."""
    spending = memory.spending_of(nic)
    spending.later[key] = _later(spending.later.get(key, (0, 0))[0], now_ns)
    if not key.listens:
        spending.spans_later = _later(spending.spans_later[0], now_ns)
    spending.covers.discard(key)
    spending.promised.discard(key)


def _later(times: int, now_ns: int) -> tuple[int, int]:
    return times + 1, now_ns + min(_LATER_NS << min(times, 16), _LATEST_NS)


def waits(flow: Flow) -> bool:
    """It found no filter left."""
    if flow.key.wide:
        return False
    return flow.state is FlowState.OVERFLOW and flow.location is None


def worth(flow: Flow, memory: Memory) -> float:
    """What a filter is worth to a flow, as far as is known: bytes per second, weighted."""
    weight = memory.spending_of(flow.nic).weights.get(flow.key)
    return 0.0 if weight is None else weight.worth or 0.0


def weigh(nic: NicView, topology: Topology, rss: RssOf, memory: Memory, now_ns: int) -> None:
    """After an audit: what the filters of a NIC are worth, and would be to those that wait. Nothing
    is weighed where nobody waits."""
    spending, table = memory.spending_of(nic.name), memory.table
    spending.promised &= spending.covers  # a flow has its slot by now, or has no use for it
    spending.refused = False
    flows = [flow for flow in table if flow.nic == nic.name and (_ruled(flow) or waits(flow))]
    before, spending.weights = spending.weights, {}
    if not any(waits(flow) for flow in flows):
        return
    if spending.rss != nic.rss:
        spending.rss, spending.predicted = nic.rss, {}
    known = spending.predicted
    unknown = [flow.key for flow in flows if flow.key not in known][:_PREDICTED]
    found = {key: rss(key) if key.remote_port else None for key in unknown}
    spending.predicted = {f.key: known[f.key] for f in flows if f.key in known} | found
    cpus = {queue.index: queue.cpu for queue in nic.queues}
    far = _Distances(topology)
    for flow in flows:
        port, old = table.covering(flow.key), before.get(flow.key)
        queue = spending.predicted.get(flow.key) if port is None else port.target_queue
        cpu = None if queue is None else cpus.get(queue)
        if cpu is None and flow.location is None:
            cpu = flow.rx_cpu
        if cpu is not None:
            mismatch = far.between(cpu, flow.app_cpu)
        else:
            mismatch = 1.0 if old is None else old.mismatch
        spending.weights[flow.key] = _weight(flow, mismatch, old, now_ns)


def swaps(nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """After `weigh`, and after what there is room for was inserted: rules to delete, each for the
    flow that is to get its slot."""
    spending = memory.spending_of(nic.name)
    if not nic.armed or nic.means is not Means.RULES:
        return ()
    waiting: list[tuple[float, FlowKey]] = []
    ruled: list[tuple[float, Flow]] = []
    asked = spending.inserting.keys() | spending.rewriting.keys()
    busy = asked | spending.swaps.keys() | {*spending.swaps.values()}
    changing = [key for key in asked if key.wide]
    for key, weight in spending.weights.items():
        flow = memory.table.get(key)
        if flow is None or weight.worth is None or key in busy or key in memory.deferred:
            continue
        if flow.moved_ns and now_ns - flow.moved_ns < _HELD_NS:
            continue
        if waits(flow):
            waiting.append((weight.worth, key))
        elif _ruled(flow) and not memory.table.covering(key):  # those are `aggregate`'s
            if any(covers(wide, key) for wide in changing):
                continue  # where it would go is about to change
            ruled.append((weight.worth, flow))
    plan: list[Action] = []
    for wide in sorted(spending.covers - spending.promised - busy):
        fit = [each for each in ruled if not covers(wide, each[1].key)] or ruled  # else its own
        if fit and no_room(nic, memory, wide) is not None:
            highest = nic.budget != share(nic)  # the table is full: exact ones are above it
            worst_of = min(fit, key=lambda each: -(each[1].location or 0) if highest else each[0])
            ruled.remove(worst_of)
            plan.append(_swap(worst_of[1], worst_of[0], wide, "that serves several", memory))
    held = _held(nic, memory)
    best: list[tuple[float, FlowKey]] = []
    for gain, newcomer in nlargest(_SWAPS, waiting):
        asks = memory.table.get(newcomer)
        made = () if asks is None else make_room(asks, nic, memory)
        plan += made
        if not made:
            best.append((gain, newcomer))
    gone = {each.key for each in plan}
    ruled = [each for each in ruled if each[1].key not in gone]
    worst = nsmallest(_SWAPS, ruled, key=lambda each: each[0])
    for (gain, newcomer), (loss, flow) in zip(best, worst, strict=False):
        room = no_room(nic, memory, newcomer) is None and not spending.refused
        entry = memory.table.get(newcomer)
        mine = tenants_of(None if entry is None else entry.thread)
        if not fair(mine, tenants_of(flow.thread), held):
            continue
        if room or gain < _LEAST_BYTES_PER_S or gain <= _CLEARLY * loss:
            break
        plan.append(_swap(flow, loss, newcomer, f"worth {_rate(gain)}", memory))
    return tuple(plan)


def _swap(flow: Flow, loss: float, newcomer: FlowKey, gains: str, memory: Memory) -> Action:
    """Begin to take a flow's filter for another one."""
    memory.spending_of(flow.nic).swaps[flow.key] = newcomer
    why = f"its filter is worth {_rate(loss)} and goes to {newcomer}, {gains}"
    kind, queue = ActionKind.DELETE, flow.target_queue
    return Action(
        kind, flow.nic, flow.key, flow.location, queue, None, why, flow.policy,
        generation=memory.table.generation(flow.key),
    )  # fmt: skip


def _ruled(flow: Flow) -> bool:
    """It has a filter of its own, which may be taken from it."""
    steered = flow.state is FlowState.STEERED and flow.location is not None
    return steered and not flow.key.wide


def _weight(flow: Flow, mismatch: float, old: Weight | None, now_ns: int) -> Weight:
    """By what it carried since the last look, what came before counting half."""
    if old is None:
        return Weight(flow.bytes, now_ns, None, mismatch)
    took_ns = now_ns - old.at_ns
    if took_ns < _MEASURED_NS:
        return old._replace(mismatch=mismatch)
    rate = max(0, flow.bytes - old.bytes) * 1e9 / took_ns
    if old.bytes_per_s is not None:
        rate = (rate + old.bytes_per_s) / 2
    return Weight(flow.bytes, now_ns, rate, mismatch)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1000:.0f} kB/s"


class _Distances:
    """How far CPUs are from each other, 1 being another one of the same node."""

    def __init__(self, topology: Topology) -> None:
        self._node = {cpu.index: cpu.node for cpu in topology.cpus}
        self._slit = {node.index: node.distances for node in topology.nodes}

    def between(self, one: int, other: int) -> float:
        """0 on one CPU; of two nodes what ACPI's SLIT says, by that of one node."""
        if one == other:
            return 0.0
        a, b = self._node.get(one), self._node.get(other)
        if a is None or b is None or a == b:
            return 1.0
        return max(self._slit.get(a, {}).get(b, _OTHER_NODE) / _SAME_NODE, 1.0)
