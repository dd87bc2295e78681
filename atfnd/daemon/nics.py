# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs that are served, over time: they come late, flap, change queues, reset, are renamed and
go.

A NIC that is gone is forgotten, and the others are served on. What a NIC lost by itself is put
back; what another program changed is left alone.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from atfnd.daemon.arming import Arming
from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.session import NicSession, Sessions
from atfnd.daemon.sockets import SocketReader
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    CpusChanged,
    FiltersListed,
    NicAttached,
    NicChanged,
    NicLost,
    NicRenamed,
    TakenUp,
)
from atfnd.errors import OperatorError
from atfnd.model import Filter, Match, NicView
from atfnd.observe import Observer
from atfnd.observe.machine.topology import CpuWatch
from atfnd.observe.nics.interfaces import Interfaces
from atfnd.observe.nics.watch import NicWatch
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog

__all__ = ["ServedNics"]

# A driver that is being reset or reloaded answers so.
_NOT_NOW = {errno.EIO, errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETDOWN}


class ServedNics:
    """`interfaces` are those the operator wants; `sessions` holds those that are here."""

    def __init__(
        self,
        interfaces: Interfaces,
        sessions: Sessions,
        engine: Engine,
        executor: Executor,
        arming: Arming,
        sockets: SocketReader,
        births: BirthReader,
        observer: Observer,
        cpus: CpuWatch,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        operator_journal: OperatorJournal,
        log: EventLog,
    ) -> None:
        self.interfaces, self.sessions = interfaces, sessions
        self._engine, self._executor, self._arming = engine, executor, arming
        self._sockets, self._births, self._observer = sockets, births, observer
        self._cpus, self._journal, self._undo_journal = cpus, journal, undo_journal
        self._operator_journal, self._log = operator_journal, log
        self._unwatched = 0  # queues that the observer has no room for

    def attach(self, watch: NicWatch) -> NicSession:
        """Serve a NIC from now on. The operator's last order for it holds."""
        loop, name = asyncio.get_running_loop(), watch.view.name
        watch.reads_by(partial(self._observer.reads, name))
        if (armed := self._operator_journal.armed(name)) is not None and armed != watch.view.armed:
            watch.arm(armed)
            what = "armed" if armed else "disarmed"
            self._log.add("arm" if armed else "disarm", what, "asked for before", nic=name)
        if self._operator_journal.paused(name):
            watch.pause()
            self._log.add("pause", "paused", "asked for before", nic=name)
        session = self.sessions[name] = NicSession(watch)
        self._executor.take(NicAttached(watch.view))
        watch.reports_to(self._changed_view)
        for listener in watch.listeners:
            loop.add_reader(listener.fileno(), self._changed, session)
        return session

    def detach(self, session: NicSession) -> None:
        """Close its descriptors; changes nothing in the NIC."""
        loop = asyncio.get_running_loop()
        for listener in session.watch.listeners:
            loop.remove_reader(listener.fileno())
        session.watch.close()

    def _changed_view(self, view: NicView) -> None:
        self._executor.take(NicChanged(view))

    def watch(self) -> None:
        """Tell the observer which NAPIs are ours."""
        watches = [session.watch for session in self.sessions.values()]
        napis = {each: watch.view.name for watch in watches for each in watch.napi_ids.now}
        napis |= {each: watch.view.name for watch in watches for each in watch.napi_ids}
        unwatched = self._observer.watch(sorted({w.nic.netns for w in watches}, key=str), napis)
        if unwatched > self._unwatched:
            why = "there are more queues than the observer's map holds"
            self._log.add("napis", f"{unwatched} queues, past or present, are not seen", why)
        self._unwatched = unwatched
        for watch in watches:
            watch.look_at_reads()
        self._births.serve()

    def arrivals(self) -> None:
        """A link is new, or has a new name: take it if the operator wants it and we do not have it
        yet."""
        if (changed := self.interfaces.links.drain()) == set():
            return
        self.each(lambda session: None)  # a new name of one we have is no arrival
        if self.interfaces.may_have_come(changed, self.sessions):
            self._take_new()

    def _take_new(self) -> None:
        """Take each interface that the operator wants, that is here, and that is not watched."""
        for watch in self.interfaces.come(self.sessions, self._not_watched):
            self._take(watch, "the interface appeared")

    def _not_watched(self, name: str, why: str) -> None:
        self._log.add("refused", "not watched", why, nic=name)

    def _take(self, watch: NicWatch, why: str) -> None:
        """Serve a NIC that comes while we run."""
        session = self.attach(watch)
        self.watch()
        what = f"watched, {len(watch.view.queues)} queues"
        self._log.add("attach", what, why, nic=session.name)
        with self.while_there(session):
            self._arming.meet(session)
            self.adopt(session)

    def adopt(self, session: NicSession) -> None:
        """Take over the filters an earlier run left, by the journal and what the NIC holds."""
        filters = self._read_filters(session)
        self._sockets.adopt(session.name, self._journal.ours(session.name, filters))

    def _changed(self, session: NicSession) -> None:
        """rtnetlink or ethtool has reported a change in its namespace."""
        with self.while_there(session):
            session.watch.still_there()
            if session.watch.changed():
                self.look_again(session)

    @contextmanager
    def while_there(self, session: NicSession) -> Iterator[None]:
        """If the NIC is renamed or gone (ENODEV), or refuses to be read for now, the block ends.
        The other NICs are served on; what the block was to do is done at the next look."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENODEV:
                self._gone(session)
            elif error.errno in _NOT_NOW and not isinstance(error, Unrecorded):
                self._not_read(session, error)
            else:
                raise
        else:
            session.unread = ""

    def _not_read(self, session: NicSession, error: OSError) -> None:
        why = error.strerror or str(error)
        if why != session.unread:
            self._log.add("unread", "cannot be read now: tried again", why, nic=session.name)
        session.unread = why

    def each(self, look: Callable[[NicSession], None]) -> None:
        """Look at every NIC that is still there."""
        for session in list(self.sessions.values()):
            with self.while_there(session):
                session.watch.still_there()
                look(session)

    def _gone(self, session: NicSession) -> None:
        name, new = session.name, session.watch.name_now()
        del self.sessions[name]
        self._executor.still(session)
        if new is None:
            self._executor.forget(session, UndoPermit(name, "the interface is gone"))
        self.detach(session)
        if new is None:
            for match in self._journal.left.get(name, {}):
                self._journal.release(name, match)
            self._log.add("gone", "not watched any more", "the interface is gone", nic=name)
        else:
            self._journal.rename(name, new)
            self._undo_journal.rename(name, new)
            self._log.add("gone", f"is {new} now", "the interface was renamed", nic=name)
        self.watch()
        self._executor.take(NicLost(name) if new is None else NicRenamed(name, new))
        if new is not None:
            self._holds_for(new, session)
            try:
                self._take(self.interfaces.open(new), f"it was {name}")
            except OperatorError as refusal:
                self._executor.take(NicLost(new))
                self._not_watched(new, refusal.message)

    def _holds_for(self, new: str, session: NicSession) -> None:
        """What holds for a NIC goes on to hold under its new name."""
        with suppress(Unrecorded):
            if self._operator_journal.armed(new) is None:
                self._operator_journal.say("arm" if session.watch.armed_again else "disarm", new)
            if self._operator_journal.paused(session.name):  # not by a measurement
                self._operator_journal.say("pause", new)

    def look_again(self, session: NicSession) -> None:
        """Resolve a NIC's queues again; put back the CPUs and the filters that a flap or reset
        lost."""
        session.watch.refresh()
        changed = session.watch.news()
        if not session.met:
            self._arming.meet(session)
        if changed:
            view = session.view
            state = "up" if view.up else "down"
            self._log.add("link", f"is {state}, {len(view.queues)} queues", nic=view.name)
            self.watch()
            self._executor.know(session)
        self._arming.confine(session)
        if changed:
            self.check_filters(session)
            self._executor.take(TakenUp(session.name))

    def cpus_changed(self) -> None:
        """A CPU went offline or came back: the engine may put queues elsewhere."""
        if not self._cpus.changed():
            return
        self._arming.read_cpus()
        for session in list(self.sessions.values()):
            with self.while_there(session):
                if self._arming.put_queues(session, CpusChanged(session.name)):
                    self._executor.take(TakenUp(session.name))

    def reconcile(self) -> None:
        """Compare entries with the NICs' filters and queues."""
        self.cpus_changed()
        self.each(self.look_again)
        self.each(self.check_filters)
        self._take_new()  # a lab sends no events: its links are in namespaces of their own

    def check_filters(self, session: NicSession) -> None:
        """Compare what the table says a NIC holds with what it lists. A link that is down may have
        lost all its filters: it is asked when it is up."""
        name, table = session.name, self._engine.memory.table
        flows = any(flow.nic == name for flow in table)
        if not session.view.up or not (flows or self._journal.names(name)):
            return
        filters = session.watch.read_filters()
        if flows:
            self._executor.take(FiltersListed(name, filters, session.watch.disturbed()))
        self._release_stale_claims(session, filters)
        self._count_others(session, filters)

    def _release_stale_claims(self, session: NicSession, filters: Sequence[Filter]) -> None:
        """What the journal names and the table does not have: it is named no longer if the NIC does
        not list it, or lists that of another program, and taken over or deleted if it is ours."""
        name, memory = session.name, self._engine.memory
        known = {Match.of(flow.key) for flow in memory.table.steered(name)}
        unknown = [each for each in self._journal.left.get(name, {}) if each not in known]
        if not unknown:
            return
        ours = [each for each in self._journal.ours(name, filters) if each.match in unknown]
        there = {each.match for each in ours}
        for match in (each for each in unknown if each not in there):
            self._journal.release(name, match)
        strays = memory.nics[name].strays.keys()
        left = []
        for each in ours:
            key = None if each.match is None else each.match.key()
            if key is not None and key not in strays and not session.moves_flow(key):
                left.append(each)
        if left and session.view.armed:
            self._sockets.adopt(name, left)

    def _read_filters(self, session: NicSession) -> list[Filter]:
        """List every filter of a NIC that takes filters, or that held ours; count those of
        others."""
        if not session.view.caps.filters and not self._journal.names(session.name):
            return []
        filters = session.watch.read_filters()
        self._count_others(session, filters)
        return filters

    def _count_others(self, session: NicSession, filters: Sequence[Filter]) -> None:
        """Filters that are neither in the table nor left by an earlier run belong to other
        programs."""
        name = session.name
        ours = {flow.location for flow in self._engine.memory.table.steered(name)}
        ours |= {each.location for each in self._journal.ours(name, filters)}
        theirs = (each for each in filters if each.location not in ours)
        session.watch.others(tuple(each._replace(hits=None) for each in theirs))
