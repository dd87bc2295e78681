# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes what an observer reports of sockets, matches it against the policy, and gives it to the
engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from atfnd.daemon.executor import Executor
from atfnd.daemon.flow_rules import cpusets_of
from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.in_force import InForce
from atfnd.daemon.recording import Recorder
from atfnd.daemon.session import Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    AuditDue,
    FiltersLeft,
    QueuesLooked,
    Reviewed,
    SocketClosed,
    SocketReported,
    SocketsAudited,
)
from atfnd.engine.turns import Turns, decision_every_ns
from atfnd.model import Filter, FlowKey, SocketGone, SocketSeen, SocketUse, ThreadReads
from atfnd.model.rss_hash import predicted
from atfnd.observe import Observation, Observer
from atfnd.observe.machine.topology import CpuWatch
from atfnd.observe.nics.watch import nic_of
from atfnd.observe.processes.threads import ended_threads, sees_every_thread
from atfnd.policy.match.matching import Matching
from atfnd.serve.log.event_log import EventLog

__all__ = ["SocketReader"]

_TURN_S = 0.001  # between two turns, so that other work gets served
_BATCHES = 16  # of observations a wake-up


class SocketReader:
    """Reads the observer, and the sockets themselves."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        sessions: Sessions,
        observer: Observer,
        matching: Matching,
        births: BirthReader,
        recorder: Recorder,
        cpus: CpuWatch,
        in_force: InForce,
        log: EventLog,
    ) -> None:
        self._engine, self._executor, self._sessions = engine, executor, sessions
        self._observer, self._matching, self._births = observer, matching, births
        self._recorder, self._cpus = recorder, cpus
        self._in_force, self._log = in_force, log
        self._turns, self._lost = Turns(), 0
        self._turn: asyncio.TimerHandle | None = None  # the next one
        self._looked_ns = 0.0  # what looks have taken since our CPU time was last read
        self._rests = False  # until the next reading of it
        self._turned = True  # since then
        self._sees_threads = sees_every_thread()
        self.audited_ns = 0  # when the table's bytes were last read
        self.resyncs = 0

    def read(self) -> None:
        """One wake-up. While nothing may be looked at, reports wait in the kernel for the next
        reading of our CPU time."""
        if self._may_look():
            self._drain()
        elif not self._rests:
            self._rests = True
            asyncio.get_running_loop().remove_reader(self._observer.fileno())

    def go_on(self) -> None:
        """Our CPU time has been read. Of what waits one has its turn, whatever the observer's
        look costs."""
        self._looked_ns, self._turned = 0.0, False
        if self._rests:
            self._rests = False
            asyncio.get_running_loop().add_reader(self._observer.fileno(), self.read)
            self._drain()
        else:
            self._take_turns()

    def _drain(self) -> None:
        """Take the last observation of each socket, in order."""
        waiting: dict[tuple[int, FlowKey | None], SocketSeen | SocketGone] = {}
        with self._charged():
            for event in self._observed():
                if isinstance(event, SocketSeen | SocketGone):
                    of = event.cookie, event.key if isinstance(event, SocketSeen) else None
                    waiting.pop(of, None)
                    waiting[of] = event
                elif isinstance(event, ThreadReads):
                    self._births.read_first(event)
        for latest in waiting.values():
            if isinstance(latest, SocketSeen):
                self._turns.add(latest)
            else:
                with self._charged():
                    self._turns.gone(latest.cookie)
                    self._recorder.gone(latest)
                    self._executor.take(SocketClosed(latest.cookie))
        self._take_turns()
        lost = self._observer.lost()
        if lost > self._lost:
            self._log.add("lost", f"{lost - self._lost} events lost", "re-reading every socket")
            self._lost = lost
            self.resync()

    def close(self) -> None:
        """Drop whatever waits for its turn."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _take_turns(self) -> None:
        """Decide on waiting events, as far as it is their users' turn."""
        self.close()
        every_ns = decision_every_ns(self._in_force.policy)
        turns = self._turns.take(every_ns, time.monotonic_ns())
        while (self._may_look() or not self._turned) and (events := next(turns, None)) is not None:
            self._turned = True
            for event in events:
                with self._charged():
                    self._seen(event)
        if (
            self._may_look() and (due_ns := self._turns.due_ns(every_ns)) is not None
        ):  # else: `go_on`
            wait_s = max(_TURN_S, (due_ns - time.monotonic_ns()) / 1e9)
            self._turn = asyncio.get_running_loop().call_later(wait_s, self._take_turns)

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """What this takes is taken off what looks may cost."""
        began_s = time.thread_time()
        yield
        self._looked_ns += (time.thread_time() - began_s) * 1e9

    def _may_look(self) -> bool:
        return self._looked_ns < self._engine.memory.cpu.looks_ns

    def _observed(self) -> Iterator[Observation]:
        """Observations that wait to be read; of a long burst, the first part."""
        polls = self._observer.poll_interval_s() is not None
        for _ in range(1 if polls else _BATCHES):
            if not (batch := self._observer.drain()):
                break
            yield from batch

    def _seen(self, event: SocketSeen) -> None:
        watch = nic_of(event, [session.watch for session in self._sessions.values()])
        if watch is None:
            return
        event, now_ns = event._replace(tunnel=watch.tunnel_of(event.key)), time.monotonic_ns()
        self._recorder.seen(watch, event, now_ns)
        if self._recorder.asked() and self._is_only_recorded(event):
            return
        name = watch.facts.name
        view = self._sessions[name].view
        rss = None  # where an observer that sees no queue may expect it
        if event.napi_id is None:
            rss = predicted(view, event.key)
        rule = self._matching.seen(event, view, now_ns)
        if groups := self._matching.groups(event.thread, now_ns):
            self._observer.learn(*groups)
        cpusets = cpusets_of(event.thread, rule, self._in_force.policy)
        self._executor.take(SocketReported(name, event, rule, rss.cpu if rss else None, cpusets))

    def _is_only_recorded(self, event: SocketSeen) -> bool:
        """It is reported only because a recording is being made."""
        right = event.rx_cpu == event.app_cpu and not self._in_force.policy.elsewhere()
        return right and self._engine.memory.table.get(event.key) is None

    # ---- again, without an event

    def audit(self) -> None:
        """Compare entries with sockets: gone, used, idle."""
        memory = self._engine.memory
        idle = not (memory.knows_flows() or self._matching.waiting())
        if idle and not self._recorder.active():
            self.share_queues()
            return
        self._executor.take(AuditDue())
        uses = self._observer.audit()
        if forgotten := self._forgotten(uses):
            self._observer.adopt(forgotten)
            uses = self._observer.audit()
        self._recorder.audited(uses)
        if idle:
            self.share_queues()
            return
        self.audited_ns = now_ns = time.monotonic_ns()
        ended = ended_threads(memory.table.threads()) if self._sees_threads else ()
        self._executor.take(SocketsAudited(uses, tuple(ended)))
        for event in self._matching.again(uses, memory.table.get, now_ns):
            self._seen(event)
        self.share_queues()
        self._executor.take(Reviewed(self._cpus.known()))

    def _forgotten(self, uses: Sequence[SocketUse]) -> dict[int, int]:
        """The CPUs of sockets that have an entry and exist, and that the observer does not list. It
        had to forget them while a report of theirs waited here. Without a further report they would
        count as closed."""
        table, found = self._engine.memory.table, dict[int, int]()
        for cookie in table.cookies() - {use.cookie for use in uses}:
            for flow in table.of_cookie(cookie):
                session = self._sessions.get(flow.nic)
                if session is None or flow.key.listens:
                    continue
                with suppress(OSError):  # the kernel does not say: then the list counts
                    if session.socket_of(flow.key) == cookie:
                        found[cookie] = flow.app_cpu
        return found

    def share_queues(self) -> None:
        """Decide which thread owns which queue; queues without an owner go home."""
        online = frozenset(cpu.index for cpu in self._cpus.known().cpus if cpu.online)
        self._executor.take(QueuesLooked(online))

    def resync(self) -> None:
        """After lost events: read the sockets as they are, and end entries without one."""
        self.resyncs += 1
        self._executor.take(AuditDue())
        self.audited_ns = time.monotonic_ns()
        self._executor.take(SocketsAudited(self._observer.inventory()))

    def bootstrap(self) -> None:
        """The sockets that were there before us."""
        watches = [session.watch for session in self._sessions.values()]
        nics = [nic_of(use, watches) for use in self._observer.inventory()]
        for watch in watches:
            what = f"{nics.count(watch)} sockets receive through it"
            self._log.add("bootstrap", what, "there before this run", nic=watch.facts.name)

    def adopt(self, nic: str, left: Sequence[Filter]) -> None:
        """Take over the filters that an earlier run left in a NIC, with their sockets."""
        if left:
            self._executor.take(AuditDue())
            self._executor.take(FiltersLeft(nic, left, self._observer.inventory()))

    def forget_unknown(self) -> None:
        """Sockets that were reported and have no entry: have the observer report them again when
        they are used, if the policy wants them."""
        memory = self._engine.memory
        known = {flow.cookie for flow in memory.table}
        known |= {flow.cookie for flow in memory.table.overflowed.values()}
        if unknown := {use.cookie for use in self._observer.audit()} - known:
            self._observer.forget(unknown)
