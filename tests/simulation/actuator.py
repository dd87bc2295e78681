# SPDX-License-Identifier: GPL-2.0-or-later
"""What the moves of one NIC do to the world, and see of it: `move.mover.MoveActuator`.

Its semantics are those of `program.actuator.NicActuator`: a queue is quiesced between two of its
polls and at most until its deadline, only while others drain that were seen to deliver; a second
one is quiesced only if it is to drain for the first. Evidence is waited for while something is
quiesced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from atfnd.model import Action, ActionKind, FlowKey, Match, Outcome
from atfnd.move.event import Asleep, Event, EvidenceLost, HoldLost, Idle, Polled, Seen, Violated
from atfnd.program.actuator import NOBODY, Trial, apply, trial
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.write_times import WriteTimes
from tests.simulation.driver import OURS, refused
from tests.simulation.nic import WorldNic
from tests.simulation.wire import BUDGET, Flow, Ring

__all__ = ["WorldActuator"]

FOLLOWS_NS, FOLLOWS_LOOKS = 500_000, 40
PROOF_NS = 500_000  # a ring that does not deliver for so long stands still
RULES = ActionKind.INSERT, ActionKind.REWRITE, ActionKind.DELETE


class _Watched:
    __slots__ = ("flow", "seen", "targets")

    def __init__(self, flow: Flow, targets: frozenset[int]) -> None:
        self.flow, self.targets = flow, targets
        self.seen = False


class WorldActuator:
    """What it writes is journaled and written by the real `program.actuator.apply`."""

    def __init__(
        self,
        nic: WorldNic,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        closed: Callable[[], None],
    ) -> None:
        self.nic, self._closed = nic, closed
        self._nic, self._world = nic, nic.world
        self._journal, self._undo_journal = journal, undo_journal
        self._writes = WriteTimes()
        self.quiesced: dict[int, frozenset[int]] = {}  # what drains meanwhile
        self._lost: set[int] = set()  # quiesced, and ended by themselves
        self.watched: dict[FlowKey, _Watched] = {}
        self._events: list[Event] = []
        self.losing = 0  # so many events to come are lost
        self.fails_to_end = False  # its detaching is refused, once
        self.measured_ns: int | None = None  # when it was known how long a write takes
        self.unmeasured_ns: int | None = None  # when it was first refused to measure that
        self._alive = True
        for ring in nic.rings:
            ring.witnesses.append(self)

    def close(self) -> None:
        """The process ends, or is killed: what it quiesced is polled, and nobody listens."""
        if not self._alive:
            return
        self._alive = False
        for queue in list(self.quiesced):
            self._nic.rings[queue].release()
        self.quiesced.clear()
        for ring in self._nic.rings:
            ring.listen(None)
            ring.witnesses.remove(self)
        self._closed()
        if self.fails_to_end and not self._world.dead:
            self._world.note("ending refused", "moves cannot be ended in order")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # ---- what a daemon's moves ask of `NicActuator` besides

    def start(self) -> None:
        """Packets and polls are always seen here."""

    def rest(self) -> None:
        """As `start`."""

    def fileno(self) -> int:
        """Nothing wakes the loop: it looks while it watches."""
        return -1

    def watching(self) -> bool:
        return bool(self.watched or self._events)

    def service_pps(self) -> dict[int, float]:
        return {}

    def trial(self, nic: str) -> Trial:
        return trial(nic)

    # ---- `move.mover.MoveActuator`

    def now_ns(self) -> int:
        self._world.pass_ns(300)
        return self._world.now_ns

    def write_ns(self) -> int | None:
        return self._writes.expected_ns()

    def write(self, action: Action) -> Outcome:
        world, nic = self._world, self._nic
        world.operation(f"write {action.kind.value}")
        began_ns, nic.ours.by = world.now_ns, action
        try:
            outcome = apply(nic, self._journal, self._undo_journal, action)
        finally:
            nic.ours.by = OURS
        code = errno.errorcode.get(outcome.errno, "done") if outcome.errno else "done"
        what = action.setting or action.key or f"queue {action.queue}"
        measured = action.key == NOBODY and not outcome.errno  # once, before a first move
        if action.key == NOBODY and outcome.errno and self.unmeasured_ns is None:
            self.unmeasured_ns = world.now_ns
        world.note(
            "write measured" if measured else f"write {action.kind.value} {code}",
            f"{nic.name}: {action.kind.value} {what}"
            f" -> {action.value or action.new}: {outcome.left}",
        )
        if action.kind in RULES and not outcome.errno:
            if self.write_ns() is None:
                self.measured_ns = world.now_ns
            self._writes.note(world.now_ns - began_ns)
        if action.kind is ActionKind.QUEUE_CPU and not outcome.errno and action.queue is not None:
            soon_ns = world.random.randrange(50_000, 500_000)
            world.after(soon_ns, self._follows, action.queue, FOLLOWS_LOOKS)
        return outcome

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        world, rings = self._world, self._nic.rings
        world.operation("hold")
        for waited_for in self.quiesced.values():
            if queue not in waited_for:
                raise refused(errno.EBUSY, "another queue is quiesced")
        if not self._nic.table.up or max(drains | {queue}) >= len(rings):
            raise refused(errno.ENODEV)
        ring = rings[queue]
        if not ring.threaded:
            raise refused(errno.EOPNOTSUPP, "it has no NAPI thread")
        if ring.cpu is None:
            raise refused(errno.EINVAL, "its NAPI thread may run on several CPUs")
        if not drains:
            raise refused(errno.EOPNOTSUPP, "no queue has to drain")
        held = {rings[each].cpu for each in self.quiesced} | {ring.cpu}
        if any(rings[each].cpu in held for each in drains):
            raise refused(errno.EDEADLK, "a queue that is to drain is polled on a CPU that is held")
        world.pass_ns(20_000)
        world.run_while(lambda: ring.busy, world.now_ns + PROOF_NS)
        if any(rings[each].stalled_until_ns > world.now_ns + PROOF_NS for each in drains):
            world.pass_ns(PROOF_NS)
            raise refused(errno.ETIMEDOUT, "a queue that is to drain stands still")
        if ring.busy or world.now_ns >= until_ns:
            raise refused(errno.ETIMEDOUT)
        self.quiesced[queue] = drains
        ring.quiesce(until_ns)
        world.at(until_ns, self._expire, queue, until_ns)
        world.note("hold", f"queue {queue} of {self._nic.name} is quiesced")
        return world.now_ns

    def in_force(self, queue: int) -> bool:
        return queue in self.quiesced and queue not in self._lost

    def release(self, queue: int) -> bool:
        if not self._alive:
            return False
        unbroken = self.in_force(queue)
        if self.quiesced.pop(queue, None) is not None:
            self._lost.discard(queue)
            self._nic.rings[queue].release()
        self._events = [
            e for e in self._events if not (isinstance(e, HoldLost) and e.queue == queue)
        ]
        if not self.quiesced:
            for ring in self._nic.rings:
                ring.listen(None)
            self._events = [e for e in self._events if not isinstance(e, Polled | Asleep)]
        self._world.pass_ns(2_000)
        return unbroken

    def break_holds(self) -> None:
        """Somebody with more authority takes the spinner's CPU."""
        for queue in list(self.quiesced):
            self._cut(queue, "it was interrupted")

    def watch(
        self,
        key: FlowKey,
        origins: frozenset[int],
        targets: frozenset[int],
        through: frozenset[int],
        cookie: int | None,
    ) -> None:
        flow = self._nic.flows.get(Match.of(key))
        if flow is None:
            self._events.append(EvidenceLost())
            return
        self.watched[key] = _Watched(flow, targets)

    def unwatch(self, key: FlowKey) -> None:
        self.watched.pop(key, None)

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        try:
            there = self._nic.filter(location)
        except OSError:
            return True
        return there is not None and (there.match, there.queue) == (Match.of(key), queue)

    def delivered_ns(self, key: FlowKey) -> int | None:
        watched = self.watched.get(key)
        return None if watched is None else watched.flow.last_delivered_ns()

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None:
        if not any(queue in drains for drains in self.quiesced.values()):
            raise ValueError(f"queue {queue} drains for no hold")
        self._nic.rings[queue].listen(from_ns)

    def evidence(self, until_ns: int) -> Sequence[Event]:
        world = self._world
        world.pass_ns(1_000)
        if self.quiesced:
            world.run_while(lambda: not self._events, until_ns)
        else:
            self._look()
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, HoldLost):  # it has ended: it stands in the way of no other
                self.quiesced.pop(event.queue, None)
                self._lost.discard(event.queue)
        return events

    # ---- what is seen

    def polled(self, ring: Ring, work: int) -> None:
        self._tell(Polled(ring.index, self._world.now_ns, work, BUDGET))

    def slept(self, ring: Ring) -> None:
        self._tell(Asleep(ring.index, self._world.now_ns))

    def delivered(self, flow: Flow, ring: Ring, late: bool) -> None:
        watched = self.watched.get(flow.key)
        if watched is None:
            return
        if late:
            self._tell(Violated(flow.key, 1, self._world.now_ns))
        if ring.index in watched.targets and not watched.seen:
            watched.seen = True
            self._tell(Seen(flow.key, ring.index, self._world.now_ns))

    def _look(self) -> None:
        """What the programs in the kernel have noted of watched flows."""
        for key, watched in self.watched.items():
            flow, last_ns = watched.flow, watched.flow.last_delivered_ns()
            if last_ns is None or last_ns > self._world.now_ns:
                continue
            if flow.ring is not None and not flow.waits and not watched.seen:
                watched.seen = flow.ring.index in watched.targets
                self._tell(Seen(key, flow.ring.index, last_ns))
            self._tell(Idle(key, last_ns))

    def _follows(self, queue: int, looks: int) -> None:
        """Its packets come on its new CPU; or they do not yet."""
        if not self._alive or not self._nic.table.up:
            return
        ring = self._nic.rings[queue]
        if ring.rx_cpu == ring.cpu:
            self._tell(Seen(queue, queue, self._world.now_ns))
        elif looks:
            self._world.after(FOLLOWS_NS, self._follows, queue, looks - 1)

    def _tell(self, event: Event) -> None:
        if self.losing:
            self.losing -= 1
            self._world.seen["evidence lost"] += 1
            event = EvidenceLost()
        self._events.append(event)

    def _expire(self, queue: int, until_ns: int) -> None:
        ring = self._nic.rings[queue]
        if self._alive and queue in self.quiesced and ring.quiesced_until_ns == until_ns:
            self._cut(queue, "it ended at its limit")

    def _cut(self, queue: int, why: str) -> None:
        self._lost.add(queue)
        self._nic.rings[queue].release()
        self._events.append(HoldLost(queue, why))
        self._world.note("hold broken", f"the hold of queue {queue} ends by itself: {why}")
