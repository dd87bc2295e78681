# SPDX-License-Identifier: GPL-2.0-or-later
"""Connects that are under way, until an observer of sockets knows their sockets. Pure.

An audit of sockets lists established ones only, and of these only the ones that were reported to
us. A flow that was born has an entry before that: without `uses`, an audit would end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from atfnd.engine.handshake.distance import Distances
from atfnd.engine.table.memory import Memory
from atfnd.model import Born, Connected, Connecting, Flow, SocketGone, SocketUse

__all__ = ["Connects", "unanswered"]

_GIVEN_UP_NS = 300_000_000_000  # a SYN is retried for less than this (tcp_syn_retries)


def unanswered(events: Iterable[Born]) -> Mapping[int, Connecting]:
    """Of the events of one wake-up, by cookie: the connects that are still open after them."""
    found: dict[int, Connecting] = {}
    for event in events:
        if isinstance(event, Connecting):
            found[event.cookie] = event
        elif isinstance(event, Connected | SocketGone):
            found.pop(event.cookie, None)
    return found


class Connects:
    """Of all NICs. What is answered teaches `distances`."""

    def __init__(self) -> None:
        self.distances = Distances()
        self._open: dict[int, Connecting] = {}  # by cookie: not answered
        self._answered: dict[int, Connecting] = {}  # those with an entry, to be adopted

    def heard(self, events: Sequence[Born], memory: Memory) -> list[Connecting]:
        """The events of one wake-up. Returns the new connects that are still `unanswered`."""
        for event in events:
            if isinstance(event, Connecting):
                self._open[event.cookie] = event
            elif isinstance(event, Connected):
                self.distances.learn(event.key.remote, event.handshake_ns)
                connect = self._open.pop(event.cookie, None)
                if connect is not None and _entry(connect, memory) is not None:
                    self._answered[event.cookie] = connect
            elif isinstance(event, SocketGone):
                self._open.pop(event.cookie, None)
                self._answered.pop(event.cookie, None)
        return list(unanswered(events).values())

    def uses(self, memory: Memory, now_ns: int) -> list[SocketUse]:
        """The entries of connects, in the form in which an audit reports sockets."""
        for cookie, connect in [*self._open.items()]:
            if now_ns - connect.at_ns > _GIVEN_UP_NS:  # its end was lost
                del self._open[cookie]
        return [
            SocketUse(cookie, connect.key, None, None, None, 0, now_ns)
            for known in (self._open, self._answered)
            for cookie, connect in known.items()
            if _entry(connect, memory) is not None
        ]

    def waiting(self, memory: Memory) -> bool:
        """Some entry belongs to a connect that no observer knows yet."""
        known = [*self._open.values(), *self._answered.values()]
        return any(_entry(connect, memory) is not None for connect in known)

    def adopt(self, memory: Memory) -> dict[int, int]:
        """Sockets (cookie to CPU) that an observer can take over now (`Observer.adopt`), and
        reports from then on."""
        answered, self._answered = self._answered, {}
        entries = (_entry(connect, memory) for connect in answered.values())
        return {entry.cookie: entry.app_cpu for entry in entries if entry is not None}


def _entry(connect: Connecting, memory: Memory) -> Flow | None:
    entry = memory.table.get(connect.key)
    return entry if entry is not None and entry.cookie == connect.cookie else None
