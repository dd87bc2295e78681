# SPDX-License-Identifier: GPL-2.0-or-later
"""Both directions of a forwarded, translated flow (NAT) on one CPU. Pure.

The answers of a translated flow are no mirror image, and no hash brings them to the CPU of the
other direction. A filter does: the direction that carries more stays where RSS delivers it, if that
is known, and the other one gets a filter to a queue of the same CPU. Otherwise both get one.

A rule of the policy says how many filters its translated flows may have. Those with most bytes a
second come first; a flow keeps its filters, unless another one carries clearly more. Flows of
sockets come before: nothing is taken from them, and they take what they need
(`engine.filters.budget`).

Each direction is an entry of the Flow-to-Core table, and is written and deleted as any other. Both
have the same cookie, which no socket has. The connection ends them.

A filter may bring a direction to another CPU, which sends by another TX queue, and nothing shows
when the one before is empty. So `strict` moves only what goes out by an interface of one channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from atfnd.engine.filters import budget
from atfnd.engine.placement import steer
from atfnd.engine.table.memory import Memory
from atfnd.engine.table.retire import gone, idle
from atfnd.model import (
    Action,
    Flow,
    FlowKey,
    FlowState,
    ForwardingRule,
    Mode,
    NicView,
    Plan,
    SocketUse,
    SteeringMethod,
    TranslatedFlow,
    Translation,
)
from atfnd.model.rss_hash import rss_index
from atfnd.policy.match.match import forwarding_rule

__all__ = ["adopted", "look", "onwards", "stays", "uses"]

_CLEARLY = 2.0  # times the bytes of one that has its filters
_LEAST_BYTES_PER_S = 100_000
_HELD_NS = 5_000_000_000  # it keeps its filters this long


class _End(NamedTuple):
    """One direction, where it comes in."""

    key: FlowKey
    nic: NicView
    onwards: NicView  # by which it goes out
    rss_cpu: int | None  # where RSS delivers it; None: not known
    bytes: int


class _Placed(NamedTuple):
    cookie: int
    now: Translation
    rule: ForwardingRule
    cpu: int
    ends: tuple[_End, ...]  # that need a filter


def look(
    known: Mapping[int, Translation | None], found: Sequence[Translation], memory: Memory,
    now_ns: int,
) -> Plan:  # fmt: skip
    """What translated flows need now. `known`: each that is steered, as it is now; None: its
    connection has ended. `found`: others that carry much."""
    held, plan = memory.translations.held, list[Action]()
    for cookie in [each for each in held if not memory.table.keys_of(each)]:
        del held[cookie]  # its entries have ended
    for cookie, now in known.items():
        if cookie in held and now is None:
            plan += gone(cookie, memory, "its connection has ended")
            if not memory.table.keys_of(cookie):
                del held[cookie]
        elif cookie in held and now is not None:
            memory.translations.seen(cookie, now, now_ns)
    ended = {cookie for cookie, now in known.items() if now is None}
    chosen = {each.cookie: each for each in _chosen(found, ended, memory, now_ns)}
    for cookie in [each for each in held if each not in chosen and each not in ended]:
        if _waits_for_nic(held[cookie].now, memory):
            continue
        plan += idle(cookie, memory, "its filters go to flows that carry more, or are not wanted")
        if not memory.table.keys_of(cookie):
            del held[cookie]
    for placed in chosen.values():
        plan += _placed(placed, memory, now_ns)
    return tuple(plan)


def uses(memory: Memory, now_ns: int) -> Iterator[SocketUse]:
    """What an audit would see if their entries were those of sockets."""
    for cookie, held in memory.translations.held.items():
        for key in memory.table.keys_of(cookie):
            counted = held.now.flow.bytes_of(key)
            used_ns = now_ns if counted is None else held.used_ns
            yield SocketUse(cookie, key, None, None, None, counted or 0, used_ns)


def adopted(found: Iterable[TranslatedFlow], memory: Memory, now_ns: int) -> list[SocketUse]:
    """These have filters of an earlier run: both keys of each, as `uses`."""
    translations, left = memory.translations, list[SocketUse]()
    for flow in found:
        cookie = translations.cookie(flow)
        translations.hold(cookie, Translation(flow, None, None, None), now_ns)
        left += (
            SocketUse(cookie, key, None, None, None, flow.bytes_of(key) or 0) for key in flow[:2]
        )
    return left


def onwards(flow: Flow | None, memory: Memory) -> int | None:
    """How many channels the interface has that a translated flow goes out by; 0: not known. None:
    it is none."""
    if flow is None or not flow.translated:
        return None
    held = memory.translations.held.get(flow.cookie)
    if held is None:
        return 0
    out = held.now.egress if flow.key == held.now.flow.original else held.now.ingress
    return 0 if out not in memory.nics else len(memory.nics[out].view.queues)


def stays(flow: Flow, rules: Iterable[ForwardingRule]) -> bool:
    """By another policy. One of an earlier run, which has no rule yet, is judged at the next
    look."""
    named = (rule.of_flows for rule in rules if rule.translated_max is not None)
    return flow.rule_name in ("", *named)


def _chosen(
    found: Iterable[Translation], ended: set[int], memory: Memory, now_ns: int
) -> Iterator[_Placed]:
    """Those that are to have filters: of each rule the first, as many as it may have."""
    held, translations = memory.translations.held, memory.translations
    every = {cookie: each.now for cookie, each in held.items() if cookie not in ended}
    known = {each.flow[:2] for each in every.values()}
    every |= {translations.new(): each for each in found if each.flow[:2] not in known}

    def first(cookie: int) -> float:
        bytes_per_s = every[cookie].bytes_per_s
        if cookie not in held:
            return bytes_per_s or 0.0
        if bytes_per_s is None or now_ns - held[cookie].since_ns < _HELD_NS:
            return inf
        return _CLEARLY * bytes_per_s

    left = {rule.name: rule.translated_max or 0 for rule in memory.in_force.forwarding}
    for cookie in sorted(every, key=first, reverse=True):
        if cookie not in held and first(cookie) < _LEAST_BYTES_PER_S:
            return
        if not any(left.values()):
            return
        placed = _place(cookie, every[cookie], memory)
        if placed is not None and len(placed.ends) <= left[placed.rule.name]:
            left[placed.rule.name] -= len(placed.ends)
            yield placed


def _place(cookie: int, now: Translation, memory: Memory) -> _Placed | None:
    """None: it needs no filter, or can have none."""
    if now.ingress not in memory.nics or now.egress not in memory.nics:
        return None
    first, second = memory.nics[now.ingress].view, memory.nics[now.egress].view
    if not (_takes_filters(first) and _takes_filters(second)):
        return None
    rule = forwarding_rule(memory.in_force.forwarding, first.name, second.name)
    if rule is None or rule.translated_max is None:
        return None
    ends = (
        _end(now.flow.original, first, second, now.flow.original_bytes),
        _end(now.flow.reply, second, first, now.flow.reply_bytes),
    )
    if (cpu := _cpu(cookie, ends, memory)) is None:
        return None
    here = {*memory.table.keys_of(cookie)}
    needed = tuple(each for each in ends if each.rss_cpu != cpu or each.key in here)
    if not needed:
        return None
    several = {each.onwards.name for each in needed if len(each.onwards.queues) > 1}
    if rule.order is Mode.STRICT and several:
        memory.translations.held_back[rule.name] = min(several)
        return None
    return _Placed(cookie, now, rule, cpu, needed)


def _waits_for_nic(now: Translation, memory: Memory) -> bool:
    """A NIC of it takes no filters for now: it is down or was disarmed, and may be back soon."""
    nics = (memory.nics.get(name) for name in (now.ingress, now.egress) if name is not None)
    return any(nic is not None and not _takes_filters(nic.view) for nic in nics)


def _takes_filters(nic: NicView) -> bool:
    return nic.armed and nic.up and nic.method is SteeringMethod.FILTERS


def _end(key: FlowKey, nic: NicView, onwards: NicView, counted: int | None) -> _End:
    queue = nic.queues[0].index if len(nic.queues) == 1 else rss_index(nic, key)
    cpu = next((each.cpu for each in nic.queues if each.index == queue), None)
    return _End(key, nic, onwards, cpu, counted or 0)


def _cpu(cookie: int, ends: tuple[_End, _End], memory: Memory) -> int | None:
    """The CPU for both directions: where they are already, else where RSS delivers the one that
    carries more, else the one with the fewest filters. None: the NICs have no CPU in common."""
    served = [{each.cpu for each in end.nic.queues if each.cpu is not None} for end in ends]
    common = (served[0] & served[1]) - memory.in_force.dedicated
    flows = memory.table.of_cookie(cookie)
    here = {flow.key for flow in flows}
    for flow in flows:
        bare = (end for end in ends if end.key not in here)
        if flow.app_cpu in common and all(end.rss_cpu == flow.app_cpu for end in bare):
            return flow.app_cpu
    for end in sorted(ends, key=lambda end: -end.bytes):
        if end.rss_cpu in common:
            return end.rss_cpu

    def filters_on(cpu: int) -> int:
        return sum(
            memory.table.filters_on(end.nic.name, queue.index)
            for end in ends
            for queue in end.nic.queues
            if queue.cpu == cpu
        )

    return min(common, key=lambda cpu: (filters_on(cpu), cpu), default=None)


def _placed(placed: _Placed, memory: Memory, now_ns: int) -> Plan:
    """The entries of a flow that was chosen, and what is due for them."""
    table, cookie, rule = memory.table, placed.cookie, placed.rule.of_flows
    plan = list[Action]()
    for end in placed.ends:
        old = table.get(end.key)
        if old is not None and old.cookie != cookie:
            continue  # of a socket
        if old is None:
            if table.full() or budget.no_room(end.nic, memory, end.key) is not None:
                continue
            if _entries(rule, memory) >= (placed.rule.translated_max or 0):
                continue  # those that are not wanted any more go first
            new = _entry(end, placed, now_ns)
        elif old.state is FlowState.OVERFLOW:
            table.remove(end.key)  # a socket has its filter
            continue
        else:
            new = old._replace(rule_name=rule, app_cpu=placed.cpu, target_cpu=placed.cpu)
            if new == old:
                continue
        table.put(new)
        plan += steer.take_up(end.nic, memory, now_ns, only=[end.key])
    if table.keys_of(cookie):
        memory.translations.hold(cookie, placed.now, now_ns)
    else:
        memory.translations.held.pop(cookie, None)
    return tuple(plan)


def _entries(rule: str, memory: Memory) -> int:
    """Of translated flows under a rule, with a filter or without one yet."""
    every = map(memory.table.of_cookie, memory.translations.held)
    return sum(flow.rule_name == rule for flows in every for flow in flows)


def _entry(end: _End, placed: _Placed, now_ns: int) -> Flow:
    return Flow(
        key=end.key, cookie=placed.cookie, nic=end.nic.name, state=FlowState.WANTED,
        app_cpu=placed.cpu, thread=None, target_queue=None, target_cpu=placed.cpu, location=None,
        rx_queue=None, rx_cpu=None, bytes=end.bytes, used_ns=now_ns, moved_ns=0,
        rule_name=placed.rule.of_flows, why=steer.BOTH_WAYS.format(placed.cpu),
    )  # fmt: skip
