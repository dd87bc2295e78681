# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs that are served, over time: they come late, flap, change queues, reset, are renamed and
go.

A NIC that is gone is forgotten, and the others are served on. What a NIC lost by itself is put
back; what another program changed is left alone.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from atfnd.daemon.arming import Arming
from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.daemon.held_filters import HeldFilters
from atfnd.daemon.nic_records import NicRecords
from atfnd.daemon.session import NicSession, Sessions
from atfnd.daemon.watched_queues import WatchedQueues
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    NicAttached,
    NicLost,
    NicRead,
    NicRenamed,
    Paused,
    TakenUp,
)
from atfnd.errors import OperatorError
from atfnd.model import NicFacts
from atfnd.model.reason import Code
from atfnd.observe.nics.interfaces import Interfaces
from atfnd.observe.nics.watch import NicWatch
from atfnd.program.journals.record_file import Unrecorded
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
        executor: Executor,
        arming: Arming,
        filters: HeldFilters,
        queues: WatchedQueues,
        records: NicRecords,
        engine: Engine,
        may_write: Callable[[NicFacts], bool],
        log: EventLog,
    ) -> None:
        self.interfaces, self.sessions, self.filters = interfaces, sessions, filters
        self._executor, self._arming, self._queues = executor, arming, queues
        self._records, self._engine, self._may_write, self._log = records, engine, may_write, log

    def attach(self, watch: NicWatch) -> NicSession:
        """Serve a NIC from now on. The operator's last order for it holds."""
        loop, name = asyncio.get_running_loop(), watch.facts.name
        self._queues.count_reads(watch)
        wanted, ordered = self._may_write(watch.facts), self._records.armed(name)
        armed = wanted if ordered is None else ordered
        self._executor.take(NicAttached(watch.facts, armed))
        if armed != wanted:
            what = "armed" if armed else "disarmed"
            self._log.add("arm" if armed else "disarm", what, "asked for before", nic=name)
        if self._records.paused(name):
            self._executor.take(Paused(name))
            self._log.add("pause", "paused", "asked for before", nic=name)
        session = self.sessions[name] = NicSession(watch, self._engine.memory.nics[name])
        watch.reports_to(self._read)
        for listener in watch.listeners:
            loop.add_reader(listener.fileno(), self._changed, session)
        return session

    def detach(self, session: NicSession) -> None:
        """Close its descriptors; changes nothing in the NIC."""
        loop = asyncio.get_running_loop()
        for listener in session.watch.listeners:
            loop.remove_reader(listener.fileno())
        session.watch.close()

    def _read(self, facts: NicFacts) -> None:
        self._executor.take(NicRead(facts))

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
        self._queues.watch()
        what = f"watched, {len(watch.facts.queues)} queues"
        self._log.add("attach", what, why, nic=session.name)
        with self.while_there(session):
            self._arming.meet(session)
            self.filters.adopt(session)

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
        for name, session in list(self.sessions.items()):
            if self.sessions.get(name) is not session:
                continue  # it went while another one was looked at
            with self.while_there(session):
                session.watch.still_there()
                look(session)

    def _gone(self, session: NicSession) -> None:
        name, new = session.name, session.watch.name_now()
        del self.sessions[name]
        self._executor.still(session)
        if new is None:
            self._executor.forget(session, UndoPermit(name, Code.NIC_GONE()))
        self.detach(session)
        if new is None:
            self._records.gone(name)
            self._log.add("gone", "not watched any more", "the interface is gone", nic=name)
        else:
            self._log.add("gone", f"is {new} now", "the interface was renamed", nic=name)
            armed, paused, before = session.armed_again, self._records.paused(name), name
            name = self._make_way(name, new)
            self._records.keep_orders(new, armed=armed, paused=paused)
            if paused and before not in self.sessions:  # no other NIC has that name now
                self._records.resumed(before)
            self._records.renamed(name, new)
        self._queues.watch()
        self._executor.take(NicLost(name) if new is None else NicRenamed(name, new))
        if new is not None:
            try:
                self._take(self.interfaces.open(new), f"it was {name}")
            except OperatorError as refusal:
                self._executor.take(NicLost(new))
                self._not_watched(new, refusal.message)

    def _make_way(self, name: str, new: str) -> str:
        """Interfaces have exchanged names: the one that was served as `new` goes on under its own
        new name first. Returns what the records of the other one are named meanwhile: a slash is in
        no interface's name (dev_valid_name(), net/core/dev.c)."""
        if new not in self.sessions:
            return name
        meanwhile = f"{name}/"
        self._records.renamed(name, meanwhile)
        self._executor.take(NicRenamed(name, meanwhile))
        self._gone(self.sessions[new])
        return meanwhile

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
            self._queues.watch()
            self._executor.know(session)
        self._arming.confine(session)
        if changed:
            self.filters.check(session)
            self._executor.take(TakenUp(session.name))

    def reconcile(self) -> None:
        """Compare entries with the NICs' filters and queues."""
        self._records.catch_up()
        self.each(self.look_again)
        self.each(self.filters.check)
        self._take_new()  # a lab sends no events: its links are in namespaces of their own
