# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy would have decided by a recording: the daemon's own decisions, by its clock. Pure.

Every action succeeds at once, on a NIC that is armed: neither the moves that keep order nor a
kernel's refusal are here. Threads are taken to run where they ran, packets to arrive where the
replayed rules lead them, else where RSS does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from atfnd.decide import aggregate, audit, birth, buckets, budget, spans, steer
from atfnd.decide.birth import Birth
from atfnd.decide.follow import followed
from atfnd.decide.memory import Memory, Settling
from atfnd.decide.newborn import Newborn, ordered
from atfnd.decide.prepare import prepare
from atfnd.decide.retire import gone
from atfnd.decide.table import FlowTable
from atfnd.model import (
    Action,
    ActionKind,
    Connecting,
    FlowKey,
    Listening,
    NicView,
    Outcome,
    Plan,
    Policy,
    SocketGone,
    SocketUse,
    ThreadReads,
    Topology,
)
from atfnd.move.plan import in_order
from atfnd.nic.toeplitz import rss_entry
from atfnd.policy.match import rule_budget
from atfnd.replay.delivery import as_moved, by_rss, changed, cpu_of, delivered, napi_id_of
from atfnd.replay.matching import Matching
from atfnd.replay.recording import (
    Audited,
    Births,
    End,
    Gone,
    Heard,
    Line,
    Listeners,
    LookAt,
    Looked,
    Machine,
    Seen,
)
from atfnd.replay.sockets import Sockets

__all__ = ["Decided", "Replay"]


@dataclass(frozen=True, slots=True)
class Decided:
    """An action, and when."""

    at_ns: int
    action: Action


@dataclass
class Replay:
    """Takes lines in their order. `decided` grows."""

    policy: Policy
    decided: list[Decided] = field(default_factory=list)
    bytes_seen: int = 0
    bytes_there: int = 0  # of those, on the application's CPU as recorded
    bytes_replayed: int = 0  # and as replayed
    most_filters: int = 0
    lost: int = 0
    format: int = 0  # of the recording

    def __post_init__(self) -> None:
        self.memory = Memory(FlowTable(self.policy.table_max), Settling.of(self.policy))
        self.matching, self._newborn = Matching(self.policy), Newborn()
        self._sockets = Sockets()
        self._nics: dict[str, NicView] = {}
        self._recorded: dict[str, NicView] = {}
        self._topology = Topology((), ())
        self._locations = 0

    def take(self, line: Line) -> None:
        """One line."""
        while (due_ns := self.memory.next_due_ns()) is not None and due_ns <= line.at_ns:
            self._carry_out(steer.due(self._nics, self.memory, due_ns), due_ns)
        match line:
            case Machine():
                self._machine(line)
            case Seen():
                self._sockets.saw(line)
                self._seen(line)
            case Gone():
                self._carry_out(gone(line.cookie, self.memory), line.at_ns)
            case Births():
                self._born(line)
            case Listeners():
                for nic, found in line.nics.items():
                    self._newborn.found(nic, found, self.memory, line.at_ns)
            case Looked():
                self._sockets.looked(line)
                self._look(line.at, line.at_ns)
            case Audited():
                self._audited(line)
            case End():
                self.lost += line.lost
        self._turn(line.at_ns)

    def _machine(self, line: Machine) -> None:
        """NICs as they are; a queue that was moved here stays where it was moved."""
        old, self._recorded = self._recorded, {nic.name: nic for nic in line.nics}
        self._topology, self.format = line.topology, line.format
        self.memory.know_cpus(line.topology.cpus)
        for nic in line.nics:
            if old.get(nic.name) == nic:
                continue
            budget = rule_budget(self.policy, nic.name, nic.caps.rule_slots)
            view = replace(nic, armed=True, budget=budget, manual=frozenset())
            view = as_moved(view, self._nics.get(nic.name))
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
        rule = self.matching.seen(line)
        queue = delivered(event.key, nic, line.rss_queue, self.memory.table)
        if queue is not None and event.rx_cpu is not None:
            event = event._replace(rx_cpu=cpu_of(nic, queue), napi_id=napi_id_of(nic, queue))
        self._carry_out(steer.seen(event, nic, rule, self.memory, now_ns), now_ns)

    def _born(self, line: Births) -> None:
        """Nobody else is in doubt: whoever was answered, or accepted, was so before its rule."""
        memory, now_ns = self.memory, line.at_ns
        events = [e.event for e in line.events if not isinstance(e.event, ThreadReads)]
        fresh = self._newborn.connects.heard(events, memory)
        for each in line.events:
            self.matching.hear(each)
            if isinstance(each.event, Connecting) and each.event in fresh:
                self._connecting(each.event, each, now_ns)
        for each in line.events:
            if isinstance(each.event, Listening) and len(each.nics) == 1:
                [nic] = each.nics
                self._bear(self._newborn.opened(each.event, nic, memory), now_ns)
            elif isinstance(each.event, ThreadReads):
                for nic in each.nics:
                    self._newborn.read(each.event, nic)
            elif isinstance(each.event, SocketGone):
                plan = self._newborn.closed(each.event.cookie, memory, now_ns)
                self._carry_out(plan, now_ns)

    def _connecting(self, event: Connecting, heard: Heard, now_ns: int) -> None:
        for name, rss_queue in heard.nics.items():
            nic, rule = self._nics.get(name), ordered(self.matching.connecting(event, name))
            if nic is None or rule is None:
                continue
            if birth.again(event, nic, rule, self.memory, now_ns):
                return
            queue = by_rss(event.key, nic, rss_queue)
            born = self._newborn.connecting(event, nic, rule, queue, self.memory, now_ns)
            self._bear([] if born is None else [born], now_ns)

    def _look(self, at: LookAt | None, now_ns: int) -> None:
        """At the ports, or at flows that may share a filter."""
        for name in self._nics if at is LookAt.PORTS and self._newborn.listening() else ():
            of_port = partial(self.matching.of_port, name)
            look = partial(self._newborn.look_at_ports, self._nics[name], of_port)
            self._bear(look(self._uses(), self.memory, now_ns), now_ns)
        if at is not LookAt.SPANS:
            return
        for name in self._nics:
            if spans.wanted(self._nics[name], self.memory):
                of_many = partial(self.matching.of_many, name)
                look = partial(self._newborn.look_at_spans, self._nics[name], of_many)
                self._bear(look(self._uses(), self.memory, now_ns), now_ns)
        for nic in self._nics.values():
            aggregate.stranded(nic, self.memory, now_ns)

    def _uses(self) -> Sequence[SocketUse]:
        """Every connected socket, by the queue that it would come through."""
        return [
            self._delivered(SocketUse(each.cookie, each.key, None, each.napi_id, None, 0))
            for each in self._sockets.every()
        ]

    def _bear(self, births: Iterable[Birth], now_ns: int) -> None:
        for each in births:
            self._carry_out((each.action,), now_ns)

    def _audited(self, line: Audited) -> None:
        memory, now_ns = self.memory, line.at_ns
        uses = [self._audit(use, now_ns) for use in line.uses if not use.key.wide]
        known = {(use.cookie, use.key) for use in uses}
        born = self._newborn.uses(memory, now_ns)
        uses += [use for use in born if (use.cookie, use.key) not in known]
        self._carry_out(audit.check_sockets(uses, self._nics, memory, now_ns), now_ns)
        online = frozenset(cpu.index for cpu in self._topology.cpus if cpu.online)
        for name in self._nics:
            self._carry_out(steer.own(self._nics[name], online, memory, now_ns), now_ns)
        for nic in self._nics.values():
            rss = partial(self._rss_queue, nic)
            budget.weigh(nic, self._topology, rss, memory, now_ns)
        self._carry_out(steer.retry(self._nics, memory, now_ns), now_ns)
        for name in self._nics:
            self._carry_out(budget.swaps(self._nics[name], memory, now_ns), now_ns)
        memory.readmit()

    def _audit(self, use: SocketUse, now_ns: int) -> SocketUse:
        """Count the bytes since the last audit: where they came, and where they would have. A flow
        that has no entry and is used is observed again, as the daemon has it."""
        last, replayed = self._sockets.last(use), self._delivered(use)
        if last is None or last.nic not in self._nics or use.rx_cpu is None:
            return replayed
        carried, took_ns = self._sockets.count(use, last.event, now_ns)
        self.matching.measure(use.cookie, use.key, carried, took_ns)
        cpu = last.event.app_cpu
        self.bytes_seen += carried
        self.bytes_there += carried * (use.rx_cpu == cpu)
        self.bytes_replayed += carried * (replayed.rx_cpu == cpu)
        if carried and self.memory.table.get(use.key) is None:
            event = last.event._replace(bytes=use.bytes)
            self._sockets.saw(last._replace(event=event))
            self._seen(last._replace(event=event, at_ns=now_ns))
        return replayed

    def _delivered(self, use: SocketUse) -> SocketUse:
        """As it would be seen: its packets come as the replayed rules have them."""
        place = self._sockets.place(use)
        nic = None if place is None else self._nics.get(place.nic)
        if place is None or nic is None:
            return use
        queue = delivered(use.key, nic, place.rss_queue, self.memory.table)
        if queue is None:
            return use
        rx_cpu = None if use.rx_cpu is None else cpu_of(nic, queue)
        return use._replace(rx_cpu=rx_cpu, napi_id=napi_id_of(nic, queue))

    def _rss_queue(self, nic: NicView, key: FlowKey) -> int | None:
        return by_rss(key, nic, self._sockets.rss_queue(key))

    def _carry_out(self, plan: Plan, now_ns: int) -> list[Outcome]:
        outcomes = []
        for action in in_order(plan):
            self._locations += action.kind is ActionKind.INSERT
            location = self._locations if action.location is None else action.location
            outcomes.append(Outcome(action, now_ns, 0, location, "as planned"))
            self.decided.append(Decided(now_ns, action))
            self._change(action)
            audit.settle(outcomes[-1], self.memory)
            audit.overtaken(outcomes[-1], self._nics[action.nic], self.memory)
        filters = sum(self.memory.table.rules_in(name) for name in self._nics)
        self.most_filters = max(self.most_filters, filters)
        return outcomes

    def _change(self, action: Action) -> None:
        """The NIC as it is after an action."""
        self._nics[action.nic] = changed(self._nics[action.nic], action)
        if action.queue is not None and action.new is not None:
            followed(action.nic, action.queue, action.new, self.memory)

    def _turn(self, now_ns: int) -> None:
        """Entries of the indirection table whose flows wait."""
        for name, known in self.memory.buckets.items():
            before = self._nics[name]
            if known.waiting and before.rss is not None:
                plan = buckets.plan(before, partial(rss_entry, before.rss), self.memory, now_ns)
                outcomes = self._carry_out(plan, now_ns)
                buckets.settle(before, self._nics[name], outcomes, self.memory, now_ns)
