# SPDX-License-Identifier: GPL-2.0-or-later
"""One filter for the flows of a remote prefix, or of a local address, that go to one queue. Pure.

Where filters are short (`aggregate`), flows of one owner and one rule of the policy are looked at
together: by local port, by remote port, or by address alone; the longest prefix that all have in
common, and where that would take a flow that goes elsewhere, each half of them. A prefix filter
is such a prefix, as an entry of the Flow-to-Core table. It is written only where

- the policy has one rule for whatever may come by it, and it is that of these flows;
- every socket there is has a filter of its own, or comes through that queue, or waits for a filter
  and belongs to it;
- it overlaps no filter that leads elsewhere, ours or not: which of two filters wins is known only
  if one names a whole 5-tuple;
- the NIC was shown to take a filter of this shape.

A flow that arrives meanwhile may have data in any ring of RSS: all of them must drain, under a hold
of the new one. A prefix filter goes when no flow comes by it any more, or another filter leads to
the same queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from atfnd.engine.filters import aggregate, budget
from atfnd.engine.filters.unfiltered import Unfiltered
from atfnd.engine.table.memory import Memory
from atfnd.engine.table.wide_key import Opening, bits, covers, may_catch, meet, overlap, within
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Match,
    Mode,
    NicView,
    SocketUse,
    SteeringMethod,
)
from atfnd.move.event import Wanted

__all__ = ["Listened", "RuleOf", "anyone_at", "look", "wanted"]

_A_LOOK = 4  # filters in one look
_TRIED = 64  # prefixes in one look
_UNUSED_NS = 10_000_000_000
_STEP = {4: 8, 6: 16}  # bits that prefixes are rounded down to, so that neighbours fit in
_LEAST = {4: 8, 6: 16}  # bits of a prefix

RuleOf = Callable[[FlowKey], FlowRule | None]  # the one policy rule for a wide key
Listened = Callable[[FlowKey], bool]  # a filter for its port serves it, or may


class _Found(NamedTuple):
    key: FlowKey
    flows: tuple[Flow, ...]


def wanted(nic: NicView, memory: Memory) -> bool:
    """There is something to look at."""
    if not nic.armed or nic.method is not SteeringMethod.FILTERS:
        return False
    able = nic.caps.exact_wins and bool(nic.caps.shapes)
    return bool(memory.table.prefix_filters(nic.name)) or (able and budget.short(nic, memory))


def look(
    nic: NicView, rule_of: RuleOf, listened: Listened, uses: Sequence[SocketUse], memory: Memory,
    now_ns: int,
) -> tuple[Wanted, ...]:  # fmt: skip
    """What many flows need now. `uses` is every connected socket as it is now."""
    spending, short = memory.nics[nic.name].spending, budget.short(nic, memory)
    spending.covers = {key for key in spending.covers if key.listens}
    births: list[Wanted] = []
    for held in memory.table.prefix_filters(nic.name):
        births += _kept(held, nic, rule_of, uses, memory, short, now_ns)
    able = nic.caps.exact_wins and bool(nic.caps.shapes)
    if short and able and now_ns >= spending.prefixes_later[1]:
        sockets = Unfiltered(nic, uses, memory)
        for found, queue, rule in _chosen(nic, rule_of, listened, sockets, memory, now_ns):
            if budget.no_room(nic, memory, found.key) is not None:
                spending.covers.add(found.key)
            else:
                births.append(_written(found, queue, rule, nic, memory, now_ns))
    wide = {key for key in spending.promised if not key.listens}
    spending.promised -= wide - spending.covers
    return tuple(births)


def anyone_at(wide: FlowKey, uses: Sequence[SocketUse], memory: Memory) -> bool:
    """Some socket comes by this prefix filter, or may."""
    return any(_served(wide, use.key, memory) for use in uses)


def _kept(
    wide: Flow, nic: NicView, rule_of: RuleOf, uses: Sequence[SocketUse], memory: Memory,
    short: bool, now_ns: int,
) -> Iterator[Wanted]:  # fmt: skip
    """A prefix filter that exists: the filters it makes needless go, and later itself."""
    record = memory.table.record(wide.key)
    assert record is not None
    if wide.location is None:
        if memory.table.asked(wide.key) is None:
            memory.table.remove(wide.key)
        return
    if wide.target_queue is None or wide.state is not FlowState.STEERED:
        return
    over = memory.table.covering(wide.key)
    if over is not None and over.target_queue == wide.target_queue:
        queues = frozenset({wide.target_queue})
        yield Wanted(
            _deleted(wide, f"{over.key} leads there too", memory), Mode.STRICT, queues, queues
        )
        return
    if anyone_at(wide.key, uses, memory):
        record.own().unused_ns = None
    elif record.pending.unused_ns is None:
        record.own().unused_ns = now_ns
    elif now_ns - record.pending.unused_ns >= _UNUSED_NS:
        record.own().unused_ns = now_ns  # asked again, if the wide is not gone by then
        delete = replace(_deleted(wide, "no flow comes by it any more", memory), live=False)
        yield Wanted(delete, Mode.STRICT, None, None, live=False)
        return
    rule = rule_of(wide.key)
    if rule is not None and not wide.rule_name:  # of an earlier run
        wide = wide._replace(rule_name=rule.name)
        memory.table.put(wide)
    if short and rule is not None and rule.name == wide.rule_name:
        flows = [flow for flow in memory.table if flow.nic == nic.name and not flow.key.wide]
        yield from aggregate.joined(wide.key, flows, nic, memory, now_ns)


def _served(wide: FlowKey, key: FlowKey, memory: Memory) -> bool:
    own = memory.table.get(key)
    return overlap(wide, key) and (own is None or own.location is None)


def _chosen(
    nic: NicView, rule_of: RuleOf, listened: Listened, sockets: Unfiltered, memory: Memory,
    now_ns: int,
) -> Iterator[tuple[_Found, int, FlowRule]]:  # fmt: skip
    """The prefixes that serve most flows, none of which overlaps another."""
    groups: defaultdict[tuple[str, int, int, bytes], list[Flow]] = defaultdict(list)
    for flow in memory.table:
        queue = _joins(flow, nic, listened, memory)
        if queue is not None:
            groups[flow.rule_name, queue, flow.key.protocol, flow.key.local].append(flow)
    tries = iter(range(_TRIED))
    found: list[tuple[_Found, int]] = []
    for (policy, queue, _, _), flows in sorted(groups.items(), key=lambda each: -len(each[1])):

        def fits(key: FlowKey, policy: str = policy, queue: int = queue) -> bool:
            if next(tries, None) is None or aggregate.rests(key, nic, memory, now_ns):
                return False
            return _fits(key, policy, queue, nic, rule_of, sockets, memory)

        found += ((each, queue) for each in _groups(flows, fits))
    taken: list[FlowKey] = []
    for each, queue in sorted(found, key=lambda pair: _rank(pair[0])):
        rule = rule_of(each.key)
        if rule is not None and not any(overlap(key, each.key) for key in taken):
            taken.append(each.key)
            yield each, queue, rule
        if len(taken) == _A_LOOK:
            return


def _rank(found: _Found) -> tuple[int, bool, int, FlowKey]:
    """The prefix that serves most comes first; of equals, the one that catches least besides: with
    a port, and with a long prefix."""
    key = found.key
    return -len(found.flows), not (key.local_port or key.remote_port), -bits(key), key


def _joins(flow: Flow, nic: NicView, listened: Listened, memory: Memory) -> int | None:
    """The queue of a flow that might come by a prefix filter: it has a filter, or waits for one."""
    key, table = flow.key, memory.table
    if flow.nic != nic.name or key.wide or not key.remote_port or not any(key.local):
        return None
    if memory.table.covering(key) is not None or listened(key):
        return None
    queue = aggregate.belongs(flow, nic, memory)
    steered = flow.state is FlowState.STEERED and flow.location is not None
    under_way = table.asked(key) is not None or key in table.swaps(nic.name)
    if under_way or not (budget.waits(flow) or (steered and flow.target_queue == queue)):
        return None
    return queue


def _groups(flows: Sequence[Flow], fits: Callable[[FlowKey], bool]) -> Iterator[_Found]:
    """Prefixes of flows to one local address and queue, for each way of grouping them."""
    by_local: defaultdict[int, list[Flow]] = defaultdict(list)
    by_remote: defaultdict[int, list[Flow]] = defaultdict(list)
    for flow in flows:
        by_local[flow.key.local_port].append(flow)
        by_remote[flow.key.remote_port].append(flow)
    for some in by_local.values():
        yield from _prefixes(some, True, False, fits)
    for some in by_remote.values():
        yield from _prefixes(some, False, True, fits)
    yield from _prefixes(flows, False, False, fits)
    address = within(flows[0].key, Opening(False, False, 0))
    if len(flows) > 1 and fits(address):
        yield _Found(address, tuple(flows))


def _prefixes(
    flows: Sequence[Flow], local_port: bool, remote_port: bool, fits: Callable[[FlowKey], bool]
) -> Iterator[_Found]:
    """The longest prefix of all these flows; or, where it takes others, of each half of them."""
    if len(flows) < 2:
        return
    key = flows[0].key
    size = len(key.remote) * 8
    numbers = [int.from_bytes(flow.key.remote) for flow in flows]
    common = size - (min(numbers) ^ max(numbers)).bit_length()
    rounded = common - common % _STEP[key.family]
    for prefix in dict.fromkeys((rounded, common)):
        wide = within(key, Opening(local_port, remote_port, prefix))
        if prefix >= _LEAST[key.family] and fits(wide):
            yield _Found(wide, tuple(flows))
            return
    if common == size:
        return
    half = 1 << size - common - 1
    for side in (0, half):
        some = [f for f, number in zip(flows, numbers, strict=True) if number & half == side]
        yield from _prefixes(some, local_port, remote_port, fits)


def _fits(
    key: FlowKey, policy: str, queue: int, nic: NicView, rule_of: RuleOf, sockets: Unfiltered,
    memory: Memory,
) -> bool:  # fmt: skip
    """A filter for this prefix, to this queue, is right for every flow that may come by it."""
    if memory.table.get(key) is not None or not nic.caps.takes(Match.of(key)):
        return False
    swaps = memory.table.swaps(nic.name)
    if memory.table.full() or any(covers(key, each) for each in swaps):
        return False  # the filter of one is about to go, to where it was decided to
    rule = rule_of(key)
    if rule is None or rule.name != policy:
        return False
    if any(each.queue != queue and may_catch(each.match, key) for each in nic.theirs):
        return False
    wide = (flow for flow in memory.table.wide(nic.name) if meet(flow.key, key))
    if any(flow.location is None or flow.target_queue != queue for flow in wide):
        return False
    return all(
        each.queue == queue and each.policy in (None, policy) for each in sockets.overlapping(key)
    )


def _written(
    found: _Found, queue: int, rule: FlowRule, nic: NicView, memory: Memory, now_ns: int
) -> Wanted:
    cpu = next((each.cpu for each in nic.queues if each.index == queue), None)
    why = f"{len(found.flows)} flows are led to queue {queue}, and few filters are left"
    memory.table.put(
        Flow(
            key=found.key, cookie=0, nic=nic.name, state=FlowState.WANTED,
            app_cpu=found.flows[0].app_cpu, thread=None, target_queue=None, target_cpu=cpu,
            location=None, rx_queue=None, rx_cpu=None, bytes=0, used_ns=now_ns, moved_ns=0,
            rule_name=rule.name, why=why,
        )
    )  # fmt: skip
    action = Action(
        ActionKind.INSERT, nic.name, found.key, None, None, queue, why, rule.name,
        generation=memory.table.generation(found.key),
    )  # fmt: skip
    budget.ask(action, memory)
    every = None if nic.rss is None else frozenset(nic.rss.table)
    return Wanted(action, rule.order, every, every)


def _deleted(wide: Flow, why: str, memory: Memory) -> Action:
    queue, kind = wide.target_queue, ActionKind.DELETE
    return Action(
        kind, wide.nic, wide.key, wide.location, queue, None, why, wide.rule_name,
        generation=memory.table.generation(wide.key),
    )  # fmt: skip
