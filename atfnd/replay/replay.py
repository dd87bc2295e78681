# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy would have decided by a recording: the daemon's own decisions, by its clock. Pure.

Every action succeeds at once, on a NIC that is armed: neither the moves that keep order nor a
kernel's refusal are here. Threads are taken to run where they ran, packets to arrive where the
replayed rules lead them, else where RSS does.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial

from atfnd.decide import audit, buckets, steer
from atfnd.decide.follow import followed
from atfnd.decide.memory import Memory, Settling
from atfnd.decide.prepare import prepare
from atfnd.decide.retire import gone
from atfnd.decide.table import FlowTable
from atfnd.model import (
    Action,
    ActionKind,
    Facts,
    FlowKey,
    Means,
    NicView,
    Outcome,
    Plan,
    Policy,
    SocketUse,
)
from atfnd.move.plan import in_order
from atfnd.nic.toeplitz import rss_entry
from atfnd.policy.match import Matcher, rule_budget
from atfnd.replay.recording import Audited, End, Gone, Line, Machine, Seen

__all__ = ["Decided", "Replay"]


@dataclass(frozen=True, slots=True)
class Decided:
    """An action, and when."""

    at_ns: int
    action: Action


@dataclass
class Replay:
    """Takes lines in their order. `decided` grows; `matched` are the flows each rule ever had."""

    policy: Policy
    decided: list[Decided] = field(default_factory=list)
    matched: dict[str, set[FlowKey]] = field(default_factory=lambda: defaultdict(set))
    bytes_seen: int = 0
    bytes_there: int = 0  # of those, on the application's CPU as recorded
    bytes_replayed: int = 0  # and as replayed
    most_filters: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        self.memory = Memory(FlowTable(self.policy.table_max), Settling.of(self.policy))
        self._matcher = Matcher(self.policy)
        self._nics: dict[str, NicView] = {}
        self._recorded: Machine | None = None
        self._last: dict[tuple[int, FlowKey], Seen] = {}
        self._counted: dict[tuple[int, FlowKey], tuple[int, int]] = {}  # when, bytes then
        self._rates: dict[tuple[int, FlowKey], int] = {}  # bit/s, the highest so far
        self._locations = 0

    def take(self, line: Line) -> None:
        """One line."""
        while (due_ns := self.memory.next_due_ns()) is not None and due_ns <= line.at_ns:
            self._carry_out(steer.due(self._nics, self.memory, due_ns), due_ns)
        match line:
            case Machine():
                self._machine(line)
            case Seen():
                self._last[line.event.cookie, line.event.key] = line
                self._seen(line)
            case Gone():
                self._carry_out(gone(line.cookie, self.memory), line.at_ns)
            case Audited():
                self._audited(line)
            case End():
                self.lost += line.lost
        self._turn(line.at_ns)

    def _machine(self, line: Machine) -> None:
        """NICs as they are; a queue that was moved here stays where it was moved."""
        before, self._recorded = self._recorded, line
        self.memory.know_cpus(line.topology.cpus)
        old = {} if before is None else {nic.name: nic for nic in before.nics}
        for nic in line.nics:
            if old.get(nic.name) == nic:
                continue
            budget = rule_budget(self.policy, nic.name, nic.caps.rule_slots)
            view = replace(nic, armed=True, budget=budget, manual=frozenset())
            self._nics[nic.name] = view
            dedicated = self.memory.settling.dedicated
            self._carry_out(prepare(view, line.topology, dedicated), line.at_ns)
            self._carry_out(
                steer.take_up(self._nics[nic.name], self.memory, line.at_ns), line.at_ns
            )

    def _seen(self, line: Seen) -> None:
        nic, event, now_ns = self._nics.get(line.nic), line.event, line.at_ns
        if nic is None:
            return
        comm = event.thread.comm if event.thread else None
        age_ns = now_ns - event.born_ns if event.born_ns is not None else 0
        rule = self._matcher.first_match(
            Facts(
                key=event.key,
                comm=comm,
                process=line.process,
                interface=line.nic,
                direction=event.direction,
                bytes=event.bytes,
                age_ns=age_ns,
                rate_bit_s=self._rates.get((event.cookie, event.key), 0),
            )
        )
        if rule is not None:
            self.matched[rule.name].add(event.key)
        queue = self._queue_of(event.key, nic, line.rss_queue)
        if queue is not None and event.rx_cpu is not None:
            event = event._replace(rx_cpu=_cpu(nic, queue), napi_id=_napi_id(nic, queue))
        self._carry_out(steer.seen(event, nic, rule, self.memory, now_ns), now_ns)

    def _audited(self, line: Audited) -> None:
        memory, now_ns = self.memory, line.at_ns
        uses = [self._audit(use, now_ns) for use in line.uses]
        self._carry_out(audit.check_sockets(uses, self._nics, memory, now_ns), now_ns)
        cpus = () if self._recorded is None else self._recorded.topology.cpus
        online = frozenset(cpu.index for cpu in cpus if cpu.online)
        for name in self._nics:
            self._carry_out(steer.own(self._nics[name], online, memory, now_ns), now_ns)
        self._carry_out(steer.retry(self._nics, memory, now_ns), now_ns)
        memory.readmit()

    def _audit(self, use: SocketUse, now_ns: int) -> SocketUse:
        """Count the bytes since the last audit: where they came, and where they would have. A flow
        that has no entry and is used is observed again, as the daemon has it."""
        place = use.cookie, use.key
        last = self._last.get(place)
        nic = None if last is None else self._nics.get(last.nic)
        if last is None or nic is None or use.rx_cpu is None:
            return use
        since_ns, then = self._counted.get(place, (last.at_ns, last.event.bytes))
        carried, took_ns = max(0, use.bytes - then), max(1, now_ns - since_ns)
        self._counted[place] = now_ns, use.bytes
        rate_bit_s = carried * 8 * 1_000_000_000 // took_ns
        self._rates[place] = max(self._rates.get(place, 0), rate_bit_s)
        cpu, queue = last.event.app_cpu, self._queue_of(use.key, nic, last.rss_queue)
        replayed = use if queue is None else use._replace(
            rx_cpu=_cpu(nic, queue), napi_id=_napi_id(nic, queue)
        )  # fmt: skip
        self.bytes_seen += carried
        self.bytes_there += carried * (use.rx_cpu == cpu)
        self.bytes_replayed += carried * (replayed.rx_cpu == cpu)
        if carried and self.memory.table.get(use.key) is None:
            event = last.event._replace(bytes=use.bytes)
            self._last[place] = last._replace(event=event)
            self._seen(last._replace(event=event, at_ns=now_ns))
        return replayed

    def _queue_of(self, key: FlowKey, nic: NicView, rss_queue: int | None) -> int | None:
        """Where the replayed rules and table deliver a flow; None: not known."""
        flow = self.memory.table.get(key)
        if flow is not None and flow.location is not None:
            return flow.target_queue
        if (port := self.memory.table.covering(key)) is not None:
            return port.target_queue
        if nic.means is Means.RSS and nic.rss is not None:
            entry = rss_entry(nic.rss, key)
            return rss_queue if entry is None else nic.rss.table[entry]
        return rss_queue

    def _carry_out(self, plan: Plan, now_ns: int) -> list[Outcome]:
        outcomes = []
        for action in in_order(plan):
            self._locations += action.kind is ActionKind.INSERT
            location = self._locations if action.location is None else action.location
            outcomes.append(Outcome(action, now_ns, 0, location, "as planned"))
            self.decided.append(Decided(now_ns, action))
            self._change(action)
            audit.settle(outcomes[-1], self.memory)
        filters = sum(self.memory.table.rules_in(name) for name in self._nics)
        self.most_filters = max(self.most_filters, filters)
        return outcomes

    def _change(self, action: Action) -> None:
        """The NIC as it is after an action."""
        nic = self._nics[action.nic]
        if action.kind is ActionKind.QUEUE_CPU and action.queue is not None:
            queues = (replace(q, cpu=action.new) if q.index == action.queue else q
                      for q in nic.queues)  # fmt: skip
            self._nics[action.nic] = replace(nic, queues=tuple(queues))
            if action.new is not None:
                followed(action.nic, action.queue, action.new, self.memory)
        elif action.knob == "rss" and nic.rss is not None:
            table = tuple(map(int, (action.value or "").split()))
            self._nics[action.nic] = replace(nic, rss=replace(nic.rss, table=table))
        elif action.knob is not None:
            knobs = {**nic.knobs, action.knob: action.value or ""}
            self._nics[action.nic] = replace(nic, knobs=knobs)

    def _turn(self, now_ns: int) -> None:
        """Entries of the indirection table whose flows wait."""
        for name, known in self.memory.buckets.items():
            before = self._nics[name]
            if known.waiting and before.rss is not None:
                plan = buckets.plan(before, partial(rss_entry, before.rss), self.memory, now_ns)
                outcomes = self._carry_out(plan, now_ns)
                buckets.settle(before, self._nics[name], outcomes, self.memory, now_ns)


def _napi_id(nic: NicView, queue: int) -> int | None:
    return next((each.napi_id for each in nic.queues if each.index == queue), None)


def _cpu(nic: NicView, queue: int) -> int | None:
    return next((each.cpu for each in nic.queues if each.index == queue), None)
