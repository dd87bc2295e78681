# SPDX-License-Identifier: GPL-2.0-or-later
"""A machine that does what the engine asks for: verbs for what happens, and what was begun, as
words.

Four CPUs, two under each cache and on each node. The scripts of this folder know the engine by its
door alone: events in, commands out. What a user is shown of a flow is read here, in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atfnd import model
from atfnd.engine import command as asked
from atfnd.engine import event as told
from atfnd.engine.engine import Engine
from atfnd.engine.filters.listeners import ServedPort
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, FlowKey, Policy, Thread
from atfnd.model.reason import Code, Why
from atfnd.policy.match.matching import Matching
from tests.cases.given import CPUS, NODES, PORT, SimulatedNic, nic, policy, thread, words
from tests.values import key

__all__ = ["Machine"]

Words = list[str]
SECOND_NS, LOOK_NS = 10**9, 2 * 10**9


@dataclass
class _Socket:
    key: FlowKey
    cookie: int
    nic: str
    cpu: int
    thread: Thread
    bytes: int = 1 << 20
    rate: int = 100_000  # bytes per second


class Machine:
    """What is begun is done at once, as `answer` has it. Each verb returns, in words, what was
    begun; `begun` is all of it, `said` the kinds of log lines, `commands` everything."""

    def __init__(
        self, rules: Policy | None = None, *nics: model.NicView, armed: bool = True
    ) -> None:
        self.policy = rules or policy()
        self.engine, self.matching = Engine(Memory.of(self.policy)), Matching(self.policy)
        self.now_ns, self.look_ns, self.cpus = 10 * SECOND_NS, 12 * SECOND_NS, CPUS
        self.sockets, self.listeners = dict[int, _Socket](), dict[int, model.Listening]()
        self.nics = dict[str, SimulatedNic]()
        self.begun, self.said, self.commands = list[str](), list[str](), list[asked.Command]()
        self.answer: int | Why | None = 0  # an errno; why a move is put off; None: it waits
        self.waiting = list[Action]()
        for each in nics or (nic(),):
            self.attach(each, armed=armed)

    # ---- what happens

    def attach(self, facts: model.NicView, *, armed: bool = True) -> list[str]:
        """A NIC is there, as a daemon that starts meets it."""
        name, self.nics[facts.name] = facts.name, SimulatedNic(facts)
        here = told.CpusRead(self.topology), told.NicAttached(facts, armed)
        left_alone = told.SettingsLeftAlone(name, facts.manual)
        return self.tell(*here, left_alone, told.ForeignFound(name, ()), *self.met(name))

    @property
    def topology(self) -> model.Topology:
        """Its CPUs."""
        return model.Topology(self.cpus, NODES)

    def entries(self, name: str = "nic") -> Words:
        """The indirection table is looked at, and written."""
        before = self.nics[name].facts.rss
        begun = self.tell(told.EntriesLooked(name), told.EntriesDue(name))
        self.tell(told.EntriesWritten(name, before, ()))
        return begun

    def met(
        self, name: str = "nic", originals: Mapping[str, str] | None = None
    ) -> list[told.Event]:
        """What a daemon tells of a NIC that it may write to, or may not any more."""
        settings = told.SettingsDue(name), told.OriginalsRead(name, originals or {})
        return [told.MethodDue(name), *settings, told.TakenUp(name)]

    def uses(
        self, number: int, cpu: int, by: Thread | int = 1, on: str = "nic", **seen: Any
    ) -> Words:
        """A thread is reported to use a socket on this CPU."""
        who = thread(by) if isinstance(by, int) else by
        its = self.sockets.setdefault(number, _Socket(key(number), number, on, cpu, who))
        its.cpu, its.thread, its.key = cpu, who, seen.get("key", its.key)
        its.rate = seen.pop("rate", its.rate)
        more = {each: seen.pop(each) for each in ("cpusets", "rss_cpu") if each in seen}
        use = self._use(its)
        event = model.SocketSeen(
            self.now_ns, its.cookie, its.key, cpu, who, use.napi_id, use.rx_cpu, its.bytes,
            self.now_ns, 0,
        )._replace(**seen)  # fmt: skip
        return self._reported(event, **more)

    def closes(self, number: int) -> Words:
        """A socket is closed."""
        return self.tell(told.SocketClosed(self.sockets.pop(number).cookie))

    def connects(self, number: int, cpu: int, by: int = 1, cookie: int | None = None) -> Words:
        """A thread connects; the answer is not there yet."""
        its = _Socket(key(number), number if cookie is None else cookie, "nic", cpu, thread(by))
        self.sockets[number] = its
        event = model.Connecting(self.now_ns, its.cookie, its.key, 0, its.thread, cpu)
        rule = self.matching.connecting(event, "nic", self.now_ns)
        offers = () if rule is None else (told.Offer("nic", rule, 3),)
        return self.tell(told.BirthsHeard((told.BirthHeard(event, offers=offers),)))

    def answered(self, number: int, after_ns: int = 100_000_000) -> Words:
        """The answer to its SYN came."""
        return self.hears(model.Connected(self.now_ns, number, key(number), after_ns))

    def listens(self, cookie: int, cpu: int = 1, by: int = 1, **changes: Any) -> Words:
        """A thread listens on the port of all sockets here, alone in its process."""
        plain = model.Listening(self.now_ns, cookie, PORT, 0, thread(by), cpu, alone=True)
        event = plain._replace(**changes)
        self.listeners[cookie] = event
        return self.hears(event)

    def hears(self, *births: model.Born | model.ThreadReads, on: str | None = "nic") -> Words:
        """Of births, other than connects; of listeners, that they receive by this NIC alone."""
        for gone in (each for each in births if isinstance(each, model.SocketGone)):
            self.listeners.pop(gone.cookie, None)
        return self.tell(told.BirthsHeard(tuple(told.BirthHeard(each, on) for each in births)))

    def later(self, seconds: float) -> Words:
        """Time passes: what is due happens, and a look at everything each two seconds."""
        end_ns, before = self.now_ns + round(seconds * SECOND_NS), len(self.begun)
        while (due_ns := self._due_ns()) < end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            if due_ns == self.look_ns:
                self.look()
            else:
                self.tell(told.Tick())
                self.now_ns += 1_000_000
        self.now_ns = max(self.now_ns, end_ns)
        return self.begun[before:]

    def look(self, ended: Sequence[int] = ()) -> Words:
        """Sockets, queues and ports are looked at; threads have `ended`."""
        before_ns, self.look_ns = self.look_ns - LOOK_NS, self.now_ns + LOOK_NS
        for each in self.sockets.values():
            each.bytes += each.rate * (self.now_ns - before_ns) // SECOND_NS
        uses = [*map(self._use, self.sockets.values())]
        online = frozenset(cpu.index for cpu in self.cpus if cpu.online)
        begun = self.tell(told.AuditDue(), told.SocketsAudited(uses, ended))
        for event in self.matching.again(uses, self.flow, self.now_ns):
            begun += self._reported(event)
        return begun + self.tell(
            told.QueuesLooked(online), told.Reviewed(self.topology), told.PortsDue()
        )

    def _reported(self, event: model.SocketSeen, **more: Any) -> Words:
        on = next(each.nic for each in self.sockets.values() if each.cookie == event.cookie)
        rule = self.matching.seen(event, self.nics[on].facts, self.now_ns)
        return self.tell(told.SocketReported(on, event, rule, **more))

    def lists(self, name: str = "nic", *, disturbed: bool = False) -> Words:
        """The filters of a NIC are listed."""
        held = self.nics[name].filters.items()
        filters = [model.Filter(at, model.Match.of(each), queue) for at, (each, queue) in held]
        return self.tell(told.FiltersListed(name, filters, disturbed))

    def reads(self, name: str = "nic", **changes: Any) -> None:
        """A NIC is read again, and has changed."""
        self.nics[name].facts = replace(self.nics[name].facts, **changes)
        self.tell(told.NicRead(self.nics[name].facts))

    def finds(self, *filters: tuple[int, int], on: str = "nic") -> Words:
        """An earlier run left filters, (flow, queue), of which some have sockets."""
        its, before = self.nics[on], len(self.nics[on].filters)
        its.filters |= {before + at: (key(flow), queue) for at, (flow, queue) in enumerate(filters)}
        left = [
            model.Filter(at, model.Match.of(of), queue) for at, (of, queue) in its.filters.items()
        ]
        return self.tell(told.FiltersLeft(on, left, [*map(self._use, self.sockets.values())]))

    def plug(self, cpu: int, *, online: bool) -> Words:
        """A CPU goes offline, or comes back."""
        self.cpus = tuple(replace(c, online=online) if c.index == cpu else c for c in self.cpus)
        read = told.CpusRead(self.topology)
        return self.tell(read, *map(told.CpusChanged, self.nics), *map(told.TakenUp, self.nics))

    def pauses(self, name: str = "nic") -> Words:
        """An operator pauses a NIC."""
        out = told.UndoDue(name, Code.KERNEL("paused by the operator"))
        return self.tell(told.Paused(name), out, told.MethodDue(name), told.TakenUp(name))

    def resumes(self, name: str = "nic") -> Words:
        """An operator resumes it."""
        return self.tell(told.Resumed(name), *self.met(name)[:-1], told.TakenUp(name, manual=True))

    def reloads(self, rules: Policy) -> Words:
        """Another policy comes into force."""
        self.policy, self.matching = rules, Matching(rules)
        found = dict[tuple[int, FlowKey], str | None]()
        for flow in self.engine.flows_to_match():
            rule = self.matching.of_flow(flow, self.nics[flow.nic].facts, self.now_ns)
            leaves = rule is None or rule.placement is model.Placement.LEAVE
            found[flow.cookie, flow.key] = None if leaves or rule is None else rule.name
        moving, names = self._moving(), [*self.nics]
        begun = self.tell(told.PolicyLoaded(rules, found, moving), *map(told.MethodDue, names))
        begun += self.tell(*map(told.TakenUp, names))
        judged = self._rules(self.engine.ports_to_judge())
        begun += self.tell(told.PortsJudged(judged, self._moving()))
        return begun + self.tell(told.RemainsDue(self._moving()))

    def finish(self) -> Words:
        """What waits is done now, as `answer` has it, unless its reason has gone."""
        waiting, self.waiting, before = self.waiting, [], len(self.begun)
        self._do(waiting)
        return self.begun[before:]

    # ---- what a user sees

    def flow(self, number: int | FlowKey) -> model.Flow | None:
        """As `atfnctl flows` shows it."""
        of, table = key(number) if isinstance(number, int) else number, self.engine.memory.table
        return table.get(of) or table.overflowed.get(of)

    def state(self, number: int | FlowKey) -> model.FlowState | None:
        """Of a flow. None: it is not shown."""
        flow = self.flow(number)
        return None if flow is None else flow.state

    def why(self, number: int | FlowKey) -> str:
        """What `atfnctl explain` says of it."""
        flow = self.flow(number)
        return "" if flow is None else str(flow.why)

    def queue(self, number: int, on: str = "nic") -> int:
        """Where the NIC delivers it."""
        return self.nics[on].delivers(key(number))

    def cpu(self, queue: int, on: str = "nic") -> int | None:
        """Where a queue is delivered."""
        return self.nics[on].facts.queues[queue].cpu

    # ---- what is done

    def tell(self, *events: told.Event) -> Words:
        """Events as they are, and all that follows from them."""
        before = len(self.begun)
        for event in events:
            for command in self.engine.handle(event, self.now_ns):
                self._carry_out(command)
        return self.begun[before:]

    def _carry_out(self, command: asked.Command) -> None:
        self.commands.append(command)
        if isinstance(command, asked.Log):
            self.said.append(command.kind)
        elif isinstance(command, asked.FindListeners):
            found = [each._replace(alone=False) for each in self.listeners.values()]
            self.tell(*(told.ListenersFound(name, found) for name in self.nics))
        elif isinstance(command, asked.LookAtPorts):
            rules = self._rules(self.engine.ports_to_match())
            self.tell(told.PortsLooked(rules, [*map(self._use, self.sockets.values())]))
        elif isinstance(command, asked.LookAtStrays):
            alive = {(each.nic, each.key) for each in self.sockets.values()}
            lives = {each: each in alive for each in command.keys}
            self.tell(told.StraysLooked(lives, frozenset()))
        elif isinstance(command, asked.KeepFilter):
            self.waiting.remove(command.action)
        elif isinstance(command, asked.TakeOut):
            self.begun += map(words, command.plan)
            its = self.nics[command.nic]
            out = its.taken_out(command.plan, self.now_ns)
            self.tell(told.TakenOut(command.nic, out), told.NicRead(its.facts))
        elif actions := asked.actions_of(command):
            self._begin(command, actions)

    def _begin(self, command: asked.Command, actions: model.Plan) -> None:
        if not self.engine.views[actions[0].nic].armed:
            keys = [each.key for each in actions if each.key is not None]
            self.tell(told.MovesDropped(actions[0].nic, keys))
            return
        self.begun += map(words, actions)
        if self.answer is None and isinstance(command, asked.Begin):
            subjects = {(each.nic, each.key, each.queue) for each in actions}
            old = [e for e in self.waiting if (e.nic, e.key, e.queue) not in subjects]
            self.waiting = [*old, *actions]
        else:
            self._do(actions)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            gone, its = self.engine.outlived(action, self.now_ns), self.nics[action.nic]
            said = gone or its.does(action, self.answer, self.now_ns)
            if action.key is None:
                self.tell(told.NicRead(its.facts))
            self.tell(told.MovesReported([said]))

    def _moving(self) -> set[FlowKey]:
        return {each.key for each in self.waiting if each.key is not None}

    def _due_ns(self) -> int:
        due_ns = self.engine.due_ns()
        return self.look_ns if due_ns is None else min(due_ns, self.look_ns)

    def _rules(self, of: Mapping[str, frozenset[ServedPort]]) -> Mapping[str, told.PortRules]:
        rule = self.matching.of_port
        return {nic: {each: rule(*each, nic, self.now_ns) for each in of[nic]} for nic in of}

    def _use(self, its: _Socket) -> model.SocketUse:
        queue = self.nics[its.nic].facts.queues[self.nics[its.nic].delivers(its.key)]
        return model.SocketUse(its.cookie, its.key, its.cpu, queue.napi_id, queue.cpu, its.bytes)
