# SPDX-License-Identifier: GPL-2.0-or-later
"""Connects and listeners, given to the engine: flows that keep their order are placed before their
data.

Only for rules of the policy that keep order and match from the first byte on; without any, nothing
is attached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from atfnd.daemon.executor import Executor
from atfnd.daemon.flow_rules import cpusets_of
from atfnd.daemon.in_force import InForce
from atfnd.daemon.recording import Recorder
from atfnd.daemon.session import Sessions, moving
from atfnd.engine.command import FindListeners, LookAtPorts, WatchAccepts
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    BirthHeard,
    BirthsDetached,
    BirthsHeard,
    BirthsLost,
    Event,
    ListenersFound,
    Offer,
    PortRules,
    PortsDue,
    PortsJudged,
    PortsLooked,
)
from atfnd.engine.filters.listeners import ServedPort
from atfnd.engine.handshake.connects import unanswered
from atfnd.engine.handshake.handshake import keeps_order_from_birth, ordered
from atfnd.model import Born, Connecting, FlowKey, Listening, ThreadReads
from atfnd.model.rss_hash import rss_index
from atfnd.observe import Observer
from atfnd.observe.nics.watch import NicWatch, nic_of
from atfnd.observe.sockets.handshakes import Births
from atfnd.policy.match.matching import Matching
from atfnd.serve.log.event_log import EventLog

__all__ = ["BirthReader"]


class BirthReader:
    """Attached while the policy in force wants it, a recording is being made, or a filter of a port
    is there."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        sessions: Sessions,
        observer: Observer,
        matching: Matching,
        recorder: Recorder,
        in_force: InForce,
        log: EventLog,
    ) -> None:
        self._engine, self._executor, self._sessions = engine, executor, sessions
        self._observer, self._matching, self._recorder = observer, matching, recorder
        self._in_force, self._log = in_force, log
        self._births: Births | None = None
        self._lost = 0
        executor.answer(LookAtPorts, self._look_at_ports)
        executor.answer(FindListeners, self._find_listeners)
        executor.answer(WatchAccepts, self._watch_accepts)

    @property
    def attached(self) -> bool:
        return self._births is not None

    def start(self) -> None:
        """Attach if that is wanted."""
        if self._births is not None or not self._wanted():
            return
        try:
            self._births = _started()
        except OSError as refusal:
            self._log.add("handshakes", "flows are not placed during their handshake", str(refusal))
            return
        asyncio.get_running_loop().add_reader(self._births.fileno(), self.read)
        self.serve()

    def _wanted(self) -> bool:
        """Also without any wish: what was decided at a birth, by an earlier run, too, has not ended
        yet."""
        by_policy = any(map(keeps_order_from_birth, self._in_force.policy.flows))
        return by_policy or self._recorder.asked() or self._engine.has_births()

    def renew(self) -> None:
        """Another policy is in force, or a recording has begun: attach if that is wanted, and have
        ports looked at again."""
        if self._births is None:
            self.start()
            return
        self._judge_ports()
        self.look_at_ports()

    def end(self) -> None:
        """Detach when nothing wants births any more, and nothing is left of them."""
        self._judge_ports()
        if self._births is None or self._wanted():
            return
        self.close()
        self._executor.take(BirthsDetached())

    def close(self) -> None:
        if self._births is not None:
            asyncio.get_running_loop().remove_reader(self._births.fileno())
            self._births.close()
            self._births = None

    def serve(self) -> None:
        """The NICs have changed."""
        if self._births is not None:
            netns = {session.watch.nic.netns for session in self._sessions.values()}
            self._births.serve(sorted(netns, key=str))
            self._find_listeners()

    def read(self) -> None:
        """One wake-up: what connects, listens, was answered or accepted."""
        if self._births is None:
            return
        events = self._births.drain()
        self._recorder.heard(events, self._received_by)
        if events:
            fresh = unanswered(events)
            self._executor.take(BirthsHeard(tuple(self._heard(each, fresh) for each in events)))
        if (lost := self._births.lost()) > self._lost:
            self._lost = lost
            self._executor.take(BirthsLost())

    def read_first(self, event: ThreadReads) -> None:
        """The thread that reads a port's connections is the one that serves it."""
        watch = nic_of(event, [session.watch for session in self._sessions.values()])
        if watch is not None:
            self._recorder.reads(event, watch.facts.name)
            self._executor.take(BirthsHeard((BirthHeard(event, watch.facts.name),)))

    def look_at_ports(self) -> None:
        """Which ports need a filter, or a different one."""
        if self._births is not None:
            self._executor.take(PortsDue())

    def remarks(self, key: FlowKey) -> tuple[str, ...]:
        """As `serve.Source.port_remarks`."""
        handshakes, memory = self._engine.handshakes, self._engine.memory
        found = (handshakes.why_no_port(nic, key, memory) for nic in self._sessions)
        return tuple(each for each in found if each is not None)

    def shared_ports(self, nic: str) -> frozenset[int]:
        """Whose connections several threads take from one listener."""
        return self._engine.handshakes.shared_ports(nic, self._engine.memory)

    def _judge_ports(self) -> None:
        rules = self._rules(self._engine.ports_to_judge())
        self._executor.take(PortsJudged(rules, moving(self._sessions)))

    def _look_at_ports(self, command: LookAtPorts) -> Iterable[Event]:
        """Accepted connections are seen from before the sockets are read."""
        if self._births is None:
            return ()
        self._births.accepts(command.ports)
        uses = self._observer.inventory()
        self._recorder.looked(uses)
        return (PortsLooked(self._rules(self._engine.ports_to_match()), uses),)

    def _find_listeners(self, command: FindListeners | None = None) -> Iterable[Event]:
        """These are all there are."""
        if self._births is not None:
            found = self._births.listeners()
            for name in self._sessions:
                here = tuple(each for each in found if self._only(each) == name)
                self._executor.take(ListenersFound(name, here))
            self._recorder.found()
        return ()

    def _watch_accepts(self, command: WatchAccepts) -> Iterable[Event]:
        if self._births is not None:
            self._births.accepts(command.ports)
        return ()

    def _heard(self, event: Born, fresh: Mapping[int, Connecting]) -> BirthHeard:
        if isinstance(event, Connecting):
            is_fresh = fresh.get(event.cookie) is event
            return BirthHeard(event, offers=self._offers(event) if is_fresh else ())
        return BirthHeard(event, self._only(event) if isinstance(event, Listening) else None)

    def _offers(self, event: Connecting) -> Sequence[Offer]:
        offers = []
        for watch in self._received_by(event):
            name, now_ns = watch.facts.name, time.monotonic_ns()
            rule = ordered(self._matching.connecting(event, name, now_ns))
            if rule is None or watch.tunnel_of(event.key) is not None:
                continue
            queue = rss_index(self._sessions[name].view, event.key)
            cpusets = cpusets_of(event.thread, rule, self._in_force.policy)
            offers.append(Offer(name, rule, queue, cpusets))
        return offers

    def _rules(self, asked: Mapping[str, Iterable[ServedPort]]) -> Mapping[str, PortRules]:
        now_ns, of_port = time.monotonic_ns(), self._matching.of_port
        return {
            nic: {each: of_port(each.key, each.thread, nic, now_ns) for each in of_nic}
            for nic, of_nic in asked.items()
        }

    def _only(self, event: Listening) -> str | None:
        """The NIC that it receives through, if there is no other."""
        watches = self._received_by(event)
        return watches[0].facts.name if len(watches) == 1 else None

    def _received_by(self, event: Connecting | Listening) -> list[NicWatch]:
        """The NICs of its namespace that have its local address."""
        return [
            session.watch
            for session in self._sessions.values()
            if self._births is not None
            and self._births.is_of(event.netns, session.watch.nic.netns)
            and session.watch.owns(event.key.local)
        ]


def _started() -> Births:
    """OSError: refused, and closed again."""
    births = Births()
    try:
        births.start()
    except OSError:
        births.close()
        raise
    return births
