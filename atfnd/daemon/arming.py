# SPDX-License-Identifier: GPL-2.0-or-later
"""What steering a NIC takes besides its filters: proof of what it can, other steering off, queues
on CPUs, and, without rules, its indirection table. Each change is journaled and can be undone.

Runs on the daemon's loop. OSError(ENODEV): the NIC is gone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from atfnd.daemon.balancing import Balancing
from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.daemon.in_force import InForce
from atfnd.daemon.session import NicSession, Sessions
from atfnd.engine.command import LookAtInterrupts
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    CpusChanged,
    CpusRead,
    EntriesDue,
    EntriesLeftAlone,
    EntriesLooked,
    EntriesWritten,
    Event,
    InterruptsSpared,
    MethodDue,
    OriginalsRead,
    QueuesLoosened,
    SettingsDue,
    SpreadRead,
    TakenUp,
)
from atfnd.engine.placement.steering_method import of_queue
from atfnd.errors import refusable
from atfnd.model import SteeringMethod, Topology, brief
from atfnd.model.reason import Code, Why
from atfnd.observe.machine.topology import CpuWatch
from atfnd.program.balance import BALANCER
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import drifted
from atfnd.serve.log.event_log import EventLog

__all__ = ["Arming"]


class Arming:
    """Writes only through the executor: a NIC that is not armed stays as it is."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        sessions: Sessions,
        undo_journal: UndoJournal,
        cpus: CpuWatch,
        in_force: InForce,
        log: EventLog,
    ) -> None:
        self._memory, self._executor, self._sessions = engine.memory, executor, sessions
        self._undo_journal, self._cpus = undo_journal, cpus
        self._in_force, self._log = in_force, log
        self.balancing = Balancing(engine.memory.balancers, executor, undo_journal)
        executor.answer(LookAtInterrupts, self._look_at_interrupts)

    def meet(self, session: NicSession) -> None:
        """A NIC that is new here, or was armed just now."""
        session.met = False
        permit = UndoPermit(session.name, Code.BORROWED_BEFORE())
        self._executor.end_loans(session, permit)
        if not session.view.armed:
            self._inspect(session)
            session.met = True
            return
        self._know_manual(session)
        self._executor.probe(session)
        self._inspect(session)
        self._after_absence(session)
        self._prepare(session)
        self._know_homes(session)
        session.met = True

    def policy_renewed(self, session: NicSession) -> None:
        """The policy may take the owner from queues that followed one, and ask for other means."""
        before = session.view.method
        self._executor.take(MethodDue(session.name))
        if not session.view.armed:
            return
        if session.view.method is not before:
            self._prepare(session)
        self._know_homes(session)

    def _know_homes(self, session: NicSession) -> None:
        """Note where its queues go when they have no owner."""
        self._rely_on_queues(session)
        originals = self._originals(session)
        self.read_cpus()
        self._executor.take(OriginalsRead(session.name, originals))

    def _originals(self, session: NicSession) -> dict[str, str]:
        held = self._undo_journal.held(session.name).items()
        return {name: each.original for name, each in held}

    def _rely_on_queues(self, session: NicSession) -> None:
        """Flows are led to queues by their CPUs, also to those that were found on one. If nothing
        is steered any more, what was not written may have any value."""
        view, journal = session.view, self._undo_journal
        held = journal.held(view.name)
        for setting in (of_queue("queue-cpu", queue.index) for queue in view.queues):
            value = view.settings.get(setting, "")
            if view.method is not SteeringMethod.NONE:
                if value.isdecimal() and setting not in view.manual:
                    journal.rely_on(view.name, setting, value)
            elif setting in held and held[setting].wrote is None:
                journal.forget(view.name, setting)

    def take_back(self, session: NicSession) -> None:
        """What another program moved is ours again, because the operator said so."""
        self._undo_journal.take_back(session.view.name)
        self._undo_journal.take_back(BALANCER)
        self._know_manual(session)

    def _know_manual(self, session: NicSession) -> None:
        """The undo journal says which settings another program changed after us."""
        self._executor.take(self._executor.left_alone(session.name))

    def confine(self, session: NicSession) -> None:
        """Put queues back on the CPUs that a link flap made them forget, and restore everything
        else that the NIC has lost by itself on coming up."""
        if not session.view.armed or not session.met:
            return
        unpinned = {queue.index: cpu for queue, cpu in session.watch.unpinned()}
        self.put_queues(session, QueuesLoosened(session.name, unpinned))
        if session.prepared != session.watch.lives:
            self._inspect(session)
            self._forget_drifted(session)
            self._prepare(session)
            self._know_homes(session)

    def cpus_changed(self, session: NicSession) -> None:
        """A CPU went offline or came back: the engine may put queues elsewhere."""
        if self.put_queues(session, CpusChanged(session.name)):
            self._executor.take(TakenUp(session.name))

    def put_queues(self, session: NicSession, event: Event) -> bool:
        """After this event, queues may have to be put on other CPUs. False: none had to."""
        if done := self._executor.take(event):
            session.watch.refresh()
        return bool(done)

    def _look_at_interrupts(self, command: LookAtInterrupts) -> Iterable[Event]:
        session, held = self._sessions[command.nic], self._undo_journal.held(command.nic)
        with refusable(errno.ENODEV):  # it is gone: the loop is about to hear of that
            session.watch.read_settings()
            moved = drifted(command.nic, session.view.settings, self._undo_journal)
            wrote = {each: held[each].wrote or held[each].original for each in moved}
            self.put_queues(session, InterruptsSpared(command.nic, command.irqs, wrote))
        return ()

    def _moved(self, session: NicSession) -> dict[str, str]:
        """What another program moved. This leaves out what the NIC lost by itself when it came up
        anew, be it a moment ago, and what an irqbalance may have moved that we are about to
        tell."""
        if moved := drifted(session.view.name, session.view.settings, self._undo_journal):
            session.watch.refresh()
            if self._undo_journal.life(session.view.name) != session.watch.life():
                return {}  # set again by `confine`
        queues = () if session.view.method is SteeringMethod.NONE else session.view.queues
        irqs = {f"queue-cpu:{q.index}": q.irq for q in queues if q.irq is not None}
        doubted = self.balancing.may_have_moved
        return {k: v for k, v in moved.items() if k not in irqs or not doubted(irqs[k])}

    def _prepare(self, session: NicSession) -> None:
        """Make the changes that steering it needs."""
        session.prepared = session.watch.lives
        self._undo_journal.lives(session.view.name, session.watch.life())
        self.balancing.look_soon()
        self.read_cpus()
        if self._executor.take(SettingsDue(session.name)):
            session.watch.refresh()
            self._inspect(session)

    def waiting(self) -> bool:
        """Some flow waits for `turn`."""
        return any(self._memory.table.planned(name) for name in self._sessions)

    def inspect(self, session: NicSession) -> None:
        """Look at capabilities and conflicts again; they may ask for other means."""
        before = session.view.method, session.view.method_why
        self._inspect(session)
        self._take_up_if_other(session, before)

    def check(self, session: NicSession) -> None:
        """What another program moved stays as it left it. Look at indirection entries again,
        too."""
        if not session.view.armed:
            return
        before = session.view.method, session.view.method_why
        session.watch.read_settings()
        self._leave_alone(session, self._moved(session))
        if session.view.symmetric_hash:
            session.watch.read_stats()
            self._executor.take(SpreadRead(session.name, self._originals(session)))
        self._executor.take(EntriesLooked(session.name))
        self._take_up_if_other(session, before)

    def _take_up_if_other(self, session: NicSession, before: tuple[SteeringMethod, Why]) -> None:
        if before != (session.view.method, session.view.method_why):
            self._executor.take(TakenUp(session.name))

    def turn(self, session: NicSession) -> None:
        """Point the indirection entries of waiting flows to the CPUs where these are used."""
        if not self._memory.table.planned(session.name):
            return
        session.watch.read_rss()
        before = session.view.rss
        if outcomes := self._executor.take(EntriesDue(session.name)):
            session.watch.read_rss()
        if any(outcome.errno == errno.ESTALE for outcome in outcomes):
            self.check(session)
            return
        self._executor.take(EntriesWritten(session.name, before, outcomes))

    def taken_out(self, session: NicSession) -> None:
        """Our changes were taken out: read what it has now."""
        self._inspect(session)

    def _after_absence(self, session: NicSession) -> None:
        """Settings that moved while no daemon ran: another program moved them if the NIC is still
        the instance that we wrote to; if it has come up anew since, it lost them by itself."""
        self._leave_alone(session, self._moved(session))
        if self._undo_journal.life(session.view.name) != session.watch.life():
            self._forget_drifted(session)

    def _forget_drifted(self, session: NicSession) -> None:
        """What these settings are now is their original value when they are written again."""
        name = session.view.name
        for each in drifted(name, session.view.settings, self._undo_journal):
            self._undo_journal.forget(name, each)

    def _inspect(self, session: NicSession) -> None:
        """Read the NIC again: its flows may have to be steered in another way."""
        session.watch.inspect()
        self._executor.take(MethodDue(session.name))

    def _leave_alone(self, session: NicSession, moved: dict[str, str]) -> None:
        name = session.view.name
        for each, value in moved.items():
            self._undo_journal.leave_alone(name, each)
            why = f"another program changed it: left alone until `atfnctl resume {name}`"
            self._log.add("manual", f"{each} is {brief(value)}", why, nic=name)
        if moved:
            self._know_manual(session)
            self._executor.take(MethodDue(session.name))
        if "rss" in moved:
            self._executor.take(EntriesLeftAlone(session.name))

    def read_cpus(self) -> Topology:
        """CPUs as sysfs describes them now."""
        known = self._cpus.read()
        self._executor.take(CpusRead(known))
        return known
