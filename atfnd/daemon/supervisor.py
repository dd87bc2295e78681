# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop: builds the daemon's parts, has them read what is ready, and looks regularly for what no
event reports.

One asyncio loop, one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from atfnd.daemon import cpu_times
from atfnd.daemon.agenda import Agenda
from atfnd.daemon.arming import Arming
from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.chores import Pace, Rounds, Shortage, bugs
from atfnd.daemon.cpu_times import Loads
from atfnd.daemon.executor import Executor
from atfnd.daemon.flow_rules import FlowRules, sources
from atfnd.daemon.forwarding import Forwarded
from atfnd.daemon.found_sockets import FoundSockets
from atfnd.daemon.guarding import Guarding, GuardPace
from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.held_filters import HeldFilters
from atfnd.daemon.host_settings import KeptHost
from atfnd.daemon.in_force import InForce
from atfnd.daemon.interface_rules import Given, InterfaceRules
from atfnd.daemon.measuring import Measuring
from atfnd.daemon.nic_records import NicRecords
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.pairing import Pairing
from atfnd.daemon.recording import Recorder
from atfnd.daemon.reload import PolicyReload, Step
from atfnd.daemon.remembering import Remembering
from atfnd.daemon.reporter import Reporter
from atfnd.daemon.served import Served
from atfnd.daemon.session import NicSession, Sessions, moving
from atfnd.daemon.sockets import SocketReader
from atfnd.daemon.surveying import Surveying
from atfnd.daemon.trying import Trying
from atfnd.daemon.wanted_reports import WantedReports
from atfnd.daemon.watched_queues import WatchedQueues
from atfnd.engine.engine import Engine
from atfnd.engine.event import CpuSpent, CpusRead, RemainsDue, TakenUp, Tick
from atfnd.engine.table.memory import Memory
from atfnd.model import Policy
from atfnd.observe import Observer
from atfnd.observe.machine.topology import CpuWatch
from atfnd.observe.nics.interfaces import Interfaces
from atfnd.observe.nics.watch import NicWatch
from atfnd.policy.match.matching import Matching
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.api.loopback import Page
from atfnd.serve.log.event_log import EventLog
from atfnd.serve.notify import Notify

__all__ = ["Supervisor"]


class Supervisor:
    """Steers the flows of some NICs, and shows them."""

    def __init__(
        self,
        interfaces: Interfaces,
        observer: Observer,
        observer_why: str,
        policy: Policy,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        operator_journal: OperatorJournal,
        given: Given,
    ) -> None:
        self.log, self.pace, self.guard_pace = EventLog(), Pace(), GuardPace()
        self._sessions: Sessions = {}
        self._in_force, self._cpus, self._observer = InForce(policy), CpuWatch(), observer
        sessions, cpus, log, in_force = self._sessions, self._cpus, self.log, self._in_force
        self._engine = engine = Engine(Memory.of(policy))
        changes, matching = ChangeLog(log, sessions, in_force), Matching(policy, sources(policy))
        self._executor = executor = Executor(
            engine, sessions, observer, journal, undo_journal, changes, in_force
        )
        executor.take(CpusRead(cpus.known()))
        self._host = host = KeptHost(executor, undo_journal)
        recorder = Recorder(engine, sessions, observer, cpus)
        self._births = births = BirthReader(
            engine, executor, sessions, observer, matching, recorder, in_force, log
        )
        self._sockets = sockets = SocketReader(
            engine, executor, sessions, observer, matching, births, recorder, cpus,
            in_force, log,
        )  # fmt: skip
        self._arming = arming = Arming(
            engine, executor, sessions, undo_journal, cpus, in_force, log
        )
        self._queues = queues = WatchedQueues(sessions, observer, births, log)
        self._nics = nics = ServedNics(
            interfaces, sessions, executor, arming,
            HeldFilters(engine, executor, sockets, journal), queues,
            NicRecords(journal, undo_journal, operator_journal), engine,
            lambda nic: given.armed(in_force.policy, nic), log,
        )  # fmt: skip
        self._operator = operator = OperatorCommands(
            nics,
            executor,
            arming,
            host,
            engine.memory.table,
            journal,
            undo_journal,
            operator_journal,
            log,
        )
        self._trying = Trying(engine, executor, sessions, observer)
        self._reporter = reporter = Reporter(
            engine, sessions, observer, observer_why, in_force, changes,
            arming.read_cpus,
        )  # fmt: skip
        reporter.resyncs = lambda: sockets.resyncs
        self._agenda = Agenda(engine.memory, arming.waiting, self._due)
        executor.changed = self._agenda.schedule
        what = "the kernel has no room: some work is done later"
        self._shortage = Shortage(partial(log.add, "shortage", what))
        self._reports = reports = WantedReports(observer, recorder, sockets, births, in_force, cpus)
        interface_rules = InterfaceRules(given, executor, nics, operator, operator_journal)
        reporter.disarmed = lambda: interface_rules.disarmed(in_force.policy)
        flow_rules = FlowRules(engine, executor, sessions, matching, interface_rules.use)
        steps: Sequence[Step] = (
            lambda policy: matching.renew(policy, sources(policy)),
            lambda policy: reports.ask(),
            flow_rules.use,
            lambda policy: nics.each(arming.policy_renewed),
            lambda policy: nics.each(executor.know),
            lambda policy: births.renew(),
            lambda policy: self.page.want(policy.web_port),
            lambda policy: nics.each(self._take_up),
            lambda policy: sockets.forget_unknown(),
            lambda policy: host.look(),
        )
        self._reload = reload = PolicyReload(given.load, in_force, steps, log, self._shortage)
        self._measuring = measuring = Measuring(
            nics, operator, operator_journal, engine, observer, in_force, reload.put, log
        )
        self._guarding = guarding = Guarding(
            nics, operator, engine, observer, in_force, reload.put,
            lambda: measuring.under_way or recorder.asked() or self._trying.pressing(), log,
        )  # fmt: skip
        measuring.begins = guarding.end
        operator.end_measurement = self._ordered
        reporter.guard = guarding.shown
        self._surveying = Surveying(observer, sessions, cpus, reporter.plan, births.shared_ports)
        self._pairing = Pairing(sessions, cpus, engine)
        reporter.forwarded = self._pairing.totals
        self._forwarded = Forwarded(engine, in_force, sessions, self._pairing, log, executor.take)
        self._remembering = Remembering(reporter.status)
        self.source = Served(
            reporter,
            self._remembering,
            operator,
            reload,
            reports,
            sockets,
            FoundSockets(engine, sessions, observer),
            births,
            matching,
            self._surveying,
            self._pairing,
            in_force,
            measuring,
        )
        self.page = Page(self.source, log)
        self.page.want(policy.web_port)
        reload.tell_ready = reporter.tell_ready
        self.restoring = False  # it was asked to stop, and the policy wants all undone then
        self.left: Sequence[str] = ()  # what did not end in order at the stop

    @property
    def hangup(self) -> asyncio.Event:
        """Set at SIGHUP."""
        return self._reload.hangup

    def notify_by(self, notify: Notify) -> None:
        """The service manager."""
        self._reporter.notify = self._reload.notify = notify

    async def run(
        self,
        nics: Sequence[NicWatch],
        stop: asyncio.Event,
        close_api: Callable[[], Awaitable[None]],
        socket_path: Path,
    ) -> None:
        """Adopt, then steer until `stop` is set. Nothing of it goes on afterwards. What it changed
        stays, for the next run or, if it is `restoring`, for the undo by the journals."""
        loop = asyncio.get_running_loop()
        self._births.start()
        for watch in nics:
            self._nics.attach(watch)
        self._queues.watch()
        self._nics.each(self._arming.meet)
        self._sockets.bootstrap()
        self._nics.each(self._nics.filters.adopt)
        self._births.start()  # for a port's filter that was adopted
        loop.add_reader(self._observer.fileno(), self._sockets.read)
        loop.add_reader(self._nics.interfaces.links.fileno(), self._nics.arrivals)
        loop.add_reader(self._cpus.fileno(), self._look_at_cpus)
        tasks = [asyncio.ensure_future(each) for each in (stop.wait(), *self._chores(loop))]
        self._reporter.tell_ready()
        self._reporter.say_started(self.log, socket_path)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._agenda.end()
        await self._reload.end()
        self.restoring = stop.is_set() and self._in_force.policy.on_stop == "restore"
        self._reporter.notify.stopping(restoring=self.restoring)
        await close_api()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        self._close(loop)
        for each in ended:
            if isinstance(each, Exception):
                raise each  # a bug ends the daemon loudly; the filters stay, traffic flows on

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is under way ends first, then what it works on is closed."""
        self._measuring.stop()
        self._guarding.end()
        self._sockets.close()
        self._surveying.close()
        self._pairing.close()
        loop.remove_reader(self._observer.fileno())
        self._births.close()
        loop.remove_reader(self._nics.interfaces.links.fileno())
        loop.remove_reader(self._cpus.fileno())
        self._cpus.close()
        self.left = self._operator.end()
        for session in self._sessions.values():
            self._nics.detach(session)

    def _chores(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[None]]:
        """Regular work that no event starts, at a bounded cost."""
        rounds = Rounds(
            self._reporter.tell_alive, self._reporter.notify.watchdog_s, self._shortage, self.pace,
            lambda: self._engine.memory.cpu.over,
        )  # fmt: skip
        looks: list[Callable[[], None]] = [
            self._sockets.audit,
            self._reconcile,
            self._births.look_at_ports,
            self._recover,
            self._leave,
            Loads(self._in_force, self._executor.take).look,
            self._look_at_reads,
            self._forwarded.look,
            self._host.look,
        ]
        for look in (self._arming.check, self._arming.inspect, self._executor.know):
            looks.append(partial(self._nics.each, look))
        chores = [self._reload.hangups(), self._reporter.punctuality.watch()]
        self._guarding.pace = self.guard_pace
        chores += [self._arming.balancing.keep(), self.page.keep(), self._guarding.keep()]
        chores += [self._pairing.keep(), self._remembering.keep(self.pace)]
        chores.append(cpu_times.keep(self._spent))
        chores += map(rounds.regularly, looks)
        chores.append(rounds.regularly(self._trying.look, self._trying.pressing))
        if self._observer.poll_interval_s() is not None:
            chores.append(self._poll(rounds.part()))
        return [bugs(loop, self._shortage), *map(asyncio.ensure_future, chores)]

    async def _poll(self, ran: Callable[[], None]) -> None:
        while (every_s := self._observer.poll_interval_s()) is not None:
            await asyncio.sleep(every_s)
            try:
                self._sockets.read()
            except OSError as error:
                if not self._shortage.take(error):
                    raise
            ran()

    def _recover(self) -> None:
        """Events that came during a shortage may not have been taken into account: read everything
        again."""
        if self._shortage.over():
            self._sockets.resync()

    def _leave(self) -> None:
        self._executor.take(RemainsDue(moving(self._sessions)))
        self._births.end()

    def _take_up(self, session: NicSession) -> None:
        """Decide again on every flow that waits for this NIC."""
        self._executor.take(TakenUp(session.name))

    def _look_at_cpus(self) -> None:
        if self._cpus.changed():
            self._arming.read_cpus()
            self._reports.ask()  # parts of the machine may be others
            self._nics.each(self._arming.cpus_changed)

    def _reconcile(self) -> None:
        """Compare what is known with the CPUs and the NICs."""
        self._look_at_cpus()
        self._nics.reconcile()

    def _ordered(self, nic: str | None) -> None:
        """The operator has given an order for this NIC, or for all."""
        self._measuring.end(nic)
        self._guarding.ordered(nic)

    def _look_at_reads(self) -> None:
        for session in self._sessions.values():
            session.watch.look_at_reads(armed=session.view.armed)

    def _spent(self, spent: CpuSpent) -> None:
        self._executor.take(spent)
        self._sockets.go_on()

    def _due(self) -> None:
        """Carry out moves that are due, and turn indirection entries whose flows wait."""
        self._executor.take(Tick())
        self._nics.each(self._arming.turn)
