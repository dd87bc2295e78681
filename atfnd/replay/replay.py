# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy would have decided by a recording: the daemon's engine, by the recording's clock.
Pure.

Every action succeeds at once, on a NIC that is armed: neither the moves that keep order nor a
kernel's refusal are here. Threads are taken to run where they ran, packets to arrive where the
replayed filters lead them, else where RSS does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atfnd.engine.command import Command, LookAtStrays, actions_of
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    BirthHeard,
    BirthsHeard,
    CpusRead,
    EntriesDue,
    EntriesWritten,
    Event,
    ForeignFound,
    ListenersFound,
    MethodDue,
    MovesReported,
    NicAttached,
    NicRead,
    Offer,
    PortsLooked,
    QueuesLooked,
    Reviewed,
    SettingsDue,
    SocketClosed,
    SocketReported,
    SocketsAudited,
    StraysLooked,
    TakenUp,
    Tick,
)
from atfnd.engine.handshake.connects import unanswered
from atfnd.engine.handshake.handshake import ordered
from atfnd.engine.plan import changed
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Connecting,
    Listening,
    NicView,
    Outcome,
    Policy,
    SocketUse,
    ThreadReads,
    Topology,
)
from atfnd.replay.delivery import as_moved, by_rss, cpu_of, delivered, napi_id_of
from atfnd.replay.matching import RecordedMatching
from atfnd.replay.recording import (
    Audited,
    Line,
    Looked,
    RecordedBirth,
    RecordedBirths,
    RecordedClose,
    RecordedListeners,
    RecordedMachine,
    RecordedSocket,
    RecordingEnd,
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

    def __post_init__(self) -> None:
        self._engine = Engine(Memory.of(self.policy))
        self.memory, self.matching = self._engine.memory, RecordedMatching(self.policy)
        self._sockets = Sockets()
        self._recorded: dict[str, NicView] = {}
        self._topology = Topology((), ())
        self._locations = 0

    def take(self, line: Line) -> None:
        """One line."""
        while (due_ns := self._engine.due_ns()) is not None and due_ns <= line.at_ns:
            self._tell(Tick(), due_ns)
        match line:
            case RecordedMachine():
                self._machine(line)
            case RecordedSocket():
                self._sockets.saw(line)
                self._seen(line)
            case RecordedClose():
                self._tell(SocketClosed(line.cookie), line.at_ns)
            case RecordedBirths():
                self._born(line)
            case RecordedListeners():
                for nic, found in line.nics.items():
                    self._tell(ListenersFound(nic, found), line.at_ns)
            case Looked():
                self._sockets.looked(line)
                if line.ports:
                    self._look_at_ports(line.at_ns)
            case Audited():
                self._audited(line)
            case RecordingEnd():
                self.lost += line.lost
        self._turn(line.at_ns)

    def _machine(self, line: RecordedMachine) -> None:
        """NICs as they are; a queue that was moved here stays where it was moved."""
        old, self._recorded = self._recorded, {nic.name: nic for nic in line.nics}
        self._topology = line.topology
        self._tell(CpusRead(line.topology), line.at_ns)
        for nic in line.nics:
            if old.get(nic.name) == nic:
                continue
            known = self._engine.views.get(nic.name)
            facts = as_moved(nic, known)
            read = NicAttached(facts, armed=True) if known is None else NicRead(facts)
            self._tell(read, line.at_ns)
            if nic.foreign is not None:
                self._tell(ForeignFound(nic.name, nic.theirs), line.at_ns)
            self._tell(MethodDue(nic.name), line.at_ns)
            self._tell(SettingsDue(nic.name), line.at_ns)
            self._tell(TakenUp(nic.name), line.at_ns)

    def _seen(self, line: RecordedSocket) -> None:
        event, now_ns = line.event, line.at_ns
        if line.nic not in self._engine.views:
            return
        nic = self._engine.views[line.nic]
        rule = self.matching.seen(line, nic)
        queue = delivered(event.key, nic, line.rss_queue, self.memory.table)
        if queue is not None and event.rx_cpu is not None:
            event = event._replace(rx_cpu=cpu_of(nic, queue), napi_id=napi_id_of(nic, queue))
        self._tell(SocketReported(line.nic, event, rule), now_ns)

    def _born(self, line: RecordedBirths) -> None:
        """All others are certain: a connection that was answered, or accepted, was so before its
        filter."""
        for each in line.events:
            self.matching.hear(each)
        births = [each.event for each in line.events if not isinstance(each.event, ThreadReads)]
        fresh = unanswered(births)
        heard = tuple(self._heard(each, fresh) for each in line.events)
        self._tell(BirthsHeard(heard), line.at_ns)

    def _heard(self, heard: RecordedBirth, fresh: Mapping[int, Connecting]) -> BirthHeard:
        event, only = heard.event, next(iter(heard.nics), None)
        if isinstance(event, Connecting):
            is_fresh = fresh.get(event.cookie) is event
            return BirthHeard(event, offers=self._offers(event, heard) if is_fresh else ())
        if isinstance(event, Listening) and len(heard.nics) != 1:
            only = None
        return BirthHeard(event, only if isinstance(event, Listening | ThreadReads) else None)

    def _offers(self, event: Connecting, heard: RecordedBirth) -> Sequence[Offer]:
        offers = []
        for name, rss_queue in heard.nics.items():
            rule = ordered(self.matching.connecting(event, name))
            if name in self._engine.views and rule is not None:
                queue = by_rss(event.key, self._engine.views[name], rss_queue)
                offers.append(Offer(name, rule, queue))
        return offers

    def _look_at_ports(self, now_ns: int) -> None:
        if self._engine.handshakes.listening(self.memory):
            asked = self._engine.ports_to_match()
            rules = {
                name: {each: self.matching.of_port(name, *each) for each in of_nic}
                for name, of_nic in asked.items()
            }
            self._tell(PortsLooked(rules, self._uses()), now_ns)

    def _uses(self) -> Sequence[SocketUse]:
        """Every connected socket, by the queue that it would come through."""
        return [
            self._delivered(SocketUse(each.cookie, each.key, None, each.napi_id, None, 0))
            for each in self._sockets.every()
        ]

    def _audited(self, line: Audited) -> None:
        now_ns = line.at_ns
        uses = [self._audit(use, now_ns) for use in line.uses if not use.key.listens]
        self._tell(SocketsAudited(uses), now_ns)
        online = frozenset(cpu.index for cpu in self._topology.cpus if cpu.online)
        self._tell(QueuesLooked(online), now_ns)
        self._tell(Reviewed(self._topology), now_ns)

    def _audit(self, use: SocketUse, now_ns: int) -> SocketUse:
        """Count the bytes since the last audit: where they came, and where they would have. A flow
        that has no entry and is used is observed again, as the daemon has it."""
        last, replayed = self._sockets.last(use), self._delivered(use)
        if last is None or last.nic not in self._engine.views or use.rx_cpu is None:
            return replayed
        carried = self._sockets.count(use, last.event)
        self.matching.measure(use, now_ns)
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
        if place is None or place.nic not in self._engine.views:
            return use
        nic = self._engine.views[place.nic]
        queue = delivered(use.key, nic, place.rss_queue, self.memory.table)
        if queue is None:
            return use
        rx_cpu = None if use.rx_cpu is None else cpu_of(nic, queue)
        return use._replace(rx_cpu=rx_cpu, napi_id=napi_id_of(nic, queue))

    def _tell(self, event: Event, now_ns: int) -> list[Outcome]:
        """One event, and all that follows from it. Returns the outcomes."""
        done, todo = list[Outcome](), deque[Command](self._engine.handle(event, now_ns))
        while todo:
            command = todo.popleft()
            if isinstance(command, LookAtStrays):
                dead = dict.fromkeys(command.keys, False)
                todo.extend(self._engine.handle(StraysLooked(dead, frozenset()), now_ns))
            elif actions := actions_of(command):
                said = self._done(actions, now_ns)
                todo.extendleft(reversed(self._reported(said, now_ns)))
                done += said
        return done

    def _reported(self, said: Sequence[Outcome], now_ns: int) -> Sequence[Command]:
        commands = self._engine.handle(MovesReported(said), now_ns)
        filters = sum(self.memory.table.filters_in(name) for name in self._engine.views)
        self.most_filters = max(self.most_filters, filters)
        return commands

    def _done(self, actions: Iterable[Action], now_ns: int) -> list[Outcome]:
        """The NICs as they are after these actions."""
        outcomes = []
        for action in actions:
            self._locations += action.kind is ActionKind.INSERT
            location = self._locations if action.location is None else action.location
            outcomes.append(Outcome(action, now_ns, 0, location, "as planned"))
            self.decided.append(Decided(now_ns, action))
            view = changed(self._engine.views[action.nic], action)
            self._engine.handle(NicRead(view), now_ns)
        return outcomes

    def _turn(self, now_ns: int) -> None:
        """Entries of the indirection table whose flows wait."""
        for name, of_nic in list(self.memory.nics.items()):
            if self.memory.table.planned(name):
                before = of_nic.view.rss
                done = self._tell(EntriesDue(name), now_ns)
                self._tell(EntriesWritten(name, before, done), now_ns)
