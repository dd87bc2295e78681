# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sockets listen on which port: those that receive through one NIC only. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from atfnd.engine.filters.readers import Readers
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.wide_key import overlap
from atfnd.model import FlowKey, Listening, SocketUse, Thread, ThreadReads

__all__ = ["Asked", "Listeners", "ServedPort"]


class ServedPort(NamedTuple):
    """A port, and a thread that serves its connections: the policy may have one rule for them."""

    key: FlowKey
    thread: Thread | None


class Asked(NamedTuple):
    """A port's rule must be deleted."""

    at_ns: int
    queue: int | None  # that it leads to


@dataclass(slots=True)
class Listeners:
    """Changed by its methods and by `ports.look`. A port whose last listener is gone is remembered
    for as long as it has an entry in the table."""

    sockets: dict[FlowKey, dict[int, Listening]] = field(default_factory=dict)  # by cookie
    closed_ns: dict[FlowKey, int] = field(default_factory=dict)  # the last listener
    asked: dict[FlowKey, Asked] = field(default_factory=dict)  # for the end of its rule
    why_not: dict[FlowKey, str] = field(default_factory=dict)  # it has no rule, or an old one
    unwanted: set[FlowKey] = field(default_factory=set)  # by a new policy: their rules go
    readers: dict[FlowKey, Readers] = field(default_factory=dict)  # of the connections of a port

    def opened(self, event: Listening, table: FlowTable) -> None:
        """A socket listens. A rule that an earlier listener left serves it."""
        self.sockets.setdefault(event.key, {})[event.cookie] = event
        self.closed_ns.pop(event.key, None)
        entry = table.get(event.key)
        if entry is not None and entry.cookie not in self.sockets[event.key]:
            table.put(replace(entry, cookie=event.cookie))

    def closed(self, cookie: int, now_ns: int) -> bool:
        """A socket was closed. True: it was a listener, so `steer.gone` has nothing to do."""
        keys = [key for key, sockets in self.sockets.items() if cookie in sockets]
        for key in keys:
            del self.sockets[key][cookie]
            if not self.sockets[key]:
                del self.sockets[key]
                self.closed_ns[key] = now_ns
                if key in self.readers:
                    self.readers[key].restarted()
        return bool(keys)

    def read(self, event: ThreadReads) -> FlowKey | None:
        """A thread has read a connection. Returns the port if this shows that several threads serve
        it."""
        port = event.key._replace(remote=bytes(len(event.key.remote)), remote_port=0)
        for key in (port, port._replace(local=bytes(len(port.local)))):
            if key in self.sockets:
                known = self.readers.setdefault(key, Readers())
                before = known.why_no_filter()
                known.heard(event.thread, event.at_ns)
                return key if before is None and known.why_no_filter() is not None else None
        return None

    def several(self, key: FlowKey) -> str | None:
        """Says that several threads read the connections of this port, or of a port that shares
        some of them. None: one does, or none is known."""
        for other, readers in self.readers.items():
            if overlap(other, key) and (why := readers.why_no_filter()) is not None:
                return why
        return None

    def found(self, listeners: Iterable[Listening], table: FlowTable, now_ns: int) -> None:
        """The complete list: at the start, and after lost events. A thread that is known stays
        known."""
        before, self.sockets = self.sockets, {}
        for each in listeners:
            self.opened(before.get(each.key, {}).get(each.cookie, each), table)
        for key in before.keys() - self.sockets.keys():
            self.closed_ns.setdefault(key, now_ns)

    def forget(self, key: FlowKey) -> None:
        """Forget of a port without a rule why the rule was to go and, if no socket listens, its
        readers."""
        if key not in self.sockets:
            self.readers.pop(key, None)
        for known in (self.closed_ns, self.asked, self.why_not):
            known.pop(key, None)
        self.unwanted.discard(key)

    def rivals(self, key: FlowKey) -> list[Listening]:
        """Every listener that a connection to this port may belong to, by its address."""
        return [
            each
            for other, sockets in self.sockets.items()
            if overlap(other, key)
            for each in sockets.values()
        ]

    def uses(self, table: FlowTable, now_ns: int) -> list[SocketUse]:
        """In the form that an audit of sockets wants: only `ports.look` ends the entry of a
        port."""
        found = []
        for key in [*self.sockets, *self.closed_ns]:
            entry = table.get(key)
            cookie = entry.cookie if entry is not None else next(iter(self.sockets.get(key, ())), 0)
            found.append(SocketUse(cookie, key, None, None, None, 0, now_ns))
        return found
