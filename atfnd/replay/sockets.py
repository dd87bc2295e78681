# SPDX-License-Identifier: GPL-2.0-or-later
"""The sockets of a recording, as it last reported them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model import FlowKey, SocketSeen, SocketUse
from atfnd.replay.recording import Looked, RecordedSocket, Socket

__all__ = ["Place", "Sockets"]


class Place(NamedTuple):
    """Where a socket receives."""

    nic: str
    rss_queue: int | None  # by RSS alone


class Sockets:
    """Of all NICs; those that were seen in use stay known."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, FlowKey], RecordedSocket] = {}
        self._there: dict[tuple[int, FlowKey], Socket] = {}
        self._counted: dict[tuple[int, FlowKey], int] = {}  # bytes

    def saw(self, line: RecordedSocket) -> None:
        """It was in use."""
        self._seen[line.event.cookie, line.event.key] = line

    def looked(self, line: Looked) -> None:
        """Which there are."""
        for gone in line.gone:
            self._there.pop(gone, None)
        for each in line.came:
            self._there[each.cookie, each.key] = each

    def every(self) -> list[Socket]:
        """All that are connected."""
        return list(self._there.values())

    def place(self, use: SocketUse) -> Place | None:
        """None: on no NIC that is known."""
        if (seen := self._seen.get((use.cookie, use.key))) is not None:
            return Place(seen.nic, seen.rss_queue)
        there = self._there.get((use.cookie, use.key))
        return None if there is None or there.nic is None else Place(there.nic, there.rss_queue)

    def last(self, use: SocketUse) -> RecordedSocket | None:
        """When it was last in use, off the CPU that was known."""
        return self._seen.get((use.cookie, use.key))

    def count(self, use: SocketUse, last: SocketSeen) -> int:
        """Its bytes since it was last counted."""
        place = use.cookie, use.key
        then = self._counted.get(place, last.bytes)
        self._counted[place] = use.bytes
        return max(0, use.bytes - then)
