# SPDX-License-Identifier: GPL-2.0-or-later
"""The filters of a NIC, spent where they pay. Pure.

The worth of a filter is the flow's recent bytes per second, times the distance from its
application's core at which the flow would be delivered without the filter. Where no filter is left
for a flow, it waits; at every look the waiting flows that gain most take the filters of those that
gain least, if the difference is clear. Before that, users and control groups get equal shares
(`engine.ownership.shares`): a flow of a tenant with few filters takes a filter from a tenant with
more, at once. A rule of the policy may limit the filters of its flows and ports: those that wait
because of that take filters only from each other. To delete a filter is to move its flow back to
RSS, in the `order` of its policy; the slot is promised to the flow that it was cleared for. Both
flows stay in the Flow-to-Core table. A port's filter counts for the thread that listens there: it
goes at the next look at ports (`port_filters`), if it delivers no connection then.
"""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from itertools import islice

from atfnd.engine.ownership.shares import Tenant, fair, held_by, may_take, tenants_of, whose
from atfnd.engine.table.flow_table import Weight, waits
from atfnd.engine.table.memory import FoundFull, Memory, Spending
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    FlowState,
    NicView,
    Outcome,
    Plan,
    SteeringMethod,
    Topology,
)
from atfnd.model.reason import Code, Why
from atfnd.model.rests import SECONDS

__all__ = [
    "RssOf",
    "ask",
    "dropped",
    "ended",
    "full_rules",
    "full_share",
    "make_room",
    "no_room",
    "promised",
    "put_off",
    "record",
    "said",
    "share",
    "short",
    "surplus",
    "swaps",
    "waits",
    "weigh",
    "worth",
]

_SWAPS = 16  # in one look
_RICHEST, _LOOKED_AT = 4, 64  # tenants to take from, and filters to look at of one tenant
_PORTS_PERCENT = 50  # of the filters are for the ports of one tenant: a busy port's cannot be taken
_CLEARLY = 2.0  # times the worth of the flow that has the filter
_LEAST_BYTES_PER_S = 10_000  # less is not worth the two moves of a swap
_MOST = 0.75  # start before our share is full: their port's filter would move flows that wait
_HELD_NS = 5_000_000_000  # a flow keeps a filter this long, and waits this long after losing one
_FULL_NS, _FULL_LATEST_NS = 10_000_000_000, 600_000_000_000  # until a full NIC is asked again
_MEASURED_NS = 1_000_000_000  # at least
_PREDICTED = 512  # hashes in one look
_SAME_NODE, _OTHER_NODE = 10, 20  # ACPI SLIT
_KINDS = {"user": "user", "cgroup": "control group"}  # of tenants

RssOf = Callable[[FlowKey], int | None]  # the queue RSS gives a flow; None: not known


def share(nic: NicView) -> int | None:
    """How many filters of this NIC may be ours: what the policy allows, less what others took above
    the reserve. None: no limit is known."""
    bounds = [] if nic.budget is None else [nic.budget]
    if nic.caps.filter_slots is not None and nic.foreign is not None:
        bounds.append(max(0, nic.caps.filter_slots - nic.foreign))
    return min(bounds, default=None)


def short(nic: NicView, memory: Memory) -> bool:
    """Most of our share is in use, or a flow waits for a filter: one of a port, for all its
    connections, would help (`engine.filters.aggregate`)."""
    room = share(nic)
    if room is not None and memory.table.filters_in(nic.name) >= room * _MOST:
        return True
    return bool(memory.table.waiting(nic.name))


def no_room(
    nic: NicView, memory: Memory, key: FlowKey, tenants: tuple[Tenant, ...] | None = None,
    rule: str | None = None,
) -> Why | None:  # fmt: skip
    """Why one more filter of ours, for this flow, would be too many; None: it would not. Filters
    about to be inserted count, and so do slots that were cleared for another flow. `tenants` and
    `rule` are those of a flow that has no entry yet, or will fall under another rule."""
    bound, spending, table = share(nic), memory.nics[nic.name].spending, memory.table
    inserting = table.inserting(nic.name)
    cleared_for = (*table.promised(nic.name), *spending.promised)
    waiting = sum(each not in inserting for each in cleared_for)
    spoken_for = len(inserting) + waiting
    itself = key in inserting or key in cleared_for
    ours = table.filters_in(nic.name) + spoken_for - itself
    found = spending.found_full.get(key.family)
    if found is not None and ours >= found.ours:
        return Code.NIC_FULL()
    if bound is None:  # it was full when the slot was cleared that is spoken for
        why = Code.NIC_FULL() if {*cleared_for} - {key} else None
        return why or full_share(nic, memory, key, tenants, rule)
    if ours < bound:
        return full_share(nic, memory, key, tenants, rule)
    if bound != nic.budget:
        return Code.NIC_FULL_OF_OTHERS(nic.foreign)
    return Code.ALL_IN_USE(bound)


def full_share(
    nic: NicView, memory: Memory, key: FlowKey, tenants: tuple[Tenant, ...] | None = None,
    rule: str | None = None,
) -> Why | None:  # fmt: skip
    """Why one more filter for this flow would exceed the share of its user or control group, or of
    its rule, though nothing else wants it; None: it would not. `tenants` and `rule` as for
    `no_room`."""
    return _full_tenant(nic, memory, key, tenants) or _full_rule(nic, memory, key, rule)


def _full_rule(nic: NicView, memory: Memory, key: FlowKey, rule: str | None = None) -> Why | None:
    flow = memory.table.get(key)
    if rule is None:
        rule = "" if flow is None else flow.rule_name
    most = memory.in_force.filters_max(rule)
    if most is None or _under(rule, nic, memory, but=key) < most:
        return None
    return Code.RULE_SHARE(most)


def full_rules(nic: NicView, memory: Memory) -> frozenset[str]:
    """The rules whose flows and ports have as many filters as they may have, or will have them:
    others of theirs wait."""
    bounded = {each.name: each.filters_max for each in memory.in_force.by_name.values()}
    return frozenset(
        name
        for name, most in bounded.items()
        if most is not None and _under(name, nic, memory) >= most
    )


def _under(rule: str, nic: NicView, memory: Memory, but: FlowKey | None = None) -> int:
    """The filters of a rule's flows and ports, and those to come, besides that of `but`."""
    coming = (each for each in _coming(nic, memory) if each.rule_name == rule)
    here = memory.table.filters_under(nic.name, rule)
    return len(here) + sum(each.key != but for each in coming)


def _full_tenant(
    nic: NicView, memory: Memory, key: FlowKey, tenants: tuple[Tenant, ...] | None = None
) -> Why | None:
    flow, bound = memory.table.get(key), share(nic)
    if tenants is None:
        tenants = () if flow is None else whose(flow)
    if bound is None:
        return None
    for tenant in tenants if key.listens else ():
        most_ports = max(1, bound * _PORTS_PERCENT // 100)
        if flow is None and memory.table.ports_held(nic.name, tenant) >= most_ports:
            return Code.PORTS_SHARE(_KINDS[tenant[0]], _PORTS_PERCENT)
    most = memory.in_force.filters
    if all(each >= 100 for each in most.values()):
        return None
    held = _held(nic, memory)
    if flow is not None and flow.location is None and key in memory.table.promised(nic.name):
        held.subtract(tenants)  # its own slot
    for kind, _ in _at_share(tenants, held, nic, memory):
        return Code.TENANT_SHARE(_KINDS[kind], most.get(kind, 100))
    return None


def _at_share(
    tenants: Iterable[Tenant], held: Mapping[Tenant, int], nic: NicView, memory: Memory
) -> list[Tenant]:
    """Those that have as many filters as the policy lets one of their kind have."""
    bound, most = share(nic), memory.in_force.filters
    if bound is None:
        return []
    return [each for each in tenants if held.get(each, 0) * 100 >= bound * most.get(each[0], 100)]


def said(flow: Flow, nic: NicView, memory: Memory, why: Why) -> Why:
    """Why it waits, and what others of its user or control group have."""
    mine = tenants_of(flow.thread)
    held = held_by(mine, _held(nic, memory))
    alone = memory.table.filters_of(nic.name).keys() <= {*mine}
    if alone or not held or full_share(nic, memory, flow.key) is not None:
        return why
    return Code.NONE_HAS_MORE(why, held)


def _held(nic: NicView, memory: Memory) -> Counter[Tenant]:
    """The filters of each tenant, including those about to be written."""
    table = memory.table
    held = Counter({who: len(keys) for who, keys in table.filters_of(nic.name).items()})
    for each in _coming(nic, memory):
        held.update(whose(each))
    for key in table.swaps(nic.name):
        flow = table.get(key)
        if flow is not None and flow.location is not None:
            held.subtract(whose(flow))
    return held


def _coming(nic: NicView, memory: Memory) -> Iterator[Flow]:
    """The flows and ports that are to get a filter: it was asked for, or a slot was cleared for it,
    or is about to be."""
    table, swaps = memory.table, memory.table.swaps(nic.name)
    coming = *table.inserting(nic.name), *table.promised(nic.name), *swaps.values()
    for key in dict.fromkeys((*coming, *memory.nics[nic.name].spending.promised)):
        flow = None if key is None else table.get(key)
        if flow is not None and flow.location is None:
            yield flow


def make_room(flow: Flow, nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """A filter to delete for a flow that found no filter left. It comes from the tenant that has
    more than its share; if the flow's rule has its share, from a flow of that rule. None, if none
    has, or if it is a port's: that is deleted at the next look at ports, and `promised`."""
    table, swaps = memory.table, memory.table.swaps(nic.name)
    if not nic.armed or nic.method is not SteeringMethod.FILTERS or flow.key in swaps.values():
        return ()
    if _full_tenant(nic, memory, flow.key) is not None:
        return ()
    held, mine = _held(nic, memory), tenants_of(flow.thread)
    busy = table.rewriting(nic.name).keys() | table.inserting(nic.name).keys() | swaps.keys()
    for some in _to_take_from(flow, held, nic, memory):
        found = map(table.get, some)
        fit = [
            each
            for each in found
            if each is not None and each.key not in busy
            if (_filtered(each) or _idle_port(each, memory)) and _may_go(each, memory, now_ns)
            if may_take(mine, whose(each), held) and not table.covering(each.key)
        ]
        if fit:
            loser = min(fit, key=lambda each: (worth(each, memory), table.generation(each.key)))
            if loser.key.listens:
                table.gives(loser.key, (flow.key,))
                return ()
            gains = Code.FOR_FEWER(held_by(mine, held))
            return (_swap(loser, worth(loser, memory), flow.key, gains, memory),)
    return ()


def _to_take_from(
    flow: Flow, held: Counter[Tenant], nic: NicView, memory: Memory
) -> Iterator[Iterable[FlowKey]]:
    """What has filters: of one rich tenant after the other; or, if the flow's rule has its share,
    under that rule, because no other filter is of use to it."""
    table, mine = memory.table, tenants_of(flow.thread)
    if _full_rule(nic, memory, flow.key) is not None:
        yield islice(table.filters_under(nic.name, flow.rule_name), _RICHEST * _LOOKED_AT)
        return
    filters = table.filters_of(nic.name)
    others = [each for each in filters if each not in mine and held[each] >= 2]
    for rich in nlargest(_RICHEST, others, key=lambda each: held[each]):
        yield islice(filters[rich], _LOOKED_AT)


def promised(flow: Flow, memory: Memory) -> bool:
    """A filter goes for this flow that found no filter left."""
    return flow.key in memory.table.swaps(flow.nic).values()


def ask(action: Action, memory: Memory) -> None:
    """A filter is about to be written; this holds until `record` or `ended`, or until another
    action is asked for. A new filter takes a slot now."""
    if action.key is not None and action.kind in (ActionKind.INSERT, ActionKind.REWRITE):
        memory.table.ask(action)
        if action.kind is ActionKind.INSERT:
            memory.nics[action.nic].spending.promised.discard(action.key)


def record(outcome: Outcome, memory: Memory) -> bool:
    """Count the outcome of an action. True: a filter was deleted to make room, and its flow lives
    on."""
    action, spending = outcome.action, memory.nics[outcome.action.nic].spending
    if action.key is None:
        return False
    swaps = memory.table.swaps(action.nic)
    swapped, newcomer = action.key in swaps, swaps.get(action.key)
    ended(action, memory)
    if action.kind is ActionKind.INSERT:
        if outcome.errno == errno.ENOSPC:
            spending.refused = True
            _found_full(outcome, memory)
        elif not outcome.errno:
            spending.found_full.pop(action.key.family, None)
    done = action.kind is ActionKind.DELETE and outcome.errno in (0, errno.ENOENT)
    if not swapped or not done:
        return False
    flow = None if newcomer is None else memory.table.get(newcomer)
    if newcomer in spending.covers:
        spending.promised.add(newcomer)
    elif newcomer is not None and flow is not None and waits(flow):
        memory.table.promise(newcomer, True)
        memory.table.defer(newcomer, outcome.at_ns)
    return action.live and not action.key.listens


def ended(action: Action, memory: Memory) -> None:
    """The action has ended, however it ended. With a delete end the actions of its entry that
    waited: they will not be carried out."""
    if action.key is None:
        return
    asked = memory.table.asked(action.key)
    if asked is not None:
        older = asked.generation <= action.generation
        if asked is action or (action.kind is ActionKind.DELETE and older):
            memory.table.answered(action.key)  # a newer one stays
    memory.table.gives(action.key, None)


def dropped(nic: str, memory: Memory) -> None:
    """All moves of a NIC were dropped: nothing is asked for any more."""
    table, known = memory.table, memory.nics[nic].spending
    memory.nics[nic].spending = Spending(look=known.look + 2, rss=known.rss)
    for key in [*table.inserting(nic), *table.rewriting(nic)]:
        table.answered(key)
    for key in [*table.swaps(nic)]:
        table.gives(key, None)
    for key in [*table.promised(nic)]:
        table.promise(key, False)


def put_off(key: FlowKey, nic: str, memory: Memory, now_ns: int) -> None:
    """A port's filter could not be written: it is not tried again for a while, longer each time,
    and no filter is taken for it."""
    spending = memory.nics[nic].spending
    spending.later.vain(key, SECONDS, now_ns)
    spending.covers.discard(key)
    spending.promised.discard(key)


def _found_full(outcome: Outcome, memory: Memory) -> None:
    """A NIC is not asked for one filter more for a while, unless one of ours goes. Some do not say
    how many they take, or take fewer of one address family."""
    nic, key = outcome.action.nic, outcome.action.key
    if key is None:
        return
    found = memory.nics[nic].spending.found_full
    before = found.get(key.family)
    pause_ns = _FULL_NS if before is None else min(2 * before.pause_ns, _FULL_LATEST_NS)
    until_ns = outcome.at_ns + pause_ns
    found[key.family] = FoundFull(memory.table.filters_in(nic), until_ns, pause_ns)


def leaves_room(flow: Flow, memory: Memory) -> bool:
    """It waits for a filter, and has one no sooner than others that wait: its move was put off."""
    promised = flow.key in memory.table.promised(flow.nic)
    return waits(flow) and not promised and memory.table.noted(flow.key).deferrals > 0


def worth(flow: Flow, memory: Memory) -> float:
    """What a filter would be worth to a flow, as far as known: bytes per second, weighted."""
    record = memory.table.record(flow.key)
    weight = None if record is None else record.pending.weight
    if weight is None or weight.look != memory.nics[flow.nic].spending.look:
        return 0.0
    return weight.worth or 0.0


def weigh(nic: NicView, topology: Topology, rss: RssOf, memory: Memory, now_ns: int) -> None:
    """After an audit: weigh what the filters of a NIC are worth, and would be worth to the flows
    that wait. Nothing is weighed where no flow waits."""
    spending, table = memory.nics[nic.name].spending, memory.table
    for key in [*table.promised(nic.name)]:
        table.promise(key, False)  # it may have its slot already, or no use for it
    if not short(nic, memory):
        spending.covers = set()
    spending.promised &= spending.covers
    spending.refused = False
    _forget_ports(nic.name, memory)
    for family, full in spending.found_full.items():
        if now_ns >= full.until_ns:  # one more may try
            spending.found_full[family] = full._replace(ours=table.filters_in(nic.name) + 1)
    spending.look += 1
    waiting = table.waiting(nic.name)
    if not waiting:
        return
    if spending.rss[1] != nic.rss:
        spending.rss = spending.rss[0] + 1, nic.rss
    number, left = spending.rss[0], _PREDICTED
    cpus = {queue.index: queue.cpu for queue in nic.queues}
    far = CpuDistances(topology)
    for flow in (*filter(_filtered, table.steered(nic.name)), *waiting):
        record = table.record(flow.key)
        assert record is not None
        if left and (record.pending.rss is None or record.pending.rss[0] != number):
            left -= 1
            record.own().rss = number, rss(flow.key) if flow.key.remote_port else None
        old = record.pending.weight
        if old is not None and old.look != spending.look - 1:
            old = None
        port = table.covering(flow.key)
        if port is not None:
            queue = port.target_queue
        else:
            known = record.pending.rss
            queue = known[1] if known is not None and known[0] == number else None
        cpu = None if queue is None else cpus.get(queue)
        if cpu is None and flow.location is None:
            cpu = flow.rx_cpu
        if cpu is not None:
            mismatch = far.between(cpu, flow.app_cpu)
        else:
            mismatch = 1.0 if old is None else old.mismatch
        record.own().weight = _weight(flow, mismatch, old, now_ns, spending.look)


def _forget_ports(nic: str, memory: Memory) -> None:
    """When a port is tried again is forgotten with its listeners and its entry."""
    known = memory.nics[nic]
    for key in known.put_off_and_closed():
        if memory.table.get(key) is None:
            del known.spending.later[key]


def swaps(nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """After `weigh`, and after the free slots were used: filters to delete, each for the flow that
    is to get its slot."""
    spending = memory.nics[nic.name].spending
    if not nic.armed or nic.method is not SteeringMethod.FILTERS:
        return ()
    if not memory.table.waiting(nic.name) and not spending.covers:
        return ()  # nobody asks for a slot
    # By their rule, if it has its share, else together.
    waiting: defaultdict[str | None, list[tuple[float, FlowKey]]] = defaultdict(list)
    full = full_rules(nic, memory)
    steered: list[tuple[float, Flow]] = []
    table, going = memory.table, memory.table.swaps(nic.name)
    asked = table.inserting(nic.name).keys() | table.rewriting(nic.name).keys()
    busy = asked | going.keys() | {*going.values()}
    changing = [key for key in asked if key.listens]
    for flow in (*table.steered(nic.name), *table.waiting(nic.name)):
        key, record = flow.key, table.record(flow.key)
        weight = None if record is None else record.pending.weight
        if weight is None or weight.look != spending.look or weight.worth is None or key in busy:
            continue
        if memory.table.due_ns(key) is not None:
            continue
        if flow.moved_ns and now_ns - flow.moved_ns < _HELD_NS:
            continue
        if waits(flow) and now_ns >= memory.table.noted(key).rests_ns:
            within = flow.rule_name if flow.rule_name in full else None
            waiting[within].append((weight.worth, key))
        elif (
            _filtered(flow) and _may_go(flow, memory, now_ns) and not memory.table.covering(key)
        ):  # `aggregate` handles those
            if any(port.covers(key) for port in changing):
                continue  # its destination is about to change
            steered.append((weight.worth, flow))
    plan: list[Action] = []
    for port in sorted(spending.covers - spending.promised - busy):
        fit = [each for each in steered if not port.covers(each[1].key)] or steered  # else its own
        if fit and no_room(nic, memory, port) is not None:
            highest = nic.budget != share(nic)  # the table is full: exact ones are above it
            worst_of = min(fit, key=lambda each: -(each[1].location or 0) if highest else each[0])
            steered.remove(worst_of)
            plan.append(_swap(worst_of[1], worst_of[0], port, Code.FOR_SEVERAL(), memory))
    held = _held(nic, memory)
    for rule, asking in waiting.items():
        best: list[tuple[float, FlowKey]] = []
        for gain, newcomer in nlargest(_SWAPS, asking):
            asks = memory.table.get(newcomer)
            made = () if asks is None else make_room(asks, nic, memory, now_ns)
            plan += made
            if asks is None or not promised(asks, memory):
                best.append((gain, newcomer))
        gone = {each.key for each in plan}
        steered = [each for each in steered if each[1].key not in gone]
        fit = [each for each in steered if rule in (None, each[1].rule_name)]
        worst = nsmallest(_SWAPS, fit, key=lambda each: each[0])
        plan += _by_worth(best, worst, held, nic, memory)
    return tuple(plan)


def _by_worth(
    best: Iterable[tuple[float, FlowKey]], worst: Iterable[tuple[float, Flow]],
    held: Counter[Tenant], nic: NicView, memory: Memory,
) -> Iterator[Action]:  # fmt: skip
    """The filters of the flows of least worth, for those that gain clearly more."""
    refused = memory.nics[nic.name].spending.refused
    for (gain, newcomer), (loss, flow) in zip(best, worst, strict=False):
        room = no_room(nic, memory, newcomer) is None and not refused
        entry = memory.table.get(newcomer)
        mine = tenants_of(None if entry is None else entry.thread)
        if not fair(mine, whose(flow), held):
            continue
        if not {*_at_share(mine, held, nic, memory)} <= {*whose(flow)}:
            continue  # it would wait for its share even then
        if room or gain < _LEAST_BYTES_PER_S or gain <= _CLEARLY * loss:
            break
        yield _swap(flow, loss, newcomer, Code.FOR_WORTH(_rate(gain)), memory)


def surplus(nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """Filters to delete because a rule has more than its share: flows with a filter have come under
    it, or another policy gives it fewer. Those of least worth go, and of equals the latest."""
    if nic.method is not SteeringMethod.FILTERS or not nic.armed:
        return ()
    table, plan = memory.table, list[Action]()
    for rule in memory.in_force.by_name.values():
        keys, most = table.filters_under(nic.name, rule.name), rule.filters_max
        if most is None or len(keys) <= most or not table.swaps(nic.name).keys().isdisjoint(keys):
            continue  # what is under way comes first
        found = (table.get(key) for key in keys if key not in table.rewriting(nic.name))
        fit = [flow for flow in found if flow and _filtered(flow) and _may_go(flow, memory, now_ns)]
        fit.sort(key=lambda flow: (worth(flow, memory), -table.generation(flow.key)))
        why = Code.RULE_SURPLUS(most)
        plan += [_taken(flow, None, why, memory) for flow in fit[: min(len(keys) - most, _SWAPS)]]
    return tuple(plan)


def _swap(flow: Flow, loss: float, newcomer: FlowKey, gains: Why, memory: Memory) -> Action:
    """Begin to take a flow's filter for another one."""
    why = Code.TAKEN(_rate(loss), newcomer, gains)
    return _taken(flow, newcomer, why, memory)


def _taken(flow: Flow, newcomer: FlowKey | None, why: Why, memory: Memory) -> Action:
    """Begin to take a flow's filter, for another one or for none."""
    memory.table.gives(flow.key, (newcomer,))
    kind, queue = ActionKind.DELETE, flow.target_queue
    return Action(
        kind, flow.nic, flow.key, flow.location, queue, None, why, flow.rule_name,
        generation=memory.table.generation(flow.key),
    )  # fmt: skip


def _may_go(flow: Flow, memory: Memory, now_ns: int) -> bool:
    """A filter that could not be deleted in order is not asked for again for a while, longer each
    time."""
    return memory.table.due_ns(flow.key) is None and now_ns >= memory.table.noted(flow.key).rests_ns


def _filtered(flow: Flow) -> bool:
    """It has a filter of its own, which may be taken from it."""
    steered = flow.state is FlowState.STEERED and flow.location is not None
    return steered and not flow.key.listens


def _idle_port(flow: Flow, memory: Memory) -> bool:
    """A port with a filter that delivered no connection when its port was last looked at."""
    known = memory.nics[flow.nic].listeners
    if not flow.key.listens or flow.state is not FlowState.STEERED or flow.location is None:
        return False
    return known is not None and flow.key not in known.carrying


def _weight(flow: Flow, mismatch: float, old: Weight | None, now_ns: int, look: int) -> Weight:
    """Its worth by the bytes since the last look, earlier bytes counting half."""
    if old is None:
        return Weight(flow.bytes, now_ns, None, mismatch, look)
    took_ns = now_ns - old.at_ns
    if took_ns < _MEASURED_NS:
        return old._replace(mismatch=mismatch, look=look)
    rate = max(0, flow.bytes - old.bytes) * 1e9 / took_ns
    if old.bytes_per_s is not None:
        rate = (rate + old.bytes_per_s) / 2
    return Weight(flow.bytes, now_ns, rate, mismatch, look)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1000:.0f} kB/s"


class CpuDistances:
    """How far CPUs are from each other; 1 for two CPUs of one node."""

    def __init__(self, topology: Topology) -> None:
        self._node = {cpu.index: cpu.node for cpu in topology.cpus}
        self._slit = {node.index: node.distances for node in topology.nodes}

    def between(self, one: int, other: int) -> float:
        """0 for the same CPU; between two nodes, their ACPI SLIT distance relative to that within
        one node."""
        if one == other:
            return 0.0
        a, b = self._node.get(one), self._node.get(other)
        if a is None or b is None or a == b:
            return 1.0
        return max(self._slit.get(a, {}).get(b, _OTHER_NODE) / _SAME_NODE, 1.0)
