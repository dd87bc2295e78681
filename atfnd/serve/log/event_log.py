# SPDX-License-Identifier: GPL-2.0-or-later
"""The last things the daemon did or noticed, numbered; each is passed to the log as it comes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

from atfnd.model import Event, FlowKey
from atfnd.model.reason import Why
from atfnd.serve.log.journald import Journald, Stderr

__all__ = ["EventLog"]

_KEPT = 1000


class EventLog:
    """Bounded; readers ask for what came after the last number they saw."""

    def __init__(self) -> None:
        self._out: Journald | Stderr = Journald() if Journald.is_ours() else Stderr()
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._seq = 0
        self._news: asyncio.Event | None = None  # set when one comes; None: no reader waits

    def add(
        self,
        kind: str,
        what: str,
        why: Why | str = "",
        *,
        nic: str | None = None,
        flow: FlowKey | None = None,
        rule: str | None = None,
        old: str | None = None,
        new: str | None = None,
        source: str | None = None,
        errno: str | None = None,
    ) -> None:
        """Keep one event and pass it to the log. `what` is a clause, `why` its reason: one with a
        code, or words."""
        self._seq += 1
        now = time.monotonic_ns()
        code = why.word if isinstance(why, Why) else None
        event = Event(
            self._seq, now, time.time(), kind, nic, flow, what, str(why), rule, old, new, source,
            errno, code,
        )  # fmt: skip
        self._events.append(event)
        if self._news is not None:
            self._news.set()
            self._news = None
        self._out.tell(event)

    @property
    def lost(self) -> int:
        """How many of them the log did not take."""
        return self._out.lost

    def after(self, seq: int, limit: int) -> Sequence[Event]:
        """At most `limit` kept events numbered above `seq`, oldest first."""
        if not self._events:
            return []
        skip = max(0, seq + 1 - self._events[0].seq)
        return list(islice(self._events, skip, skip + limit))

    async def later(self, seq: int) -> None:
        """Return once there is an event numbered above `seq`."""
        while self._seq <= seq:
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()
