# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC in simulated time behind `mover.MoveActuator`: packets in rings, polls at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from atfnd.model import Action, FlowKey, Outcome
from atfnd.move.event import Asleep, Event, HoldLost, Idle, Polled, Seen, Violated
from tests.values import key

__all__ = ["FLOWS", "QUEUES", "SimulatedNic"]

QUEUES, FLOWS = 3, 4
PIPE_NS = 20_000
PORT_WRITE_NS = 10_000


class SimulatedNic:
    """Three queues and four flows. Every call takes time, in which packets come and are polled."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time_ns = 1_000_000
        self.route = {key(n): n % QUEUES for n in range(FLOWS)}
        self.rss = dict(self.route)
        self.sent = dict.fromkeys(self.route, 0)
        self.last = dict.fromkeys(self.route, -1)
        self.last_ns = dict.fromkeys(self.route, 0)
        self.rings: list[list[tuple[int, FlowKey, int]]] = [[] for _ in range(QUEUES)]
        self.quiesced: dict[int, int] = {}  # queue -> until
        self.watched: dict[FlowKey, frozenset[int]] = {}
        self.seen: set[FlowKey] = set()  # on a new ring, and told
        self.listened: dict[int, int] = {}
        self.filters: dict[int, tuple[FlowKey, int]] = {}  # by location
        self.events: list[Event] = []
        self.overtaken: dict[FlowKey, int] = dict.fromkeys(self.route, 0)
        self.stalled: set[int] = set()

    # ---- what MoveActuator asks for

    def now_ns(self) -> int:
        self.pass_time(500)
        return self.time_ns

    def write(self, action: Action) -> Outcome:
        self.pass_time(PORT_WRITE_NS // 2)
        assert action.key is not None
        assert action.new is not None
        self.route[action.key] = action.new
        self.filters[action.location or 0] = action.key, action.new
        self.pass_time(PORT_WRITE_NS // 2)
        return Outcome(action, self.time_ns, 0, action.location, "")

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        del drains
        assert not self.quiesced, "I1: one queue is held at a time"
        self.quiesced[queue] = until_ns
        return self.time_ns

    def in_force(self, queue: int) -> bool:
        return queue in self.quiesced

    def release(self, queue: int) -> bool:
        unbroken = self.quiesced.pop(queue, None) is not None
        lost = [each for each in self.events if isinstance(each, HoldLost) and each.queue == queue]
        for each in lost:
            self.events.remove(each)  # as the actuator does: what was released is reported no more
        if not self.quiesced:
            self.listened.clear()
        return unbroken

    def watch(
        self,
        key: FlowKey,
        origins: frozenset[int],
        targets: frozenset[int],
        through: frozenset[int],
        cookie: int | None,
    ) -> None:
        self.watched[key] = targets
        self.seen.discard(key)

    def unwatch(self, key: FlowKey) -> None:
        del self.watched[key]

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        return self.filters.get(location) == (key, queue)

    def delivered_ns(self, key: FlowKey) -> int | None:
        return self.last_ns[key]

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None:
        self.listened[queue] = from_ns

    def evidence(self, until_ns: int) -> Sequence[Event]:
        while not self.events and self.time_ns < until_ns:
            self.pass_time(5_000)
        events, self.events = self.events, []
        return events

    # ---- what happens meanwhile

    def pass_time(self, ns: int) -> None:
        """Packets come in, rings are polled, holds run out."""
        self.time_ns += ns
        for queue in [q for q, until_ns in self.quiesced.items() if self.time_ns >= until_ns]:
            del self.quiesced[queue]
            self.events.append(HoldLost(queue, "it ended by itself"))
        for flow, queue in self.route.items():
            if self.random.random() < 0.3:
                self.rings[queue].append((self.time_ns, flow, self.sent[flow]))
                self.sent[flow] += 1
        for queue in range(QUEUES):
            if queue not in self.quiesced and queue not in self.stalled:
                self._poll(queue)

    def _poll(self, queue: int) -> None:
        if self.random.random() < 0.4:
            return
        ready = [entry for entry in self.rings[queue] if entry[0] <= self.time_ns - PIPE_NS]
        short = bool(ready) and self.random.random() < 0.2
        taken = ready[:1] if short else ready
        self.rings[queue] = self.rings[queue][len(taken) :]
        for _, flow, sequence in taken:
            self._deliver(flow, sequence, queue)
        work = 63 if short else min(len(taken), 62)
        if queue in self.listened and self.time_ns >= self.listened[queue]:
            asleep = not self.rings[queue] and self.random.random() < 0.5
            poll = Polled(queue, self.time_ns, work, 64)
            self.events.append(Asleep(queue, self.time_ns) if asleep else poll)

    def _deliver(self, flow: FlowKey, sequence: int, queue: int) -> None:
        if sequence < self.last[flow]:
            self.overtaken[flow] += 1
            if flow in self.watched:
                self.events.append(Violated(flow, 1, self.time_ns))
        self.last[flow], self.last_ns[flow] = max(sequence, self.last[flow]), self.time_ns
        if queue in self.watched.get(flow, ()) and flow not in self.seen:
            self.seen.add(flow)
            self.events.append(Seen(flow, queue, self.time_ns))

    def idle(self) -> list[Event]:
        """What a watch tells of flows that were given nothing lately."""
        return [Idle(flow, self.last_ns[flow]) for flow in self.watched]
