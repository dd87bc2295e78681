# SPDX-License-Identifier: GPL-2.0-or-later
"""What decisions remember between steps: the table, deferred moves, recent overflow. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.decide.candidates import Step
from atfnd.decide.owner import Lent, OwnerId, Ownership
from atfnd.decide.shares import Rates, move_every_ns, tenants_of
from atfnd.decide.table import FlowTable
from atfnd.decide.trials import Trials
from atfnd.model import (
    Action,
    Cpu,
    Flow,
    FlowKey,
    Migrant,
    Mode,
    NicView,
    Placement,
    Policy,
    Rss,
)

__all__ = ["NEVER_NS", "Buckets", "Elsewhere", "Memory", "Settling", "Spending", "Weight"]

_OVERFLOW_SHOWN = 256
_SETTLED_NS = 1_000_000_000  # an asynchronous driver has made up its mind about a rule
_DROPS = 7  # of one flow's rule by the NIC, before it is left to RSS
_BACK_OFF_NS = 1_000_000_000  # after the first; doubled after each
_LOOK_NS = 1_000_000_000  # between two looks at whose the queues are, if nothing else asks for one
_AGAIN_NS = 100_000_000  # after a move that was put off; doubled after each
_AGAIN_MAX_NS = 30_000_000_000
NEVER_NS = 1 << 63
_MAY_OWN = Placement.CORE, Placement.AUTO  # the latter while it is on its core

# A placement, the application's CPU, its thread's cpuset, the CPUs that rules dedicate.
StepsOf = tuple[Placement, int, frozenset[int] | None, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Settling:
    """Hysteresis between two moves of one flow, and how long an idle entry lives."""

    hold_down_ns: int
    t_delete_ns: int  # of flows whose policy names none
    t_delete_by_policy_ns: Mapping[str, int] = field(default_factory=dict)
    dwell_by_policy_ns: Mapping[str, int] = field(default_factory=dict)
    order_by_policy: Mapping[str, Mode] = field(default_factory=dict)
    owner_by_policy: Mapping[str, Migrant | None] = field(default_factory=dict)  # None: nobody
    leaving: Mapping[str, Mode] = field(default_factory=dict)  # orders of rules no longer in force
    placement_by_policy: Mapping[str, Placement] = field(default_factory=dict)
    dedicated: frozenset[int] = frozenset()  # CPUs, of all policies
    filters: Mapping[str, int] = field(default_factory=dict)  # percent, by kind of tenant
    queues: Mapping[str, int] = field(default_factory=dict)  # percent, by kind of tenant
    move_every_ns: Mapping[str, int] = field(default_factory=dict)  # by kind of tenant
    elsewhere: bool = False  # some flows go to another CPU than their application's

    @classmethod
    def of(cls, policy: Policy) -> Settling:
        """What the rules of a policy say, by their names."""
        steering = [rule for rule in policy.flows if rule.placement is not Placement.LEAVE]
        return cls(
            hold_down_ns=policy.hold_down_ns,
            t_delete_ns=max(rule.t_delete_ns for rule in policy.flows),
            t_delete_by_policy_ns={rule.name: rule.t_delete_ns for rule in policy.flows},
            dwell_by_policy_ns={rule.name: rule.dwell_ns for rule in policy.flows},
            order_by_policy={rule.name: rule.order for rule in steering},
            owner_by_policy={
                rule.name: rule.owner if rule.placement in _MAY_OWN else None for rule in steering
            },
            placement_by_policy={rule.name: rule.placement for rule in steering},
            dedicated=policy.dedicated(),
            filters={"user": policy.user_share.filters, "cgroup": policy.cgroup_share.filters},
            queues={"user": policy.user_share.queues, "cgroup": policy.cgroup_share.queues},
            move_every_ns=move_every_ns(policy),
            elsewhere=policy.elsewhere(),
        )

    def order(self, policy: str) -> Mode:
        """How a flow of this policy may be moved; strict when none is known, as of one adopted."""
        return self.order_by_policy.get(policy, self.leaving.get(policy, Mode.STRICT))

    def placement(self, policy: str) -> Placement:
        """As its rule says (`auto.placement_of`: what is in force); `core` when none is known."""
        return self.placement_by_policy.get(policy, Placement.CORE)


class Elsewhere(NamedTuple):
    """A flow with a rule that was observed on another queue than the rule's."""

    bytes: int  # at the last look
    looks: int  # with traffic, since the rule was last written
    attempts: int  # to write it anew


@dataclass(slots=True)
class Buckets:
    """The indirection table of one NIC: which flows hash to an entry, and when we moved it."""

    shape: tuple[bytes, int]  # key and size of the table that `entry` was computed for
    waiting: set[FlowKey] = field(default_factory=set)  # flows to be looked at
    entry: dict[FlowKey, int | None] = field(default_factory=dict)
    flows: dict[int | None, set[FlowKey]] = field(default_factory=dict)  # by entry
    recent: dict[FlowKey, tuple[int, int]] = field(default_factory=dict)  # bytes: then, recently
    moved_ns: dict[int, int] = field(default_factory=dict)  # by entry


class Weight(NamedTuple):
    """What a flow carries, and how far off it would be delivered without a filter of its own."""

    bytes: int  # at the last look
    at_ns: int
    bytes_per_s: float | None  # of late; None: looked at once
    mismatch: float  # 0: on its application's core; 1: on another one of that node

    @property
    def worth(self) -> float | None:
        """None: not measured yet."""
        return None if self.bytes_per_s is None else self.bytes_per_s * self.mismatch


@dataclass(slots=True)
class Spending:
    """The filters of one NIC: which are spoken for, and what they are worth (`decide.budget`)."""

    inserting: dict[FlowKey, Action] = field(default_factory=dict)  # asked for, not answered
    rewriting: dict[FlowKey, Action] = field(default_factory=dict)  # the same
    swaps: dict[FlowKey, FlowKey | None] = field(default_factory=dict)  # whose rule goes, for whom
    covers: set[FlowKey] = field(default_factory=set)  # for many flows: theirs would save others
    later: dict[FlowKey, tuple[int, int]] = field(default_factory=dict)  # of those: see `put_off`
    spans_later: tuple[int, int] = (0, 0)  # the same, of any span
    unused_ns: dict[FlowKey, int] = field(default_factory=dict)  # spans nobody comes by, since
    promised: set[FlowKey] = field(default_factory=set)  # a slot was cleared for them
    refused: bool = False  # the NIC found itself full since the last look
    weights: dict[FlowKey, Weight] = field(default_factory=dict)
    rss: Rss | None = None  # that `predicted` is by
    predicted: dict[FlowKey, int | None] = field(default_factory=dict)  # RSS's queue


@dataclass(slots=True)
class Memory:
    """Changed only by the functions of this room."""

    table: FlowTable
    settling: Settling
    deferred: dict[FlowKey, int] = field(default_factory=dict)  # key -> not before (ns)
    agenda: list[tuple[int, FlowKey]] = field(default_factory=list)  # a heap; also what is outdated
    overflowed: OrderedDict[FlowKey, Flow] = field(default_factory=OrderedDict)  # bounded
    thread_cpu: dict[int, tuple[int, int]] = field(default_factory=dict)  # tid -> CPU, since (ns)
    buckets: dict[str, Buckets] = field(default_factory=dict)  # by NIC; of those steered by RSS
    elsewhere: dict[FlowKey, Elsewhere] = field(default_factory=dict)
    listed_ns: dict[str, int] = field(default_factory=dict)  # NIC -> its rules were last listed
    dropped: dict[FlowKey, tuple[int, int]] = field(default_factory=dict)  # times, not before (ns)
    deferrals: dict[FlowKey, int] = field(default_factory=dict)  # in a row, of its move
    owned: dict[str, Ownership] = field(default_factory=dict)  # by NIC: whose its queues are
    load: dict[str, dict[OwnerId, tuple[int, int]]] = field(default_factory=dict)  # bytes
    cpus: Mapping[int, Cpu] = field(default_factory=dict)  # as last read
    busy: Mapping[int, int] = field(default_factory=dict)  # by CPU, in quarters (`load`)
    steps: dict[StepsOf, list[Step]] = field(default_factory=dict)  # of these CPUs; bounded
    cpusets: dict[int, frozenset[int] | None] = field(default_factory=dict)  # tid -> its cpuset
    spending: dict[str, Spending] = field(default_factory=dict)  # by NIC
    left: dict[FlowKey, int] = field(default_factory=dict)  # to go, by a new policy: its cookie
    lent: dict[str, Lent] = field(default_factory=dict)  # by NIC: its queues, whoever owns them
    queues_due_ns: dict[str, int] = field(default_factory=dict)  # by NIC: see whose queues are
    rates: Rates = field(default_factory=Rates)
    turns_ns: dict[FlowKey, int] = field(default_factory=dict)  # when a move may be, by its shares
    audited_ns: int = 0  # when what was used of late was last read
    trials: Trials = field(default_factory=Trials)  # of the placement `auto`
    overflow: int = 0  # flows turned away since start

    def lent_of(self, nic: NicView) -> Lent:
        """Of a NIC's queues. Where nobody said otherwise, home is where they are now."""
        lent = self.lent.setdefault(nic.name, Lent())
        for queue in nic.queues:
            if queue.cpu is not None:
                lent.homes.setdefault(queue.index, queue.cpu)
        return lent

    def online(self, nic: NicView) -> frozenset[int]:
        """The CPUs that are online, as last read; those of its queues, if none was."""
        known = frozenset(cpu.index for cpu in self.cpus.values() if cpu.online)
        return known or frozenset(queue.cpu for queue in nic.queues if queue.cpu is not None)

    def in_use(self, flow: Flow, idle_ns: int) -> bool:
        """It was used within `idle_ns` before the last audit, or since."""
        return flow.used_ns > self.audited_ns - idle_ns

    def unused(self, flow: Flow) -> None:
        """An entry is about to end. If its thread has no other one and owns a queue, see soon whose
        the queues are."""
        thread = flow.thread
        if thread is None or len(self.table.of_thread(thread.tid)) > 1:
            return
        ids = ("thread", thread.tid), ("process", thread.pid), ("cgroup", thread.cgroup)
        if any(each.owner in ids for each in self.owned.get(flow.nic, {}).values()):
            self.look_at_queues(flow.nic)

    def look_at_queues(self, nic: str) -> None:
        """See soon whose the queues of a NIC are: that goes through the whole table."""
        looked_ns = self.lent[nic].looked_ns if nic in self.lent else 0
        self.queues_due_ns.setdefault(nic, looked_ns + _LOOK_NS)

    def know_cpus(self, cpus: Iterable[Cpu]) -> None:
        """They have been read (again)."""
        self.cpus, self.steps = {cpu.index: cpu for cpu in cpus}, {}

    def defer(self, key: FlowKey, at_ns: int) -> None:
        """Look at this flow again, not before `at_ns`."""
        if self.deferred.get(key) == at_ns:
            return
        self.deferred[key] = at_ns
        heapq.heappush(self.agenda, (at_ns, key))

    def spending_of(self, nic: str) -> Spending:
        """Of a NIC's filters."""
        return self.spending.setdefault(nic, Spending())

    def next_due_ns(self) -> int | None:
        """When the first deferred flow, or a look at whose the queues are, is due."""
        flow_ns, queue_ns = self._next_flow_ns(), min(self.queues_due_ns.values(), default=None)
        return min((each for each in (flow_ns, queue_ns) if each is not None), default=None)

    def _next_flow_ns(self) -> int | None:
        while self.agenda and self.deferred.get(self.agenda[0][1]) != self.agenda[0][0]:
            heapq.heappop(self.agenda)
        return self.agenda[0][0] if self.agenda else None

    def take_due(self, now_ns: int) -> list[FlowKey]:
        """The flows that are due, which are deferred no more."""
        keys = []
        while (at_ns := self._next_flow_ns()) is not None and at_ns <= now_ns:
            _, key = heapq.heappop(self.agenda)
            del self.deferred[key]
            keys.append(key)
        return keys

    def settled(self, flow: Flow, now_ns: int) -> bool:
        """If the NIC were to drop this flow's rule by itself, it would have done so."""
        return now_ns - flow.moved_ns >= _SETTLED_NS

    def was_there(self, flow: Flow) -> bool:
        """Its rule was in the NIC's last list, and settled."""
        return self.settled(flow, self.listed_ns.get(flow.nic, 0))

    def dropped_by_nic(self, key: FlowKey, now_ns: int) -> str:
        """The NIC accepted this flow's rule and does not hold it: try again, later each time, and
        not for ever. Returns what to say of it."""
        times = self.dropped.get(key, (0, 0))[0] + 1
        again_ns = now_ns + (_BACK_OFF_NS << times - 1) if times < _DROPS else NEVER_NS
        self.dropped[key] = times, again_ns
        if again_ns != NEVER_NS:
            self.defer(key, again_ns)
        return self.why_dropped(key)

    def why_dropped(self, key: FlowKey) -> str:
        times, again_ns = self.dropped[key]
        often = "once" if times == 1 else f"{times} times"
        then = "left to RSS" if again_ns == NEVER_NS else "tried again later"
        return f"the NIC accepted its rule and dropped it {often}: {then}"

    def turn_ns(self, flow: Flow, now_ns: int) -> int:
        """When this flow may be moved, by the shares of whose it is: now, or its turn is kept."""
        at_ns = self.turns_ns.pop(flow.key, None)
        if at_ns is None:
            every_ns = self.settling.move_every_ns
            at_ns = self.rates.take(flow.nic, tenants_of(flow.thread), every_ns, now_ns)
        if at_ns > now_ns:
            self.turns_ns[flow.key] = at_ns
        return at_ns

    def put_off(self, flow: Flow, now_ns: int, *, tried: bool) -> None:
        """A move of this flow was not to be had: look again, later each time if it was not even
        tried."""
        times = 0 if tried else self.deferrals.get(flow.key, 0)
        self.deferrals[flow.key] = times + 1
        back_off_ns = max(self.settling.hold_down_ns, _AGAIN_NS) << min(times, 16)
        self.defer(flow.key, now_ns + min(back_off_ns, _AGAIN_MAX_NS))

    def forget_ended(self) -> None:
        """What was remembered of flows that are not in the table any more."""
        for of_flow in (self.dropped, self.deferrals, self.turns_ns):
            for key in [key for key in of_flow if self.table.get(key) is None]:
                del of_flow[key]

    def turn_away(self, flow: Flow) -> None:
        """Count a flow that found the table full, and keep it for show."""
        self.overflow += flow.key not in self.overflowed
        self.overflowed[flow.key] = flow
        self.overflowed.move_to_end(flow.key)
        while len(self.overflowed) > _OVERFLOW_SHOWN:
            self.overflowed.popitem(last=False)

    def readmit(self) -> set[int]:
        """Sockets of flows that were turned away, as many as the table has room for again."""
        room = self.table.capacity - len(self.table)
        first = list(self.overflowed.values())[:room]
        for flow in first:
            del self.overflowed[flow.key]
        return {flow.cookie for flow in first}
