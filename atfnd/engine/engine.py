# SPDX-License-Identifier: GPL-2.0-or-later
"""The engine: takes events, changes what it knows, and returns commands.

It owns everything that is known of flows, their owners and their NICs. It reads no clock and does
no I/O. The daemon and `atfnd replay` drive this one object.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from atfnd.compare.trials import Turned
from atfnd.engine import audit, hash_key, host_settings, reception
from atfnd.engine.command import (
    Adopt,
    Begin,
    Command,
    CountAsOurs,
    Expect,
    FindListeners,
    Forget,
    HandsOn,
    KeepFilter,
    Log,
    LookAtPorts,
    LookAtStrays,
    ReleaseClaim,
    ReportEnd,
    ReportOutcome,
    TakeOut,
    TellMoves,
    WatchAccepts,
    WriteSettings,
)
from atfnd.engine.event import (
    Armed,
    ArmedAfterPause,
    AuditDue,
    BalancerAsked,
    BalancerRead,
    BalancersFound,
    BansEnding,
    BirthHeard,
    BirthsDetached,
    BirthsHeard,
    BirthsLost,
    CpusChanged,
    CpuSpent,
    CpusRead,
    Disarmed,
    EntriesDue,
    EntriesLeftAlone,
    EntriesLooked,
    EntriesWritten,
    Event,
    FiltersLeft,
    FiltersListed,
    ForeignFound,
    HeirFound,
    HostSettingRefused,
    HostSettingsDue,
    HostSettingsEnded,
    HostSettingsRead,
    InterruptsSpared,
    ListenersFound,
    LoadRead,
    MethodDue,
    MovesDropped,
    MovesReported,
    NicAttached,
    NicLost,
    NicRead,
    NicRenamed,
    Offer,
    OriginalsRead,
    PairsCounted,
    Paused,
    PolicyLoaded,
    PortRules,
    PortsDue,
    PortsJudged,
    PortsLooked,
    QueuesLooked,
    QueuesLoosened,
    RemainsDue,
    Resumed,
    Reviewed,
    SettingsDue,
    SettingsLeftAlone,
    SocketClosed,
    SocketReported,
    SocketsAudited,
    SpreadRead,
    StraysLooked,
    TakenOut,
    TakenUp,
    Tick,
    UndoDue,
    UsageRead,
)
from atfnd.engine.filters import aggregate, budget, port_filters, strays
from atfnd.engine.filters.ineffective import ineffective
from atfnd.engine.filters.listeners import Listeners, ServedPort
from atfnd.engine.filters.lost import lost
from atfnd.engine.forwarding.forwarding import Forwarding
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.handshake import Handshakes, keeps_order_from_birth, listeners, ordered
from atfnd.engine.indirection import entries, evidence
from atfnd.engine.ownership import follow
from atfnd.engine.placement import queues, steer, unowned
from atfnd.engine.placement.auto import applications
from atfnd.engine.placement.place import belongs
from atfnd.engine.placement.renew import leave, renew
from atfnd.engine.placement.steering_method import method_of, of_queue
from atfnd.engine.prepare import homes, prepare
from atfnd.engine.settings import AskedSettings
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import Writing
from atfnd.engine.table.memory import (
    Memory,
    NicMemory,
    QueueReceptions,
    RfsQueues,
    RulesInForce,
)
from atfnd.engine.trials import receiving
from atfnd.engine.trials.placing import application_looks
from atfnd.engine.trials.subjects import Application
from atfnd.engine.trials.usage import UsageReading, threads_of
from atfnd.model import (
    Accepted,
    Action,
    ActionKind,
    Connected,
    Connecting,
    Distance,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Forked,
    Listening,
    Match,
    Mode,
    Move,
    NicView,
    Outcome,
    Placement,
    Plan,
    Queue,
    SocketGone,
    SocketSeen,
    SteeringMethod,
    Thread,
    ThreadReads,
    Topology,
)
from atfnd.model.reason import Code, Why
from atfnd.model.rss_hash import (
    flow_type_words,
    hash_known,
    known_entry,
    rss_index,
    rss_rings,
    type_of,
)
from atfnd.move.command import Ended
from atfnd.move.event import Established, EvidenceLost, FlowClosed, Wanted
from atfnd.move.plan import in_order, origins
from atfnd.move.verdict import Verdict
from atfnd.policy.match.match import under_policy

__all__ = ["Engine"]

NEWS = {
    Verdict.UNPROVEN,
    Verdict.VIOLATED,
    Verdict.NO_EFFECT,
    Verdict.DEFERRED,
    Verdict.RESYNC,
}  # other ends are only counted: the write itself is already in the log

_FlowsOf = Mapping[Application, Sequence[Flow]]
_Readings = tuple[UsageReading, UsageReading]  # of the look before, and of this one


class Engine:
    """`memory` is what it knows at first."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.handshakes = Handshakes()
        self.forwarding = Forwarding()
        self._heirs: dict[int, int] = {}  # sockets that take over the filter of a closed one: CPU
        self._audited: set[int] = set()  # living sockets that had an entry at the last audit
        # By what is tried, at the last look, and what was in force then.
        self._used: tuple[UsageReading | None, RulesInForce | None] = None, None
        self._watched: frozenset[int] = frozenset()  # ports whose accepts are watched
        self._commands: list[Command] = []
        self._handlers: Mapping[type, Callable[[Any, int], None]] = {
            kind: getattr(self, _handler_of(kind)) for kind in get_args(Event)
        }

    def handle(self, event: Event, now_ns: int) -> Sequence[Command]:
        """Take one event into account. The caller carries out the returned commands in order, and
        gives their results back as events. An event that comes after the end of its NIC changes
        nothing."""
        nic: str | None = getattr(event, "nic", None)
        if nic is not None and nic not in self.memory.nics:
            return ()
        before, commands = self._commands, list[Command]()
        self._commands = commands
        try:
            self._handlers[type(event)](event, now_ns)
            self._watch_no_more()
        finally:
            self._commands = before
        return commands

    def due_ns(self) -> int | None:
        """When the engine wants a `Tick`."""
        return self.memory.next_due_ns()

    # ---- NICs

    @property
    def views(self) -> dict[str, NicView]:
        """The NICs that are served."""
        return {name: nic.view for name, nic in self.memory.nics.items()}

    def _nic_attached(self, event: NicAttached, now_ns: int) -> None:
        """What it had under another name may be known already."""
        name, view = event.facts.name, NicView.of(event.facts)
        known = self.memory.nics.setdefault(name, NicMemory(view))
        known.view = replace(view, armed=event.armed)
        self._know_policy(name)

    def _nic_read(self, event: NicRead, now_ns: int) -> None:
        """A NIC may say only when it is armed how many filters it has room for."""
        if (known := self.memory.nics.get(event.facts.name)) is not None:
            before, known.view = known.view, known.view.read(event.facts)
            if not evidence.same_hash(before, event.facts):
                known.view = replace(known.view, hash_seen={})
            if known.view.caps.filter_slots != before.caps.filter_slots:
                self._know_policy(known.view.name)

    def _know_policy(self, nic: str) -> None:
        """What the policy in force says of it."""
        known, rules = self.memory.nics[nic], self.memory.in_force
        known.view = under_policy(known.view, rules.interfaces, rules.by_name.values())

    def _method_due(self, event: MethodDue, now_ns: int) -> None:
        known = self.memory.nics[event.nic]
        method, why = method_of(known.view)
        if (method, why) != (known.view.method, known.view.method_why):
            known.view = replace(known.view, method=method, method_why=why)
            self._log("method", method.value, why, nic=event.nic)

    def _armed(self, event: Armed, now_ns: int) -> None:
        self.memory.nics[event.nic].stand(armed=True)

    def _disarmed(self, event: Disarmed, now_ns: int) -> None:
        self.memory.nics[event.nic].stand(armed=False)

    def _paused(self, event: Paused, now_ns: int) -> None:
        known = self.memory.nics[event.nic]
        known.armed_after_pause = known.armed_again
        known.stand(armed=False, paused=True)

    def _resumed(self, event: Resumed, now_ns: int) -> None:
        known = self.memory.nics[event.nic]
        known.stand(armed=known.armed_again)
        known.view = replace(known.view, poor_key=None)

    def _armed_after_pause(self, event: ArmedAfterPause, now_ns: int) -> None:
        self.memory.nics[event.nic].armed_after_pause = event.armed

    def _settings_left_alone(self, event: SettingsLeftAlone, now_ns: int) -> None:
        known = self.memory.nics[event.nic]
        known.view = replace(known.view, manual=event.settings)

    def _foreign_found(self, event: ForeignFound, now_ns: int) -> None:
        known, filters = self.memory.nics[event.nic], event.filters
        now = frozenset(each.match for each in filters)
        changed = known.view.their_matches ^ now
        known.view = replace(known.view, foreign=len(filters), theirs=filters, their_matches=now)
        flows = self.memory.table if changed else ()
        keys = [flow.key for flow in flows if Match.of(flow.key) in changed]
        self._begin(steer.take_up(known.view, self.memory, now_ns, only=keys))

    def _nic_lost(self, event: NicLost, now_ns: int) -> None:
        flows = retire.nic_gone(event.nic, self.memory)
        self._say(Forget(frozenset(flow.cookie for flow in flows)))

    def _nic_renamed(self, event: NicRenamed, now_ns: int) -> None:
        """Queues go back to their CPUs under the new name, too."""
        before = self.memory.nics[event.nic]
        self._nic_lost(NicLost(event.nic), now_ns)
        new = NicMemory(replace(before.view, name=event.new))
        self.memory.nics.setdefault(event.new, new).displaced.update(before.displaced)

    def _taken_up(self, event: TakenUp, now_ns: int) -> None:
        nic, table = self.memory.nics[event.nic].view, self.memory.table
        plan = steer.take_up(nic, self.memory, now_ns, manual=event.manual)
        self._expect((flow for flow in table if flow.nic == nic.name), now_ns)
        self._begin(plan)

    def _undo_due(self, event: UndoDue, now_ns: int) -> None:
        nic = self.memory.nics[event.nic].view
        self._say(TakeOut(event.nic, retire.withdraw(nic, self.memory, event.why)))

    def _taken_out(self, event: TakenOut, now_ns: int) -> None:
        """Its flows stay in the table, without a filter. Its queues are where they were found."""
        for outcome in event.outcomes:
            self._applied(outcome)
        self.memory.nics[event.nic].displaced.clear()
        known = self.memory.nics[event.nic]
        known.rfs = RfsQueues(hands_on=known.rfs.hands_on)
        known.settings, known.reception = AskedSettings(), QueueReceptions()
        retire.taken_out(event.nic, event.outcomes, self.memory)
        entries.forget(event.nic, self.memory)

    def _filters_listed(self, event: FiltersListed, now_ns: int) -> None:
        """A filter is missing because the NIC lost it (we write it again) or because another
        program deleted it (we leave it alone)."""
        name, nic = event.nic, self.memory.nics[event.nic].view
        gone = lost(nic, event.filters, self.memory, disturbed=event.disturbed)
        for flow in gone:
            self._say(ReleaseClaim(name, Match.of(flow.key)))
            self._log("lost-filter", "filter lost", flow.why, nic=name, flow=flow.key)
        for flow in audit.check_filters(nic, event.filters, self.memory, now_ns):
            self._say(ReleaseClaim(name, Match.of(flow.key)))
            manual = flow.state is FlowState.MANUAL
            kind, what = ("manual", "left alone") if manual else ("dropped", "by the NIC")
            self._log(kind, what, flow.why, nic=name, flow=flow.key)
        # What the NIC dropped is tried again later, by the timer.
        if gone:
            self._begin(steer.take_up(nic, self.memory, now_ns))

    def _filters_left(self, event: FiltersLeft, now_ns: int) -> None:
        """Take over the filters that an earlier run left. A filter without a socket stays until its
        NIC is armed."""
        name, nic, memory = event.nic, self.memory.nics[event.nic].view, self.memory
        uses = (*event.uses, *self.handshakes.uses(memory, now_ns))
        sockets = {Match.of(use.key): use for use in uses}
        known = {Match.of(flow.key) for flow in memory.table.steered(name)}
        ours = [each for each in event.filters if each.match not in known]
        if not ours:
            return
        flows, plan = audit.adopt(nic, ours, sockets, memory, now_ns)
        if (ports := memory.nics[name].listeners) is not None:
            for flow in flows:
                if flow.key.listens:
                    ports.left(flow.key, now_ns)
        self._say(Adopt({flow.cookie: flow.app_cpu for flow in flows}))
        self._begin(plan)
        done = "deleted" if nic.armed else "left, for the NIC is not armed"
        what = f"{len(flows)} filters taken over, {len(plan)} orphans {done}"
        self._log("adopt", what, Code.FROM_EARLIER_RUN(), nic=name)

    def _settings_due(self, event: SettingsDue, now_ns: int) -> None:
        nic, memory = self.memory.nics[event.nic].view, self.memory
        plan = prepare(nic, self._topology(), memory.in_force.dedicated)
        if plan := self.forwarding.without_tx_queues(nic.name, plan, memory):
            self._say(WriteSettings(plan))

    def _originals_read(self, event: OriginalsRead, now_ns: int) -> None:
        known, dedicated = self.memory.nics[event.nic], self.memory.in_force.dedicated
        memory = self.memory
        if self.forwarding.has_rule(event.nic, memory):
            known.lent.homes = {q.index: q.cpu for q in known.view.queues if q.cpu is not None}
        else:
            known.lent.homes = homes(known.view, event.originals, self._topology(), dedicated)
            if plan := self.forwarding.back(known.view, event.originals, known.lent.homes):
                self._say(WriteSettings(plan))
        known.settings.afresh(event.originals)
        unowned.taken_over(known.view, event.originals, self.memory, now_ns)
        self._begin(hash_key.due(known.view, event.originals))
        self._begin(reception.due(known.view, self.memory, now_ns))
        self.memory.look_at_queues(event.nic)

    def _spread_read(self, event: SpreadRead, now_ns: int) -> None:
        known = self.memory.nics[event.nic]
        if why := hash_key.why_poor(known.view, known.spread):
            known.view = replace(known.view, poor_key=why)
            self._log("hash", "rss_hash: symmetric is taken back", why, nic=event.nic)
            self._begin(hash_key.due(known.view, event.originals))

    def _topology(self) -> Topology:
        return Topology(tuple(self.memory.cpus.values()), self.memory.nodes)

    # ---- where queues are delivered

    def _cpus_changed(self, event: CpusChanged, now_ns: int) -> None:
        """Queues whose CPU went offline go to the nearest one, and return with theirs."""
        known, topology = self.memory.nics[event.nic], self._topology()
        if not known.view.armed:
            return
        there, serve_on = known.view.queues, known.view.serve_on
        left = queues.homeless(there, topology, self.memory.in_force.dedicated, serve_on)
        were = {queue.index: queue.cpu for queue, _ in left if queue.cpu is not None}
        known.displaced = were | known.displaced
        back = queues.back_home(there, known.displaced, topology, serve_on)
        gone = [(queue, cpu) for queue, cpu in left if queue.index in known.displaced]
        several = sum(cpu.online for cpu in topology.cpus) > 1
        self._put(known.view, gone, Code.NEAREST(), scattered=several)
        self._put(known.view, back, Code.ONLINE_AGAIN(), scattered=several)

    def _queues_loosened(self, event: QueuesLoosened, now_ns: int) -> None:
        nic, cpus = self.memory.nics[event.nic].view, event.cpus
        if nic.armed:
            where = [(q, cpus[q.index]) for q in nic.queues if q.index in cpus]
            self._put(nic, where, Code.LINK_FLAP())

    def _interrupts_spared(self, event: InterruptsSpared, now_ns: int) -> None:
        """What irqbalance moved before it was asked goes back, once."""
        nic, where = self.memory.nics[event.nic].view, []
        for queue in nic.queues:
            wrote = event.moved.get(of_queue("queue-cpu", queue.index), "")
            if queue.irq in event.irqs and wrote.isdecimal():
                where.append((queue, int(wrote)))
        if nic.armed:
            self._put(nic, where, Code.BALANCER_UNASKED())

    def _put(
        self, nic: NicView, where: Iterable[tuple[Queue, int]], why: Why, *, scattered: bool = False
    ) -> None:
        """Put queues that the kernel moved by itself on these CPUs, except those that another
        program has placed."""
        settings = {of_queue("queue-cpu", queue.index): (queue, cpu) for queue, cpu in where}
        ours = {name: each for name, each in settings.items() if name not in nic.manual}
        if ours:
            self._say(CountAsOurs(nic.name, tuple(ours), scattered))
            self._say(WriteSettings(queues.confine(nic.name, ours.values(), why)))

    # ---- what is forwarded

    def _pairs_counted(self, event: PairsCounted, now_ns: int) -> None:
        """TX queues first: a channel that goes to a CPU for which one is prepared goes later."""
        steps = self.forwarding.look(event.pairs.pairs, self.memory, now_ns)
        if steps.settings:
            self._say(WriteSettings(steps.settings))
        for name in dict.fromkeys(action.nic for action in steps.follows):
            actions = (action for action in steps.follows if action.nic == name)
            wanted = (Wanted(each, Mode.STRICT, origins(each, None, None)) for each in actions)
            self._say(Begin(name, tuple(wanted)))

    def forwarding_settled(self) -> bool:
        """The last look at what is forwarded left everything as it is, and waits for nothing."""
        return self.forwarding.settled

    def why_forwarded(self, ingress: str, egress: str) -> tuple[str, Why] | None:
        """As `Forwarding.why`."""
        return self.forwarding.why(ingress, egress)

    # ---- settings of the whole machine

    def _host_settings_due(self, event: HostSettingsDue, now_ns: int) -> None:
        self._commands += host_settings.due(event.settings, self.memory, again=event.again)

    def _host_settings_ended(self, event: HostSettingsEnded, now_ns: int) -> None:
        self._commands += host_settings.ended(event.settings, self.memory)

    def _host_settings_read(self, event: HostSettingsRead, now_ns: int) -> None:
        self.memory.host.settings = event.settings

    def _host_setting_refused(self, event: HostSettingRefused, now_ns: int) -> None:
        self.memory.host.refused[event.setting] = event.value, event.left

    # ---- irqbalance

    def _balancers_found(self, event: BalancersFound, now_ns: int) -> None:
        self._commands += self.memory.balancers.found(event.pids, event.bans, self.views.values())

    def _balancer_read(self, event: BalancerRead, now_ns: int) -> None:
        self._commands += self.memory.balancers.read(*event, self.views)

    def _balancer_asked(self, event: BalancerAsked, now_ns: int) -> None:
        self._commands += self.memory.balancers.asked(*event, self.memory.nics)

    def _bans_ending(self, event: BansEnding, now_ns: int) -> None:
        self.memory.balancers.lifting(event.pids)

    # ---- entries of indirection tables

    def _entries_looked(self, event: EntriesLooked, now_ns: int) -> None:
        nic = self.memory.nics[event.nic].view
        if nic.method is SteeringMethod.RSS:
            entries.look(nic, self.memory)

    def _entries_due(self, event: EntriesDue, now_ns: int) -> None:
        nic = self.memory.nics[event.nic].view
        if nic.armed and nic.method is SteeringMethod.RSS and nic.rss is not None:
            self._begin(entries.plan(nic, self._entry_of(nic), self.memory, now_ns))
        else:
            entries.wait_no_more(event.nic, self.memory)  # they are looked at again when it is

    def _entries_written(self, event: EntriesWritten, now_ns: int) -> None:
        known = self.memory.nics[event.nic]
        if self.memory.table.planned(event.nic):
            entries.record(event.before, known.view, event.outcomes, self.memory, now_ns)

    def _entries_left_alone(self, event: EntriesLeftAlone, now_ns: int) -> None:
        nic = self.memory.nics[event.nic].view
        entries.leave_alone(nic, self.memory, nic.method_why)

    def _entry_of(self, nic: NicView) -> entries.EntryOf:
        return partial(known_entry, nic)

    # ---- sockets

    def _socket_reported(self, event: SocketReported, now_ns: int) -> None:
        nic, seen, memory = self.memory.nics[event.nic].view, event.seen, self.memory
        memory.know_cpusets(event.cpusets)
        follow.moved_with(seen, memory)
        nic = self._hash_seen(seen, nic)
        self._begin(steer.seen(seen, nic, event.rule, memory, now_ns, event.rss_cpu))
        flow = memory.table.get(seen.key) if seen.pinned is False else None
        if flow is not None and nic.unowned_rfs and unowned.reported(nic, flow, memory, now_ns):
            why, rfs = nic.refuses_rfs(), memory.nics[nic.name].rfs
            if why is not None and nic.armed and why != rfs.said:
                rfs.said = why
                self._log("method", "no RFS on queues that nobody owns", why, nic=nic.name)
        if seen.home is not Distance.CPU:
            if flow is not None and follow.left(flow, memory):
                self._begin(steer.own(nic, memory.online(nic), memory, now_ns))
            self._begin(unowned.partner(nic, memory, now_ns))
        if memory.in_force.elsewhere:
            cpu = belongs(seen, event.rule, memory)
            self._say(Expect(seen.cookie, cpu, seen.at_ns))

    def _hash_seen(self, seen: SocketSeen, nic: NicView) -> NicView:
        """Compare where a flow without a filter arrives with what its hash says."""
        table, of = self.memory.table, type_of(seen.key)
        if table.get(seen.key) is not None:
            return nic
        found = evidence.seen(seen, nic, bool(table.ports_of(seen.key)))
        if found is None:
            return nic
        before = hash_known(nic, of)
        nic = replace(nic, hash_seen={**nic.hash_seen, of: found})
        self.memory.nics[nic.name].view = nic
        after = hash_known(nic, of)
        if before is not None and after is not None and before.known != after.known:
            entries.hash_anew(nic, self.memory)
            word = "known" if after.known else "not known"
            self._log("hash", f"the RSS hash of {flow_type_words(of)} is {word}", after.why,
                      nic=nic.name)  # fmt: skip
        return nic

    def _know_rfs(self, nic: NicView) -> None:
        if (queues := unowned.hands_on(nic, self.memory)) is not None:
            self._say(HandsOn(nic.name, queues))

    def _socket_closed(self, event: SocketClosed, now_ns: int) -> None:
        self._begin(retire.gone(event.cookie, self.memory))

    def _audit_due(self, event: AuditDue, now_ns: int) -> None:
        heirs, self._heirs = self._heirs, {}
        self._say(Adopt(heirs | self.handshakes.connects.adopt(self.memory)))

    def _sockets_audited(self, event: SocketsAudited, now_ns: int) -> None:
        """Entries against sockets: gone, used, idle."""
        memory = self.memory
        before = {*memory.table.cookies()}
        audit.threads_ended(event.ended, memory)
        known = {(use.cookie, use.key) for use in event.uses}
        born = self.handshakes.uses(memory, now_ns)
        uses = [*event.uses, *(use for use in born if (use.cookie, use.key) not in known)]
        self._begin(audit.check_sockets(uses, self.views, memory, now_ns))
        self._audited = before.intersection([use.cookie for use in uses])

    def _queues_looked(self, event: QueuesLooked, now_ns: int) -> None:
        for nic in self.views.values():
            self._begin(steer.own(nic, event.online, self.memory, now_ns))
            unowned.looked(nic, self.memory, now_ns)
            self._know_rfs(nic)  # first: a write that is begun says what it has changed
            self._begin(unowned.partner(nic, self.memory, now_ns))
            self._begin(reception.due(nic, self.memory, now_ns))

    def _reviewed(self, event: Reviewed, now_ns: int) -> None:
        memory = self.memory
        aged_out = self._audited.difference(memory.table.cookies())
        self._audited = set()
        if aged_out:
            self._say(Forget(frozenset(aged_out)))
        self._begin(ineffective(self.views, memory, now_ns))
        for nic in self.views.values():
            budget.weigh(nic, event.topology, partial(rss_index, nic), memory, now_ns)
        self._begin(steer.retry(self.views, memory, now_ns))
        for nic in self.views.values():
            self._begin(budget.surplus(nic, memory, now_ns))
            self._begin(budget.swaps(nic, memory, now_ns))
            aggregate.stranded(nic, memory, now_ns)
            memory.nics[nic.name].rates.forget(now_ns)
        if turned_away := memory.readmit():
            self._say(Forget(frozenset(turned_away)))  # used again, they are reported again

    def _tick(self, event: Tick, now_ns: int) -> None:
        """Begin the moves that are due, and the removal of what the policy now leaves alone."""
        self._begin(steer.due(self.views, self.memory, now_ns))
        for nic in self.views.values():
            self._begin(unowned.partner(nic, self.memory, now_ns))

    def _cpus_read(self, event: CpusRead, now_ns: int) -> None:
        self.memory.know_cpus(event.topology.cpus, event.topology.nodes)

    def _load_read(self, event: LoadRead, now_ns: int) -> None:
        memory, before = self.memory, self.memory.full.cpus
        memory.busy = event.busy
        memory.full.look(event.busy, memory.cpus, now_ns)
        for cpu in sorted(before ^ memory.full.cpus):
            full = cpu in memory.full.cpus
            if any(flow.app_cpu == cpu for flow in memory.table):
                why = (Code.LEFT_FULL if full else Code.CPU_HAS_TIME)(cpu)
                self._log("full" if full else "not-full", f"CPU {cpu}", why)
        if before or memory.full.cpus or memory.full.unfinished:
            self._begin(steer.relieve(self.views, memory, now_ns))

    def _cpu_spent(self, event: CpuSpent, now_ns: int) -> None:
        """What waited for the daemon's own CPU time has its turn, the worthiest first."""
        cpu = self.memory.cpu
        if cpu.read(event.spent_ns, now_ns):
            used = cpu.cpu_use()
            kind = "over-budget" if cpu.over else "in-budget"
            what = "moves wait for CPU time of atfnd itself" if cpu.over else "moves wait no more"
            share = 0.0 if used is None else used.used
            why = Code.OWN_CPU(share, cpu.share)
            self._log(kind, what, why)
        if cpu.waiting:
            self._begin(steer.paid(self.views, self.memory, now_ns))

    # ---- trials: the placement and the reception `auto`

    def tried(self) -> Mapping[Application, Sequence[Flow]]:
        """What the next `UsageRead` must tell of: the applications that are tried, or may be."""
        rules = self.memory.in_force.by_name.values()
        if all(rule.placement is not Placement.AUTO for rule in rules):
            return {}
        return applications(self.memory, {n for n, nic in self.views.items() if _movable(nic)})

    def tried_queues(self) -> Mapping[str, Mapping[int, Collection[Thread]]]:
        """What it must tell of, too: by NIC, the queues whose reception is `auto`, with the threads
        that use their flows."""
        found = {}
        for name, nic in self.views.items():
            if asking := receiving.asking(nic, self.memory):
                threads = threads_of(name, self.memory)
                found[name] = {queue: threads.get(queue, {}).keys() for queue in asking}
        return found

    def _usage_read(self, event: UsageRead, now_ns: int) -> None:
        """A trial ends when its NIC can no longer be changed, or when another policy comes into
        force."""
        (before, in_force), now = self._used, event.reading
        self._used = now, self.memory.in_force
        read = None if before is None or now is None else (before, now)
        renewed = in_force is not self.memory.in_force
        why = Code.OTHER_POLICY() if renewed else None
        for nic in self.views.values():
            self._placements_tried(nic, event.flows, read, why, now_ns)
            self._reception_tried(nic, read, why, now_ns)

    def _placements_tried(
        self, nic: NicView, flows_of: _FlowsOf, read: _Readings | None, why: Why | None, now_ns: int
    ) -> None:
        """`why`: they end."""
        trials, turned = self.memory.nics[nic.name].trials, list[Turned[Application]]()
        movable = _movable(nic)
        if not movable:
            turned = trials.abandon(Code.FILTERS_NO_MORE(), now_ns)
        elif why is not None or not flows_of:
            turned = trials.abandon(why or Code.NO_FLOWS(), now_ns)
        elif read is not None:
            looks = application_looks(*read, nic, flows_of, self.memory)
            turned = trials.look(looks, now_ns)
        for each in turned:
            what, rule = f"{each.subject.comm}: {each.what}", each.subject.rule_name
            self._log(each.kind, what, each.why, nic=nic.name, rule=rule)
            if movable:
                flows = flows_of.get(each.subject, ())
                self._look_again(nic, [flow.key for flow in flows], now_ns)

    def _reception_tried(
        self, nic: NicView, read: _Readings | None, why: Why | None, now_ns: int
    ) -> None:
        memory, writable = self.memory, nic.armed and nic.up
        trials, turned = memory.nics[nic.name].reception.auto, list[Turned[int]]()
        if why is not None or not writable:
            turned += trials.abandon(why or Code.NOT_WRITABLE(), now_ns)
        rules = receiving.asking(nic, memory)
        if writable:
            turned += receiving.asked(nic, rules, memory)
            looks = {} if read is None else receiving.queue_looks(*read, nic, memory)
            turned += trials.look(looks, now_ns)
        for each in turned:
            what, rule = f"queue {each.subject}: {each.what}", rules.get(each.subject)
            self._log(each.kind, what, each.why, nic=nic.name, rule=rule or None)
        if turned:
            self._begin(reception.due(nic, memory, now_ns))

    def _look_again(self, nic: NicView, flows: Sequence[FlowKey], now_ns: int) -> None:
        """The placement of these flows has changed."""
        plan = steer.take_up(nic, self.memory, now_ns, only=flows)
        self._expect(filter(None, map(self.memory.table.get, flows)), now_ns)
        self._begin(plan)

    def _expect(self, flows: Iterable[Flow], now_ns: int) -> None:
        """Where these flows belong may have changed. The observer must know: it reports again
        those that do not come there, as when their move is refused. One whose thread is not known
        is to be reported wherever it arrives."""
        for flow in flows if self.memory.in_force.elsewhere else ():
            if flow.target_cpu is not None and flow.thread is not None:
                self._say(Expect(flow.cookie, flow.target_cpu, now_ns))

    # ---- births

    def _births_heard(self, event: BirthsHeard, now_ns: int) -> None:
        births = [each.event for each in event.events if not isinstance(each.event, ThreadReads)]
        offers = {id(each.event): each.offers for each in event.events}
        for fresh in self.handshakes.connects.heard(births, self.memory):
            self._connecting(fresh, offers[id(fresh)], now_ns)
        look = False
        for heard in event.events:
            if heard.nic is None or heard.nic in self.memory.nics:
                look |= self._heard(heard, now_ns)
        if look:
            self._look_at_ports()

    def _heard(self, heard: BirthHeard, now_ns: int) -> bool:
        """Take one observation of a birth. True: look at the ports."""
        event = heard.event
        if isinstance(event, Connected):
            self._tell(event.key, Established(event.key, event.at_ns))
        elif isinstance(event, Accepted):
            for name, nic in self.views.items():
                known = self.memory.nics[name].listeners
                for port in port_filters.exposed(event, nic, known, self.memory):
                    self._tell(port, Established(port, None))
        elif isinstance(event, Listening):
            if heard.nic is not None:
                self._bear(heard.nic, self.handshakes.opened(event, heard.nic, self.memory))
            return True
        elif isinstance(event, Forked):
            return self.handshakes.forked(event, self.memory)
        elif isinstance(event, SocketGone):
            self._begin(self.handshakes.closed(event.cookie, self.memory, now_ns))
        elif isinstance(event, ThreadReads) and heard.nic is not None:
            return self.handshakes.read(event, heard.nic, self.memory)
        return False

    def _births_detached(self, event: BirthsDetached, now_ns: int) -> None:
        for nic in self.memory.nics.values():
            nic.listeners = None

    def _births_lost(self, event: BirthsLost, now_ns: int) -> None:
        for known in listeners(self.memory).values():
            known.lost()
        self._say(FindListeners())
        self._say(TellMoves(None, EvidenceLost()))

    def _listeners_found(self, event: ListenersFound, now_ns: int) -> None:
        self.handshakes.found(event.nic, event.listeners, self.memory, now_ns)

    def _connecting(self, event: Connecting, offers: Iterable[Offer], now_ns: int) -> None:
        for offer in (each for each in offers if each.nic in self.memory.nics):
            nic, rule, memory = self.memory.nics[offer.nic].view, ordered(offer.rule), self.memory
            if rule is None:
                continue
            if birth.again(event, nic, rule, memory, now_ns):
                self._tell(event.key, FlowClosed(event.key))  # the socket that had it
                return
            memory.know_cpusets(offer.cpusets)
            born = self.handshakes.connecting(event, nic, rule, offer.rss_queue, memory, now_ns)
            if born is not None:
                memory.table.writes(event.key, Writing.CONNECT)
                self._bear(offer.nic, [born])

    def _ports_due(self, event: PortsDue, now_ns: int) -> None:
        self._look_at_ports()

    def _look_at_ports(self) -> None:
        if self.handshakes.listening(self.memory):
            keys = [key for known in listeners(self.memory).values() for key in known.sockets]
            keys += self.memory.table.writing(Writing.PORT)
            self._say(LookAtPorts(frozenset(key.local_port for key in keys)))

    def _ports_looked(self, event: PortsLooked, now_ns: int) -> None:
        here = self.memory.nics
        for name, rules in ((n, rules) for n, rules in event.rules.items() if n in here):
            nic, rule_of = self.memory.nics[name].view, partial(_answer, rules)
            born = self.handshakes.look_at_ports(nic, rule_of, event.uses, self.memory, now_ns)
            for each in born:
                if each.action.key is not None:
                    self.memory.table.writes(each.action.key, Writing.PORT)
            self._heirs |= self._keeping(born)
            self._bear(name, born)
        self._watch_accepts()

    def _keeping(self, born: Sequence[Wanted]) -> dict[int, int]:
        """The sockets of connections that get a filter of their own to keep the queue of their
        port's filter: the observer must know them, with the CPU each is used on."""
        keys = [each.action.key for each in born if each.action.kind is ActionKind.INSERT]
        flows = [self.memory.table.get(key) for key in keys if key is not None and not key.listens]
        return {flow.cookie: flow.app_cpu for flow in flows if flow is not None}

    def ports_to_match(self) -> Mapping[str, frozenset[ServedPort]]:
        """What the next `PortsLooked` must say the policy's rules for, by NIC."""
        asks = self.handshakes.asks_of_ports
        return {name: asks(nic, self.memory) for name, nic in self.views.items()}

    def has_births(self) -> bool:
        """Something that was decided at a birth has not ended yet."""
        table, waiting = self.memory.table, self.handshakes.connects.waiting(self.memory)
        return bool(table.every_port() or any(map(table.writing, Writing)) or waiting)

    def _watch_accepts(self) -> None:
        ports = self.memory.table.writing(Writing.PORT)
        self._watched = frozenset(key.local_port for key in ports)
        self._say(WatchAccepts(self._watched))

    def _watch_no_more(self) -> None:
        """Accepts are watched as long as a port's filter is being written."""
        if self._watched:
            ports = self.memory.table.writing(Writing.PORT)
            if self._watched != {key.local_port for key in ports}:
                self._watch_accepts()

    def _born(self, key: FlowKey, now_ns: int, *, failed: bool) -> bool:
        """The move of a birth has ended. False: the flow was not being born."""
        record = self.memory.table.record(key)
        writing = None if record is None else record.pending.writing
        self.memory.table.writes(key, None)
        if writing is Writing.CONNECT and failed:
            birth.unborn(key, self.memory)
        elif writing is Writing.PORT and failed:
            self._not_had(key, now_ns)
        return key.listens if writing is None else failed

    def _is_being_born(self, key: FlowKey) -> bool:
        """Its first filter is asked for, and not answered yet."""
        record = self.memory.table.record(key)
        pending = None if record is None else record.pending
        asked = pending.asked if pending is not None and pending.writing is not None else None
        return asked is not None and asked.kind is ActionKind.INSERT

    def _not_had(self, key: FlowKey, now_ns: int) -> None:
        """The filter of a port was put off or refused, or that of a connection that was to keep the
        queue of its port's filter."""
        entry = self.memory.table.get(key)
        if entry is None or entry.location is not None:
            return
        if key.listens:
            budget.put_off(key, entry.nic, self.memory, now_ns)
        else:
            self.memory.table.remove(key)

    def _port_stays(self, key: FlowKey, ended: Ended, now_ns: int) -> bool:
        """If this is a port's filter that is in the NIC and could not be moved or deleted, that is
        tried later. False: it is known why."""
        entry = self.memory.table.get(key)
        if entry is None or entry.location is None or not key.listens:
            return True
        return self.memory.put_off(entry, ended.why, now_ns, barred=ended.barred)

    # ---- results of commands

    def _moves_reported(self, event: MovesReported, now_ns: int) -> None:
        for each in (each for each in event.said if each.action.nic in self.memory.nics):
            if isinstance(each, Outcome):
                self._applied(each)
                self._setting_written(each, now_ns)
                self.forwarding.reported(each, self.memory, now_ns)
            else:
                self._move_ended(each, now_ns)

    def _setting_written(self, outcome: Outcome, now_ns: int) -> None:
        action, known = outcome.action, self.memory.nics[outcome.action.nic]
        name, value = action.setting or "", action.value or "0"
        if not known.settings.written(outcome, known.view, now_ns):
            return
        known.view = replace(known.view, settings={**known.view.settings, name: value})
        if unowned.switched(action, self.memory, now_ns):
            self._know_rfs(known.view)
            if value == "0":
                follow.unhindered(action.nic, self.memory)

    def _applied(self, outcome: Outcome) -> None:
        action = outcome.action
        follow.arrived(action, self.memory)
        strays.record(outcome, self.memory)
        if (stray := audit.record(outcome, self.memory)) is not None:
            strays.note(stray, self.memory)
        if action.queue is not None and action.new is not None and not outcome.errno:
            follow.followed(action.nic, action.queue, action.new, self.memory)
        audit.overtaken(outcome, self.memory.nics[action.nic].view, self.memory)
        if outcome.errno == errno.ECANCELED:
            self._log("kept", "its filter stays", outcome.left, nic=action.nic, flow=action.key)
        elif outcome.found:
            self._log("adopt", "its filter is found", outcome.left, nic=action.nic, flow=action.key)
        elif not outcome.superseded:
            self._say(ReportOutcome(outcome))

    def _move_ended(self, ended: Ended, now_ns: int) -> None:
        follow.arrived(ended.action, self.memory)
        budget.ended(ended.action, self.memory)
        key, verdict = ended.action.key, ended.verdict
        how, late, took_ns = ended.mechanism.value, ended.violations, ended.took_ns
        if key is not None and not ended.action.live:  # of a flow that is gone, or of a port
            record = self.memory.table.record(key)
            if record is not None and record.pending.writing is Writing.PORT:
                self._born(key, now_ns, failed=verdict is not Verdict.DONE)
            return
        if verdict is Verdict.SUPERSEDED:
            self._say(ReportEnd(ended, news=False))
            return
        if key is None:
            name, queue, end = ended.action.nic, ended.action.queue, (verdict, ended.why)
            last_end = self.memory.nics[name].last_end
            news = last_end.get(queue) != end
            last_end[queue] = end
            if verdict in (Verdict.DEFERRED, Verdict.REFUSED):
                follow.stayed(ended.action, self.memory, now_ns, anew=news)
                self.forwarding.stayed(ended.action, ended.why)
        elif not key.listens and self._is_being_born(key):
            news = False  # the end of what was wanted before: its first filter replaced that
        elif self._born(key, now_ns, failed=verdict in (Verdict.DEFERRED, Verdict.REFUSED)):
            news = self._port_stays(key, ended, now_ns)
        else:
            deferred = verdict in (Verdict.DEFERRED, Verdict.RESYNC)
            move = Move(how, verdict.value, ended.why, late, took_ns)
            of_now = ended.action.generation in (0, self.memory.table.generation(key))
            if news := of_now or not deferred:
                news = audit.moved(
                    key, move, self.memory, now_ns, deferred=deferred, barred=ended.barred
                )
        self._say(ReportEnd(ended, news and verdict in NEWS))

    def _moves_dropped(self, event: MovesDropped, now_ns: int) -> None:
        for key in event.flows:
            self._born(key, now_ns, failed=True)
        self.memory.nics[event.nic].lent.sent.clear()
        budget.dropped(event.nic, self.memory)

    def outlived(self, action: Action, now_ns: int) -> Outcome | None:
        """The outcome of an action whose reason has gone by the time its turn comes: nothing is
        written. None: carry it out."""
        return audit.outlived(action, self.memory, now_ns)

    def _heir_found(self, event: HeirFound, now_ns: int) -> None:
        """It takes over the filter, if it can."""
        if (nic := self.views.get(event.action.nic)) is None:
            return
        flow = audit.inherit(nic, event.action, event.cookie, self.memory, now_ns)
        if flow is not None:
            self._heirs[event.cookie] = flow.app_cpu
            self._say(KeepFilter(event.action))

    # ---- another policy

    def _policy_loaded(self, event: PolicyLoaded, now_ns: int) -> None:
        def judge(flow: Flow) -> str | None:
            return event.rules[flow.cookie, flow.key]

        for known in self.memory.nics.values():
            known.view = under_policy(known.view, event.policy.interfaces, event.policy.flows)
        self.memory.cpu.share = event.policy.cpu_share
        for flow in self.memory.table.every_port():
            self._unjudged(flow.key, True)
        self._begin(renew(event.policy, judge, self.memory, event.moving.__contains__))
        if event.policy.elsewhere() and (unread := self._adopted()):
            self._say(Adopt(unread))
        for nic in self.views.values():
            self._begin(unowned.partner(nic, self.memory, now_ns))
            self._begin(reception.due(nic, self.memory, now_ns))

    def _adopted(self) -> dict[int, int]:
        """Flows of an earlier run that have shown no thread yet: the observer is to report them,
        though they are used where they arrive, if a policy wants them elsewhere."""
        every = (flow for name in self.views for flow in self.memory.table.adopted(name))
        return {flow.cookie: flow.app_cpu for flow in every if not flow.key.listens}

    def flows_to_match(self) -> list[Flow]:
        """The flows for which the next `PolicyLoaded` must name the rule."""
        exact = (flow for flow in self.memory.table if not flow.key.listens)
        return [*exact, *self.memory.table.overflowed.values()]

    def ports_to_judge(self) -> Mapping[str, frozenset[ServedPort]]:
        """What the next `PortsJudged` must say the policy's rules for, by NIC."""
        entries = self._unjudged_ports()
        return {
            nic: frozenset(ServedPort(e.key, each) for e in entries for each in _serving(e, known))
            for nic, known in listeners(self.memory).items()
        }

    def _ports_judged(self, event: PortsJudged, now_ns: int) -> None:
        """Ports whose filter is being written are judged later."""
        for entry in self._unjudged_ports():
            key = entry.key
            if key in event.moving:
                continue
            self._unjudged(key, False)
            for nic, known in listeners(self.memory).items():
                listens = key in known.sockets or key in known.closed_ns
                if listens and not self._wants(event.rules[nic], entry, known):
                    known.unwanted.add(key)
                else:
                    known.unwanted.discard(key)

    def _unjudged(self, port: FlowKey, unjudged: bool) -> None:
        """A new policy may not want the filter of this port."""
        if (record := self.memory.table.record(port)) is not None:
            record.own().unjudged = unjudged
            record.done()

    def _unjudged_ports(self) -> list[Flow]:
        table = self.memory.table
        return [
            entry
            for entry in table.every_port()
            if (record := table.record(entry.key)) is not None and record.pending.unjudged
        ]

    def _wants(self, answers: PortRules, entry: Flow, known: Listeners) -> bool:
        """The policy has one rule for a port's connections. If we do not know the thread of a port,
        the policy rule that gave it its filter (none, if the filter was adopted) must still
        steer."""
        threads = _serving(entry, known)
        if not threads:
            rules = self.memory.in_force.by_name.values()
            named = [rule for rule in rules if entry.rule_name in ("", rule.name)]
            return any(map(keeps_order_from_birth, named))
        return all(ordered(_answer(answers, entry.key, each)) is not None for each in threads)

    def _remains_due(self, event: RemainsDue, now_ns: int) -> None:
        table = self.memory.table
        self._begin(leave(self.memory, event.moving.__contains__))
        ended, table.left_behind = table.left_behind, set()
        if ended:
            self._say(Forget(frozenset(ended)))
        if any(nic.strays for nic in self.memory.nics.values()):
            self._say(LookAtStrays(strays.keys(self.memory)))

    def _strays_looked(self, event: StraysLooked, now_ns: int) -> None:
        def lives(nic: str, key: FlowKey) -> bool:
            return event.lives.get((nic, key), True)

        self._begin(strays.due(self.memory, event.moving.__contains__, lives))

    # ---- commands

    def _say(self, command: Command) -> None:
        self._commands.append(command)

    def _log(self, kind: str, what: str, why: Why | str, **fields: Any) -> None:
        self._say(Log(kind, what, why, fields))

    def _begin(self, plan: Plan) -> None:
        """Moves for a plan, as its policy's `order` asks."""
        ordered_plan = in_order(plan)
        for name in dict.fromkeys(action.nic for action in ordered_plan):
            if name in self.memory.nics:
                actions = (action for action in ordered_plan if action.nic == name)
                self._say(Begin(name, tuple(map(self._wanted, actions))))

    def _bear(self, nic: str, births: Sequence[Wanted]) -> None:
        if births:
            cookies = (self._cookie(each.action.key) for each in births)
            born = zip(births, cookies, strict=True)
            self._say(Begin(nic, tuple(each._replace(cookie=cookie) for each, cookie in born)))

    def _cookie(self, key: FlowKey | None) -> int | None:
        flow = None if key is None else self.memory.table.get(key)
        return None if flow is None else flow.cookie

    def _tell(self, key: FlowKey, event: Established | FlowClosed) -> None:
        """The moves of the NIC that a flow is of."""
        flow = self.memory.table.get(key)
        if flow is not None:
            self._say(TellMoves(flow.nic, event))

    def _wanted(self, action: Action) -> Wanted:
        """An action with what its move depends on."""
        mode = self.memory.in_force.order(action.rule_name)
        if action.key is None:
            return Wanted(action, mode, origins(action, None, None))
        rss = rss_rings(self.memory.nics[action.nic].view, action.key)
        port, known = self.memory.table.covering(action.key), self.memory.nics[action.nic].listeners
        if port is not None and port.target_queue is not None:
            at, goes = frozenset({port.target_queue}), known is not None and port.key in known.asked
            rss = at if not goes else None if rss is None else rss | at  # until that goes
        flow = self.memory.table.get(action.key)
        seen = None if flow is None else flow.rx_queue
        cookie = None if flow is None else flow.cookie
        return Wanted(action, mode, origins(action, rss, seen), rss, action.live, None, cookie)


def _movable(nic: NicView) -> bool:
    """Flows can be moved on it."""
    return nic.armed and nic.up and nic.method is SteeringMethod.FILTERS


def _handler_of(kind: type) -> str:
    """`TakenUp` is handled by `_taken_up`."""
    return re.sub("(?=[A-Z])", "_", kind.__name__).lower()


def _answer(answers: PortRules, key: FlowKey, thread: Thread | None) -> FlowRule | None:
    return answers[ServedPort(key, thread)]


def _serving(entry: Flow, known: Listeners) -> set[Thread]:
    """The threads that listen on a port. Empty: not all of them are known."""
    threads = {each.thread for each in known.rivals(entry.key)}
    found = {each for each in threads if each is not None}
    return found if found == threads else set()
