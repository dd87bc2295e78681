# SPDX-License-Identifier: GPL-2.0-or-later
"""What decisions remember between steps: the table, the rules in force, the NICs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from atfnd.compare.trials import Trials
from atfnd.engine.balancers import Balancers
from atfnd.engine.cpu_budget import CpuBudget
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.hash_key import Spread
from atfnd.engine.ownership.owner import Lent, OwnerId, Ownership
from atfnd.engine.ownership.shares import MoveRates, move_every_ns, tenants_of
from atfnd.engine.placement.candidates import Step
from atfnd.engine.placement.load import FullCpus
from atfnd.engine.settings import AskedSettings
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.trials.subjects import PLACING, RECEIVING, Application
from atfnd.model import (
    Action,
    Cpu,
    Distance,
    Flow,
    FlowKey,
    FlowRule,
    ForwardingRule,
    HostSetting,
    InterfaceRule,
    Migrant,
    Mode,
    NicView,
    Node,
    Placement,
    Policy,
    Reception,
    Rss,
    SoftirqBudget,
    Thread,
)
from atfnd.model.nic import RFS_FLOWS
from atfnd.model.reason import Code, Why
from atfnd.model.rests import SECONDS, Ladder, Rests
from atfnd.move.verdict import Verdict

__all__ = [
    "NEVER_NS",
    "Buckets",
    "FoundFull",
    "HostKnown",
    "Memory",
    "NicMemory",
    "QueueReceptions",
    "RulesInForce",
    "Spending",
    "ThreadFacts",
]

_OVERFLOW_SHOWN = 256
_UNTIL_LISTED_NS = 1_000_000_000  # until an asynchronous driver has accepted or dropped a rule
_DROPS = 7  # times that the NIC drops a flow's rule before the flow is left to RSS
_LOOK_NS = 1_000_000_000  # between two looks at queue owners, if nothing asks for one earlier
_AGAIN_NS = 100_000_000  # after a move that was put off; doubled after each
_AGAIN_MAX_NS, _BARRED_MAX_NS = 4_000_000_000, 30_000_000_000
NEVER_NS = 1 << 63
_MAY_OWN = Placement.CORE, Placement.AUTO  # AUTO while it is on its core

# A placement, the application's CPU, its thread's cpuset, the CPUs that rules dedicate.
StepsOf = tuple[Placement, int, frozenset[int] | None, frozenset[int], Distance]


@dataclass(frozen=True, slots=True)
class RulesInForce:
    """The rules of the policy by name, and its terms for all flows."""

    hold_down_ns: int
    t_delete_ns: int  # of flows without a rule
    by_name: Mapping[str, FlowRule] = field(default_factory=dict)
    leaving: Mapping[str, Mode] = field(default_factory=dict)  # orders of rules no longer in force
    dedicated: frozenset[int] = frozenset()  # CPUs, of all rules
    filters: Mapping[str, int] = field(default_factory=dict)  # percent, by kind of tenant
    queues: Mapping[str, int] = field(default_factory=dict)  # percent, by kind of tenant
    move_every_ns: Mapping[str, int] = field(default_factory=dict)  # by kind of tenant
    elsewhere: bool = False  # some flows go to another CPU than that of their application
    interfaces: tuple[InterfaceRule, ...] = ()
    forwarding: tuple[ForwardingRule, ...] = ()
    softirq_budget: SoftirqBudget = field(default_factory=SoftirqBudget)

    @classmethod
    def of(cls, policy: Policy) -> RulesInForce:
        return cls(
            hold_down_ns=policy.hold_down_ns,
            t_delete_ns=max(rule.t_delete_ns for rule in policy.flows),
            by_name={rule.name: rule for rule in policy.flows},
            dedicated=policy.dedicated(),
            filters={"user": policy.user_share.filters, "cgroup": policy.cgroup_share.filters},
            queues={"user": policy.user_share.queues, "cgroup": policy.cgroup_share.queues},
            move_every_ns=move_every_ns(policy),
            elsewhere=policy.elsewhere(),
            interfaces=tuple(policy.interfaces),
            forwarding=policy.forwarding,
            softirq_budget=policy.softirq_budget,
        )

    def steering(self) -> list[FlowRule]:
        """The rules that do not leave their flows alone."""
        return [rule for rule in self.by_name.values() if rule.placement is not Placement.LEAVE]

    def order(self, name: str) -> Mode:
        """How a flow of this rule may be moved; strict when the rule is not known, as for an
        adopted flow."""
        rule = self._steering(name)
        return self.leaving.get(name, Mode.STRICT) if rule is None else rule.order

    def placement(self, name: str) -> Placement:
        """The rule's placement (`auto.placement_of` gives the one in force); `core` when the rule
        is not known."""
        rule = self._steering(name)
        return Placement.CORE if rule is None else rule.placement

    def owner(self, name: str) -> Migrant | None:
        """The kind of owner that takes a flow of this rule along. None: none does."""
        rule = self._steering(name)
        if rule is None:
            return Migrant.THREAD
        return rule.owner if rule.placement in _MAY_OWN else None

    def filters_max(self, name: str) -> int | None:
        """The most filters of one NIC for the flows and ports of this rule. None: no limit."""
        rule = self.by_name.get(name)
        return None if rule is None else rule.filters_max

    def dwell_ns(self, name: str) -> int:
        """How long a flow of this rule is used elsewhere before it is moved."""
        rule = self.by_name.get(name)
        return 0 if rule is None else rule.dwell_ns

    def idle_ns(self, name: str) -> int:
        """How long an entry of this rule lives without use."""
        rule = self.by_name.get(name)
        return self.t_delete_ns if rule is None else rule.t_delete_ns

    def _steering(self, name: str) -> FlowRule | None:
        rule = self.by_name.get(name)
        return None if rule is None or rule.placement is Placement.LEAVE else rule


@dataclass(slots=True)
class Buckets:
    """The indirection table of one NIC. Which flows hash to an entry is in their records."""

    shape: tuple[bytes, int]  # key and size of the table that their entries were computed for
    moved_ns: dict[int, int] = field(default_factory=dict)  # by entry


class FoundFull(NamedTuple):
    """The NIC refused one filter more than `ours`; until then it is not asked again."""

    ours: int
    until_ns: int
    pause_ns: int


@dataclass(slots=True)
class Spending:
    """The filters of one NIC, beside what the records of its flows say (`engine.filters.budget`).
    The keys here are of ports, and have no entry as long as they have no filter."""

    covers: set[FlowKey] = field(default_factory=set)  # their filter would save others
    promised: set[FlowKey] = field(default_factory=set)  # of these: a slot was cleared for them
    later: Rests[FlowKey] = field(default_factory=Rests)  # their filter could not be written
    found_full: dict[int, FoundFull] = field(default_factory=dict)  # by address family
    refused: bool = False  # the NIC found itself full since the last look
    look: int = 0  # how often filters were weighed
    rss: tuple[int, Rss | None] = (0, None)  # its number, that `FlowRecord.rss` is by


@dataclass(slots=True)
class RfsQueues:
    """RFS on queues that nobody owns (`engine.placement.unowned`), by queue."""

    used_ns: dict[int, int] = field(default_factory=dict)  # by a flow that is not at home there
    look: bool = False  # a flow that stays elsewhere was reported since the last look
    switched_off: Rests[int] = field(default_factory=Rests)
    hands_on: dict[int, int] = field(default_factory=dict)  # as the observer knows it
    said: Why | None = None  # why no queue may have it, as said last


@dataclass(slots=True)
class QueueReceptions:
    """What takes packets out of the rings of one NIC's queues (`engine.reception`)."""

    of_rules: dict[int, tuple[Reception, str]] = field(default_factory=dict)  # by queue
    why_not: dict[int, Why] = field(default_factory=dict)  # by queue: it is not as wanted
    auto: Trials[int, Reception] = field(default_factory=lambda: Trials(RECEIVING))  # by queue


@dataclass(slots=True)
class NicMemory:
    """What is known of one NIC, beside its flows, from when it is attached until it is gone."""

    view: NicView
    armed_after_pause: bool = False
    buckets: Buckets | None = None  # only where RSS steers
    owned: Ownership = field(default_factory=dict)  # the owner of each queue
    lent: Lent = field(default_factory=Lent)  # its queues, whether owned or not
    displaced: dict[int, int] = field(default_factory=dict)  # queue: its CPU that went offline
    settings: AskedSettings = field(default_factory=AskedSettings)
    rfs: RfsQueues = field(default_factory=RfsQueues)
    reception: QueueReceptions = field(default_factory=QueueReceptions)
    trials: Trials[Application, Placement] = field(default_factory=lambda: Trials(PLACING))
    spread: Spread = field(default_factory=Spread)  # by the key of its RSS hash
    load: dict[OwnerId, tuple[int, int]] = field(default_factory=dict)  # bytes
    queues_due_ns: int | None = None  # time of the next look at queue owners
    spending: Spending = field(default_factory=Spending)
    rates: MoveRates = field(default_factory=MoveRates)
    listed_ns: int = 0  # its filters were last listed
    listeners: Listeners | None = None  # None: listeners are not watched
    strays: dict[FlowKey | None, Action] = field(default_factory=dict)  # `filters.strays`
    last_end: dict[int | None, tuple[Verdict, Why]] = field(default_factory=dict)  # by queue

    def stand(self, *, armed: bool, paused: bool = False) -> None:
        """Whether it may be written to, and whether that waits for the end of a pause."""
        self.view = replace(self.view, armed=armed, paused=paused)

    @property
    def armed_again(self) -> bool:
        """It is armed, or will be when its pause ends."""
        return self.armed_after_pause if self.view.paused else self.view.armed

    @property
    def has_our_rfs(self) -> bool:
        """Some queue has RFS that we have switched on, and had none before."""
        found = self.settings.found.items()
        return any(name.startswith(RFS_FLOWS) and value == "0" for name, value in found)

    def put_off_and_closed(self) -> list[FlowKey]:
        """Ports whose filter could not be written, and where nobody listens any more."""
        ports = () if self.listeners is None else self.listeners.sockets
        return [key for key in self.spending.later if key not in ports]


class ThreadFacts(NamedTuple):
    """Of one thread. It runs where the newest report of any of its sockets has it."""

    cpu: int | None = None
    since_ns: int = -1
    cpuset: frozenset[int] | None = None  # None: it may run anywhere, or nobody asked


_NO_FACTS = ThreadFacts()


@dataclass(slots=True)
class HostKnown:
    """Settings of the whole machine (`engine.host_settings`)."""

    settings: Mapping[str, HostSetting] = field(default_factory=dict)  # as last read
    # What the kernel refused: the value, None to put it back; and what that left, in words.
    refused: dict[str, tuple[str | None, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Memory:
    """Changed only by the functions of this room."""

    table: FlowTable
    in_force: RulesInForce
    nics: dict[str, NicMemory] = field(default_factory=dict)  # those that are served
    threads: dict[int, ThreadFacts] = field(default_factory=dict)  # by tid
    cpus: Mapping[int, Cpu] = field(default_factory=dict)  # as last read
    nodes: tuple[Node, ...] = ()
    busy: Mapping[int, int] = field(default_factory=dict)  # by CPU, percent of its time
    full: FullCpus = field(default_factory=FullCpus)
    steps: dict[StepsOf, list[Step]] = field(default_factory=dict)  # of these CPUs; bounded
    audited_ns: int = 0  # when recent use was last read
    balancers: Balancers = field(default_factory=Balancers)  # every irqbalance that runs
    cpu: CpuBudget = field(default_factory=lambda: CpuBudget(1.0))  # of the daemon itself
    host: HostKnown = field(default_factory=HostKnown)  # of the whole machine
    overflow: int = 0  # flows turned away since start

    @classmethod
    def of(cls, policy: Policy) -> Memory:
        """Nothing is known yet."""
        cpu = CpuBudget(policy.cpu_share)
        return cls(FlowTable(policy.table_max), RulesInForce.of(policy), cpu=cpu)

    def thread(self, thread: Thread | None) -> ThreadFacts:
        """What is known of it."""
        return _NO_FACTS if thread is None else self.threads.get(thread.tid, _NO_FACTS)

    def know_cpusets(self, cpusets: Mapping[int, frozenset[int] | None]) -> None:
        """By tid, as just read."""
        for tid, cpuset in cpusets.items():
            self.threads[tid] = self.threads.get(tid, _NO_FACTS)._replace(cpuset=cpuset)

    def lent_of(self, nic: NicView) -> Lent:
        """What is remembered of a NIC's queues. A queue's home is where it is now, unless one was
        set."""
        lent = self.nics[nic.name].lent
        for queue in nic.queues:
            if queue.cpu is not None:
                lent.homes.setdefault(queue.index, queue.cpu)
        return lent

    def online(self, nic: NicView) -> frozenset[int]:
        """The CPUs that are online, as last read; those of its queues, if they were never read."""
        known = frozenset(cpu.index for cpu in self.cpus.values() if cpu.online)
        return known or frozenset(queue.cpu for queue in nic.queues if queue.cpu is not None)

    def knows_flows(self) -> bool:
        """An audit has something to compare with sockets, or something to forget."""
        if len(self.table) or self.table.overflowed or self.threads:
            return True
        return any(nic.put_off_and_closed() for nic in self.nics.values())

    def in_use(self, flow: Flow, idle_ns: int) -> bool:
        """It was used within `idle_ns` before the last audit, or since."""
        return flow.used_ns > self.audited_ns - idle_ns

    def unused(self, flow: Flow) -> None:
        """An entry is about to end. If its thread has no other entry and owns a queue, look at
        queue owners soon."""
        thread = flow.thread
        if thread is None or len(self.table.of_thread(thread.tid)) > 1:
            return
        ids = ("thread", thread.tid), ("process", thread.pid), ("cgroup", thread.cgroup)
        if any(each.owner in ids for each in self.nics[flow.nic].owned.values()):
            self.look_at_queues(flow.nic)

    def look_at_queues(self, nic: str) -> None:
        """Look soon at the queue owners of a NIC: that reads the whole table."""
        known = self.nics[nic]
        if known.queues_due_ns is None:
            known.queues_due_ns = known.lent.looked_ns + _LOOK_NS

    def know_cpus(self, cpus: Iterable[Cpu], nodes: tuple[Node, ...] = ()) -> None:
        """The CPUs have been read (again)."""
        self.cpus, self.nodes, self.steps = {cpu.index: cpu for cpu in cpus}, nodes, {}

    def next_due_ns(self) -> int | None:
        """When the first deferred flow, or a look at whose the queues are, is due."""
        all_ns = self.table.next_due_ns(), *(nic.queues_due_ns for nic in self.nics.values())
        return min((each for each in all_ns if each is not None), default=None)

    def would_be_listed(self, flow: Flow, now_ns: int) -> bool:
        """If the NIC were going to drop this flow's rule, it would have done so."""
        return now_ns - flow.moved_ns >= _UNTIL_LISTED_NS

    def was_there(self, flow: Flow) -> bool:
        """Its filter was in the NIC's last list, and had had the time to be."""
        return self.would_be_listed(flow, self.nics[flow.nic].listed_ns)

    def dropped_by_nic(self, key: FlowKey, now_ns: int) -> Why:
        """The NIC accepted this flow's rule and does not hold it: try again, later each time, and
        not for ever. Returns what to say about it."""
        notes = self.table.noted(key)
        times = notes.dropped[0] + 1
        again_ns = now_ns + SECONDS.rest_ns(times - 1) if times < _DROPS else NEVER_NS
        self.table.note(key, replace(notes, dropped=(times, again_ns)))
        if again_ns != NEVER_NS:
            self.table.defer(key, again_ns)
        return self.why_dropped(key)

    def not_dropped(self, key: FlowKey) -> None:
        """The NIC holds this flow's rule, or gets it as if it had never dropped one."""
        notes = self.table.noted(key)
        if notes.dropped[0]:
            self.table.note(key, replace(notes, dropped=(0, 0)))

    def why_dropped(self, key: FlowKey) -> Why:
        times, again_ns = self.table.noted(key).dropped
        often = "once" if times == 1 else f"{times} times"
        return (Code.DROPPED_FOR_GOOD if again_ns == NEVER_NS else Code.DROPPED)(often)

    def turn_ns(self, flow: Flow, now_ns: int) -> int:
        """When this flow may be moved, by the shares of its tenants: now, or at the turn that it
        keeps."""
        notes = self.table.noted(flow.key)
        at_ns = notes.turn_ns
        if at_ns is None:
            every_ns = self.in_force.move_every_ns
            rates = self.nics[flow.nic].rates
            at_ns = rates.take(tenants_of(flow.thread), every_ns, now_ns)
        turn_ns = at_ns if at_ns > now_ns else None
        if notes.turn_ns != turn_ns:
            self.table.note(flow.key, replace(notes, turn_ns=turn_ns))
        return at_ns

    def put_off(self, flow: Flow, why: Why, now_ns: int, *, barred: bool) -> bool:
        """A move of this flow did not happen: look again, later each time for the same reason,
        whatever the numbers in it are. What was tried, or decided by what has changed meanwhile,
        may succeed the next time, and is never left for as long as what is `barred` (`Ended`).
        False: it was put off for this reason before."""
        reason = why.shape()
        notes = self.table.noted(flow.key)
        times = notes.deferrals if reason == notes.put_off or barred else 0
        rests_ns = now_ns + SECONDS.rest_ns(times)
        put_off = replace(notes, deferrals=times + 1, put_off=reason, rests_ns=rests_ns)
        self.table.note(flow.key, put_off)
        most_ns = _BARRED_MAX_NS if barred else _AGAIN_MAX_NS
        again = Ladder(max(self.in_force.hold_down_ns, _AGAIN_NS), most_ns)
        self.table.defer(flow.key, now_ns + again.rest_ns(times))
        return reason != notes.put_off

    def not_put_off(self, key: FlowKey) -> None:
        """A move of this flow has happened."""
        notes = self.table.noted(key)
        if notes.deferrals:
            self.table.note(key, replace(notes, deferrals=0, put_off=(), rests_ns=0))

    def is_pinned(self, flow: Flow) -> bool:
        """It keeps the queue of its port's rule by a rule of its own, until that one is deleted."""
        port, listeners = self.table.covering(flow.key), self.nics[flow.nic].listeners
        return port is not None and listeners is not None and port.key in listeners.unwanted

    def turn_away(self, flow: Flow) -> None:
        """Count a flow that found the table full, and keep it for show."""
        known = self.table.overflowed
        self.overflow += flow.key not in known
        known[flow.key] = flow
        known.move_to_end(flow.key)
        while len(known) > _OVERFLOW_SHOWN:
            known.popitem(last=False)

    def readmit(self) -> set[int]:
        """Sockets of flows that were turned away, as many as now fit into the table."""
        room = self.table.capacity - len(self.table)
        first = list(self.table.overflowed.values())[:room]
        for flow in first:
            del self.table.overflowed[flow.key]
        return {flow.cookie for flow in first}
