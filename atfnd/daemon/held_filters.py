# SPDX-License-Identifier: GPL-2.0-or-later
"""The filters that NICs list, compared with the table and with the journal."""

from __future__ import annotations

from collections.abc import Sequence

from atfnd.daemon.executor import Executor
from atfnd.daemon.session import NicSession
from atfnd.daemon.sockets import SocketReader
from atfnd.engine.engine import Engine
from atfnd.engine.event import FiltersListed, ForeignFound
from atfnd.model import Filter, Match
from atfnd.program.journals.filter_journal import FilterJournal

__all__ = ["HeldFilters"]


class HeldFilters:
    """OSError: a NIC does not list its filters now; ENODEV: it is gone."""

    def __init__(
        self, engine: Engine, executor: Executor, sockets: SocketReader, journal: FilterJournal
    ) -> None:
        self._memory, self._executor = engine.memory, executor
        self._sockets, self._journal = sockets, journal

    def check(self, session: NicSession) -> None:
        """Compare what the table says a NIC holds with what it lists. A link that is down may have
        lost all its filters: it is asked when it is up."""
        name, table = session.name, self._memory.table
        flows = any(flow.nic == name for flow in table)
        if not session.view.up or not (flows or self._journal.names(name)):
            return
        filters = session.watch.read_filters()
        if flows:
            self._executor.take(FiltersListed(name, filters, session.watch.disturbed()))
        self._release_stale_claims(session, filters)
        self._count_others(session, filters)

    def adopt(self, session: NicSession) -> None:
        """Take over the filters an earlier run left, by the journal and what the NIC holds."""
        filters = self._read_filters(session)
        self._sockets.adopt(session.name, self._journal.ours(session.name, filters))

    def _release_stale_claims(self, session: NicSession, filters: Sequence[Filter]) -> None:
        """What the journal names and the table does not have: it is named no longer if the NIC does
        not list it, or lists that of another program, and taken over or deleted if it is ours."""
        name, memory = session.name, self._memory
        known = {Match.of(flow.key) for flow in memory.table.steered(name)}
        unknown = [each for each in self._journal.named(name) if each not in known]
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
        ours = {flow.location for flow in self._memory.table.steered(name)}
        ours |= {each.location for each in self._journal.ours(name, filters)}
        theirs = (each for each in filters if each.location not in ours)
        found = tuple(each._replace(hits=None) for each in theirs)
        if session.view.foreign is None or session.view.theirs != found:
            self._executor.take(ForeignFound(name, found))
