# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator may ask of a running daemon: arm, disarm, pause, resume, restore.

An order holds until the next one, also while an interface goes and comes back, and for the next
run.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

from atfnd.daemon.arming import Arming
from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.daemon.host_settings import KeptHost
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.session import NicSession
from atfnd.engine.event import Armed, Disarmed, Paused, Resumed, TakenUp
from atfnd.engine.table.flow_table import FlowTable
from atfnd.errors import OperatorError
from atfnd.model import FlowState, Restored
from atfnd.model.reason import Code, Why
from atfnd.program.balance import BALANCER
from atfnd.program.host_settings import HOST
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import ALL, OperatorJournal
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog

__all__ = ["OperatorCommands"]

_Off = type[Disarmed] | type[Paused]
_Order = _Off | type[Armed] | type[Resumed]


class OperatorCommands:
    """By the name of a NIC; KeyError: there is none of that name."""

    def __init__(
        self,
        nics: ServedNics,
        executor: Executor,
        arming: Arming,
        host: KeptHost,
        table: FlowTable,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        operator_journal: OperatorJournal,
        log: EventLog,
    ) -> None:
        self._nics, self._executor, self._arming = nics, executor, arming
        self._host, self._table = host, table
        self._journal, self._undo_journal = journal, undo_journal
        self._operator_journal, self._log = operator_journal, log
        self.end_measurement: Callable[[str | None], object] = lambda nic: None  # of it, or of all

    async def arm(self, nic: str) -> None:
        """Allow changes on a NIC, and place every flow that waits for it."""
        session = self._session(nic)
        self.end_measurement(nic)
        self._order("arm", nic)
        self.arm_now(session, Code.ASKED_FOR())
        self._host.arm()

    async def disarm(self, nic: str | None) -> None:
        """Stop every change at once, on one NIC or on all, also on those to come; filters in place
        stay. OperatorError: the order is in force, but a restart will not know of it, or a move did
        not end in order."""
        every = self._nics.sessions
        sessions = list(every.values()) if nic is None else [every[nic]]
        self.end_measurement(nic)
        but, hint = list[str](), "it is in force nevertheless; `atfnctl events` says more"
        try:
            but += self.disarm_now(sessions, Code.ASKED_FOR())[:1]
        finally:
            refused = self._order("disarm", ALL if nic is None else nic)
        if refused is not None:
            but.append(f"the order cannot be recorded, and holds for this run only: {refused}")
            hint = "it is in force nevertheless; make room, then disarm again"
        if but:
            where = "every interface" if nic is None else nic
            raise OperatorError(f"{where} is disarmed, but {'; '.join(but)}", hint)

    async def pause(self, nic: str) -> None:
        """Take our filters out of a NIC and put its settings back, armed or not, and change nothing
        until `resume`. OperatorError: the kernel refused some of it."""
        session = self._session(nic)
        self.end_measurement(nic)
        ours = self._journal.names(nic) or self._undo_journal.held(nic)
        done = list[Restored]()
        if ours or not (session.view.paused and self._operator_journal.paused(nic)):
            try:
                self._off([session], Paused)
            finally:
                self._order("pause", nic)
            done = self._take_out(session, Code.PAUSED())
            self._log.add("pause", "paused: our filters are out", Code.ASKED_FOR(), nic=nic)
            self._executor.take(TakenUp(nic))
        done += [*self._host.pause(), *await self._arming.balancing.lift(nic)]
        if refused := ", ".join(each.what for each in done if not each.done):
            what = f"{nic} is paused, but the kernel refused to undo: {refused}"
            raise OperatorError(what, f"atfnctl events --nic {nic} says why")

    async def resume(self, nic: str) -> None:
        """Put back what `pause` took out, if the NIC was armed then, and take over again what we
        left alone because another program had moved it."""
        session = self._session(nic)
        self.end_measurement(nic)
        theirs: Collection[object] = session.view.manual
        for of in (HOST, BALANCER):
            theirs = theirs or self._undo_journal.manual(of)
        manual = [f for f in self._table if (f.nic, f.state) == (nic, FlowState.MANUAL)]
        if not (session.view.paused or theirs or manual):
            return
        self._order("resume", nic)
        self._log.add("resume", "resumed", Code.ASKED_FOR(), nic=nic)
        self._switch(session, Resumed)
        self._arming.take_back(session)
        self._host.take_back()
        self.bring_back(session, manual=True)

    async def restore(self, nic: str) -> Sequence[Restored]:
        """Take our filters out of a NIC and put its settings back, armed or not, and leave it
        disarmed. Returns the result for each of them."""
        session = self._session(nic)
        self.end_measurement(nic)
        try:
            self.disarm_now([session], Code.RESTORED())
        finally:
            self._order("disarm", nic)
        done = self._take_out(session, Code.RESTORED())
        self._executor.take(TakenUp(nic))
        return [*done, *self._host.pause(), *await self._arming.balancing.lift(nic)]

    def _session(self, nic: str) -> NicSession:
        """KeyError: it is not here, has just gone, or has another name now."""
        with self._nics.while_there(session := self._nics.sessions[nic]):
            session.watch.still_there()
        return self._nics.sessions[nic]

    def end(self) -> list[str]:
        """Nothing is written any more, and every move ends; orders that were given hold. Returns
        what did not end in order, in words."""
        sessions = self._nics.sessions
        for name in sessions:
            self._executor.take(Disarmed(name))
        stilled = [(name, self._executor.still(session)) for name, session in sessions.items()]
        return [f"moves of {name} did not end in order: {why}" for name, why in stilled if why]

    def set_aside(self, session: NicSession, why: Why) -> list[Restored]:
        """Pause a NIC, and record no order: the next run steers it as before. Interrupts that
        irqbalance leaves alone for us stay where they are. Returns the result for each
        change."""
        self._off((session,), Paused)
        done = self._take_out(session, why)
        self._executor.take(TakenUp(session.name))
        return [*done, *self._host.pause()]

    def bring_back(self, session: NicSession, *, manual: bool = False) -> None:
        """End a pause, an operator's or ours, if it has not ended; `manual`: also take over again
        what another program moved."""
        self._switch(session, Resumed)
        armed, name = session.view.armed, session.name
        with self._nics.while_there(session):
            self._arming.meet(session)
            if armed:
                self._nics.look_again(session)
        if armed and name in self._nics.sessions:
            self._executor.take(TakenUp(name, manual=manual))
        self._host.look()

    def arm_now(self, session: NicSession, why: Why) -> None:
        """From now on we may write to it."""
        name, old = session.name, _standing(session)
        self._switch(session, Armed)
        self._log.add("arm", "armed", why, nic=name, old=old, new=_standing(session))
        with self._nics.while_there(session):
            self._arming.meet(session)
            self._nics.look_again(session)
            self._nics.filters.adopt(session)
        if name in self._nics.sessions:
            self._executor.take(TakenUp(name))
        self._host.look()

    def disarm_now(self, sessions: Sequence[NicSession], why: Why) -> list[str]:
        """Disarm all of them before anything else happens. Returns what could not be done in order
        then, in words; they are disarmed."""
        standing = {session.name: _standing(session) for session in sessions}
        what, new = "disarmed: nothing is changed any more", "not armed"
        with ExitStack() as logging:  # whatever fails
            for name, old in standing.items():
                logging.callback(self._log.add, "disarm", what, why, nic=name, old=old, new=new)
            return self._off(sessions, Disarmed)

    def _off(self, sessions: Sequence[NicSession], off: _Off) -> list[str]:
        """Nothing is written to any of these NICs from now on; then their moves end. Returns what
        the kernel refused meanwhile, in words. It does not stand in the way of what comes next."""
        refused = list[str]()

        def switch(session: NicSession) -> None:
            if (why := self._switch(session, off)) is not None:
                refused.append(f"it could not be read: {why}")

        def still(session: NicSession) -> None:
            if (why := self._executor.still(session)) is not None:
                refused.append(f"moves under way did not end in order: {why}")

        with ExitStack() as ending:  # the last callback runs first; all run, whatever fails
            for session in sessions:
                ending.callback(still, session)
            for session in sessions:
                ending.callback(switch, session)
        return refused

    def _switch(self, session: NicSession, order: _Order) -> str | None:
        """Change how a NIC stands; that is in force, whatever fails. Returns why what was read
        until now is not counted, if so."""
        was_armed = session.view.armed
        self._executor.take(order(session.name))  # before what may fail
        try:
            session.watch.look_at_reads(armed=was_armed)
        except OSError as refusal:
            why = refusal.strerror or str(refusal)
            what = "what was read until now is not counted"
            self._log.add("refused", what, why, nic=session.name)
            return why
        return None

    def _take_out(self, session: NicSession, why: Why) -> list[Restored]:
        """Undo every filter and every setting of ours. The NIC is off, and undoing does not arm
        it."""
        try:
            self._nics.filters.check(session)  # what another program has just changed is theirs
        except OSError as refusal:  # it does not list them: `take_out` says that
            if refusal.errno == errno.ENODEV:
                raise
        done = self._executor.take_out(session, UndoPermit(session.name, why))
        try:
            self._arming.taken_out(session)
        except OSError as refusal:  # it is read again at the next look
            if refusal.errno == errno.ENODEV:
                raise
            unread = refusal.strerror or str(refusal)
            self._log.add("unread", "cannot be read after that", unread, nic=session.name)
        return done

    def _order(self, verb: str, nic: str) -> str | None:
        """Record the order: it holds from now on. Returns why a restart will not know of it, if
        so."""
        try:
            self._operator_journal.say(verb, nic)
        except Unrecorded as refusal:
            why = f"it holds for this run only: {refusal.strerror}"
            self._log.add("unrecorded", f"{verb} {nic}", why, nic=None if nic == ALL else nic)
            return refusal.strerror
        return None


def _standing(session: NicSession) -> str:
    return "armed" if session.view.armed else "not armed"
