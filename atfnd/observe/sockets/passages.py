# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows on the move, as events for the machine of the moves (move/event.py).

Reads a `Transit`; watches each flow from one queue to one other. Each look reports what a flow has
done. A late look reports fewer times, but none that is wrong: times are those of delivery. A
violation is reported with the move it belongs to, or not at all: one that belongs to a finished
move is dropped. A lost event may have been any event.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from atfnd.model import FlowKey, Queue
from atfnd.move.event import Disturbed, Event, EvidenceLost, Idle, Seen, Violated
from atfnd.observe.sockets.transit import Passage, Transit

__all__ = ["Passages"]


@dataclass(slots=True)
class _Flow:
    cookie: int
    move: int
    since_ns: int
    queues: dict[int, int]  # by NAPI id
    a: int
    b: int
    last: Passage | None = None  # as reported
    written_ns: int | None = None  # when the write began that moves it

    def delivered_ns(self, seen: Passage) -> int:
        times = seen.last_a_ns, seen.last_b_ns, seen.last_elsewhere_ns
        return max(at_ns or self.since_ns for at_ns in times)

    def seen(self, now: Passage) -> Iterator[tuple[int, int]]:
        """(queue, last delivery) of each queue that has delivered since the last call."""
        before, self.last = self.last, now
        elsewhere = self.queues.get(now.elsewhere_napi or 0)
        for queue, at_ns, reported_ns in (
            (self.a, now.last_a_ns, before and before.last_a_ns),
            (self.b, now.last_b_ns, before and before.last_b_ns),
            (elsewhere, now.last_elsewhere_ns, before and before.last_elsewhere_ns),
        ):
            if queue is not None and at_ns is not None and at_ns != reported_ns:
                yield queue, at_ns


class Passages:
    """The flows that are watched now."""

    def __init__(self, transit: Transit) -> None:
        self._transit = transit
        self._flows: dict[FlowKey, _Flow] = {}
        self._numbers = itertools.count(1)
        self._lost = transit.lost()
        self._missed = False

    def watch(
        self,
        key: FlowKey,
        cookie: int,
        a: Queue,
        b: Queue,
        queues: tuple[Queue, ...],
        between: Queue | None = None,
    ) -> None:
        """Watch it from now on, until `unwatch`. Packets through A and `between` that come after
        the first one through B are violations. OSError: E2BIG (too many are watched), EEXIST (this
        one is)."""
        napi_ids = {queue.napi_id: queue.index for queue in queues if queue.napi_id is not None}
        flow = _Flow(cookie, next(self._numbers), time.monotonic_ns(), napi_ids, a.index, b.index)
        way = a.napi_id or 0, b.napi_id or 0, (between and between.napi_id) or 0
        self._transit.begin(cookie, flow.move, *way)
        self._flows[key] = flow

    def wrote(self, key: FlowKey, began_ns: int) -> None:
        """The rule that moves a flow was written, beginning at this time. Packets that are late
        because of earlier ones through B are not late because of that write."""
        if (flow := self._flows.get(key)) is not None:
            flow.written_ns = began_ns

    def miss(self) -> None:
        """A flow is on the move that cannot be watched."""
        self._missed = True

    def unwatch(self, key: FlowKey) -> None:
        """Does nothing for a flow that is not watched."""
        flow = self._flows.pop(key, None)
        if flow is not None:
            self._transit.end(flow.cookie)

    def delivered_ns(self, key: FlowKey) -> int | None:
        """When a packet of it was last delivered, or watching began; None: it is not watched."""
        flow = self._flows.get(key)
        seen = None if flow is None else self._transit.read(flow.cookie)
        return None if flow is None or seen is None else flow.delivered_ns(seen)

    def __len__(self) -> int:
        return len(self._flows)

    def events(self) -> list[Event]:
        """What happened since the last call; violations come before the packets that begin their
        end."""
        events: list[Event] = []
        seen = {key: self._transit.read(flow.cookie) for key, flow in self._flows.items()}
        events += self._violations()
        lost = self._transit.lost()
        if self._missed or lost != self._lost:
            events.append(EvidenceLost())
        self._missed, self._lost = False, lost
        for key, passage in seen.items():
            flow = self._flows[key]
            if passage is None:
                events.append(EvidenceLost())
                continue
            events += [Seen(key, queue, at_ns) for queue, at_ns in flow.seen(passage)]
            events.append(Idle(key, flow.delivered_ns(passage)))
        return events

    def _violations(self) -> Iterator[Violated | Disturbed]:
        late: Counter[int] = Counter()
        last_ns: dict[int, int] = {}
        first_ns: dict[int, int] = {}
        for event in self._transit.drain():
            late[event.move] += event.packets
            last_ns[event.move] = event.at_ns
            first_ns[event.move] = event.first_b_ns
        for key, flow in self._flows.items():
            if late[flow.move]:
                if flow.written_ns is not None and first_ns[flow.move] < flow.written_ns:
                    yield Disturbed(key)
                yield Violated(key, late[flow.move], last_ns[flow.move])
