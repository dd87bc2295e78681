# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sockets listen on which port: those that receive through one NIC only. Pure.

Ports are found by their family and number, so that a look at all of them costs as much as there
are, whichever thread listens on how many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.engine.filters.readers import Readers
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import FlowKey, Listening, SocketUse, Thread, ThreadReads
from atfnd.model.reason import Code, Why

__all__ = ["Asked", "Listeners", "Place", "ServedPort", "place_of"]

Place = tuple[int, int]  # family, local port


class ServedPort(NamedTuple):
    """A port, and a thread that serves its connections: the policy may have one rule for them."""

    key: FlowKey
    thread: Thread | None


class Asked(NamedTuple):
    """A port's filter must be deleted."""

    at_ns: int
    queue: int | None  # that it leads to


@dataclass(slots=True)
class Listeners:
    """Changed by its methods and by `ports.look`. A port whose last listener is gone is remembered
    for as long as it has an entry in the table."""

    sockets: dict[FlowKey, dict[int, Listening]] = field(default_factory=dict)  # by cookie
    closed_ns: dict[FlowKey, int] = field(default_factory=dict)  # the last listener
    asked: dict[FlowKey, Asked] = field(default_factory=dict)  # for the end of its filter
    why_not: dict[FlowKey, Why] = field(default_factory=dict)  # it has no filter, or an old one
    unwanted: set[FlowKey] = field(default_factory=set)  # by a new policy: their filters go
    readers: dict[FlowKey, Readers] = field(default_factory=dict)  # of the connections of a port
    carrying: set[FlowKey] = field(default_factory=set)  # their filters deliver connections
    _at: dict[Place, dict[FlowKey, None]] = field(default_factory=dict)  # `sockets`, `closed_ns`
    _keys: dict[int, dict[FlowKey, None]] = field(default_factory=dict)  # by cookie
    _alone: dict[int, dict[tuple[FlowKey, int], None]] = field(default_factory=dict)  # by pid

    def opened(self, event: Listening, table: FlowTable) -> None:
        """A socket listens. A filter that an earlier listener left serves it."""
        self.sockets.setdefault(event.key, {})[event.cookie] = event
        self.closed_ns.pop(event.key, None)
        self._at.setdefault(place_of(event.key), {})[event.key] = None
        self._keys.setdefault(event.cookie, {})[event.key] = None
        if event.alone and event.thread is not None:
            self._alone.setdefault(event.thread.pid, {})[event.key, event.cookie] = None
        entry = table.get(event.key)
        if entry is not None and entry.cookie not in self.sockets[event.key]:
            whose = event.thread or entry.listener
            table.put(entry._replace(cookie=event.cookie, listener=whose))

    def closed(self, cookie: int, now_ns: int) -> bool:
        """A socket was closed. True: it was a listener, so `steer.gone` has nothing to do."""
        keys = self._keys.pop(cookie, {})
        for key in keys:
            self._not_alone(self.sockets[key].pop(cookie))
            if not self.sockets[key]:
                del self.sockets[key]
                self.closed_ns[key] = now_ns
                if key in self.readers:
                    self.readers[key].restarted()
        return bool(keys)

    def forked(self, pid: int) -> bool:
        """A process has made a thread or another process. True: it listens, and its ports must be
        looked at."""
        known = self._alone.pop(pid, {})
        for key, cookie in known:
            self.sockets[key][cookie] = self.sockets[key][cookie]._replace(alone=False)
        return bool(known)

    def lost(self) -> None:
        """Some events were lost: any process may have forked."""
        for pid in list(self._alone):
            self.forked(pid)

    def _not_alone(self, closed: Listening) -> None:
        if closed.alone and closed.thread is not None:
            known = self._alone[closed.thread.pid]
            del known[closed.key, closed.cookie]
            if not known:
                del self._alone[closed.thread.pid]

    def read(self, event: ThreadReads) -> FlowKey | None:
        """A thread has read a connection. Returns the port if this shows that several threads serve
        it."""
        port = event.key._replace(remote=bytes(len(event.key.remote)), remote_port=0)
        for key in (port, port._replace(local=bytes(len(port.local)))):
            if key in self.sockets:
                known = self.readers.setdefault(key, Readers())
                before = known.why_no_filter()
                known.heard(event.thread, event.at_ns, event.cpu)
                return key if before is None and known.why_no_filter() is not None else None
        return None

    def several(self, key: FlowKey) -> Why | None:
        """Says that several threads read the connections of this port, or of a port that shares
        some of them. None: one does, or none is known."""
        for other in self._near(key):
            readers = self.readers.get(other)
            if readers is not None and (why := readers.why_no_filter()) is not None:
                return why
        return None

    def shared_ports(self) -> frozenset[int]:
        """Ports where one socket listens, and several threads read what it accepts."""
        return frozenset(
            key.local_port
            for key in self.readers
            if self.several(key) is not None and len(self.rivals(key)) == 1
        )

    def reader(self, key: FlowKey) -> tuple[Thread, int | None] | None:
        """Who last read a connection of this port, and on which CPU."""
        known = (self.readers[each] for each in self._near(key) if each in self.readers)
        return next((last for each in known if (last := each.last()) is not None), None)

    def unserved(self, key: FlowKey) -> Why | None:
        """Nobody has read a connection of this port, and several may come to: the one process that
        listens has several threads, has made another process, or was there before we could see
        that. None: that is not so, or not known."""
        if self.reader(key) is not None:
            return None
        for each in self.rivals(key):
            if each.thread is not None and not each.alone:
                return Code.MAY_SHARE(each.thread.pid)
        return None

    def found(self, listeners: Iterable[Listening], table: FlowTable, now_ns: int) -> None:
        """The complete list: at the start, and after lost events. A thread that is known stays
        known."""
        before, self.sockets, self._keys, self._alone = self.sockets, {}, {}, {}
        for each in listeners:
            self.opened(before.get(each.key, {}).get(each.cookie, each), table)
        for key in (each for each in before if each not in self.sockets):
            self.closed_ns.setdefault(key, now_ns)

    def left(self, key: FlowKey, now_ns: int) -> None:
        """An earlier run left a filter of this port, and nobody listens any more."""
        if key not in self.sockets:
            self.closed_ns[key] = now_ns
            self._at.setdefault(place_of(key), {})[key] = None

    def forget(self, key: FlowKey) -> None:
        """Forget of a port without a filter why the filter was to go and, if no socket listens, its
        readers."""
        for known in (self.closed_ns, self.asked, self.why_not):
            known.pop(key, None)
        self.unwanted.discard(key)
        self.carrying.discard(key)
        if key not in self.sockets:
            self.readers.pop(key, None)
            place = self._at.get(place_of(key), {})
            place.pop(key, None)
            if not place:
                self._at.pop(place_of(key), None)

    def rivals(self, key: FlowKey) -> list[Listening]:
        """Every listener that a connection to this port may belong to, by its address."""
        near = self._near(key)
        return [each for other in near for each in self.sockets.get(other, {}).values()]

    def ports_of(self, key: FlowKey) -> list[FlowKey]:
        """The ports with a listener that a connection, or connections, may belong to."""
        return [each for each in self._near(key) if each in self.sockets]

    def neighbours(self, key: FlowKey) -> list[FlowKey]:
        """Other ports that share connections with this one, with or without a socket."""
        return [each for each in self._near(key) if each != key]

    def _near(self, key: FlowKey) -> list[FlowKey]:
        return [each for each in self._at.get(place_of(key), ()) if each.overlaps(key)]

    def uses(self, table: FlowTable, now_ns: int) -> list[SocketUse]:
        """In the form that an audit of sockets wants: only `ports.look` ends the entry of a
        port."""
        found = []
        for key in [*self.sockets, *self.closed_ns]:
            entry = table.get(key)
            cookie = entry.cookie if entry is not None else next(iter(self.sockets.get(key, ())), 0)
            found.append(SocketUse(cookie, key, None, None, None, 0, now_ns))
        return found


def place_of(key: FlowKey) -> Place:
    """Where listeners and their connections meet, whatever their addresses."""
    return key.family, key.local_port
