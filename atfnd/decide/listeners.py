# SPDX-License-Identifier: GPL-2.0-or-later
"""Who listens on which port: the sockets that receive through one NIC, and no other. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from atfnd.decide.memory import Memory
from atfnd.decide.wide import overlap
from atfnd.model import FlowKey, Listening, SocketUse

__all__ = ["Asked", "Listeners"]


class Asked(NamedTuple):
    """A port's rule is to be deleted."""

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
    unwanted: set[FlowKey] = field(default_factory=set)  # by a new policy: their rules are to go

    def opened(self, event: Listening, memory: Memory) -> None:
        """A socket listens. A rule that a former one left serves it."""
        self.sockets.setdefault(event.key, {})[event.cookie] = event
        self.closed_ns.pop(event.key, None)
        entry = memory.table.get(event.key)
        if entry is not None and entry.cookie not in self.sockets[event.key]:
            memory.table.put(replace(entry, cookie=event.cookie))

    def closed(self, cookie: int, now_ns: int) -> bool:
        """A socket was closed. True: it was a listener, and no business of `steer.gone`."""
        keys = [key for key, sockets in self.sockets.items() if cookie in sockets]
        for key in keys:
            del self.sockets[key][cookie]
            if not self.sockets[key]:
                del self.sockets[key]
                self.closed_ns[key] = now_ns
        return bool(keys)

    def found(self, listeners: Iterable[Listening], memory: Memory, now_ns: int) -> None:
        """These are all there are: at the start, and when events were lost. A thread that is known
        stays known."""
        before, self.sockets = self.sockets, {}
        for each in listeners:
            self.opened(before.get(each.key, {}).get(each.cookie, each), memory)
        for key in before.keys() - self.sockets.keys():
            self.closed_ns.setdefault(key, now_ns)

    def forget(self, key: FlowKey) -> None:
        """Of a port that nobody listens on."""
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

    def uses(self, memory: Memory, now_ns: int) -> list[SocketUse]:
        """As an audit of sockets wants them: no entry of a port ends but by `ports.look`."""
        found = []
        for key in [*self.sockets, *self.closed_ns]:
            entry = memory.table.get(key)
            cookie = entry.cookie if entry is not None else next(iter(self.sockets.get(key, ())), 0)
            found.append(SocketUse(cookie, key, None, None, None, 0, now_ns))
        return found
