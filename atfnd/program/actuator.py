# SPDX-License-Identifier: GPL-2.0-or-later
"""What the moves of one NIC write to the kernel, and what they see of it:
`move.mover.MoveActuator`.

`apply` writes one action, a queue is quiesced by `program.quiesce`, flows are seen by
`observe.sockets.transit`. A queue is quiesced while others drain; with RSS in between two are, in a
chain: RSS's queue while the old one drains, the new one while RSS's drains. The spinner decides, at
once and without us, when a queue is polled again. The machine judges the same evidence afterwards:
the two ends of polls that the kernel reported, or that the thread slept.

Attached from `start` to `rest` (1 to 13 ms each, and 0.3 us a packet in between): call `start`
before a move is wanted, and `rest` after moves are over.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from atfnd.model import Action, ActionKind, FlowKey, Match, Outcome, Protocol, Queue
from atfnd.model.reason import Code
from atfnd.move.event import Asleep, Event, HandedOn, HoldLost, Polled, Seen
from atfnd.move.port import rfs_queue
from atfnd.nic import Nic
from atfnd.observe.sockets.passages import Passages
from atfnd.observe.sockets.transit import HoldEnd, HoldResult, Proof, Transit
from atfnd.program import filter, lending, queue_cpu, rfs
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.quiesce import QueueHold
from atfnd.program.write_times import WriteTimes

__all__ = ["NOBODY", "NicActuator", "Trial", "apply", "trial"]

RINGS = 16  # TRANSIT_RINGS
TRIALS = 4
SERVED = 1000
FOLLOWED_NS = 1_000_000_000
FILTERS = ActionKind.INSERT, ActionKind.REWRITE, ActionKind.DELETE
# RFC 5737 and the port of RFC 863: no packet of this flow arrives
NOBODY = FlowKey(Protocol.TCP, bytes((192, 0, 2, 2)), 9, bytes((192, 0, 2, 1)), 9)


Trial = Generator[Action, Outcome, Outcome | None]


def apply(nic: Nic, journal: FilterJournal, undo_journal: UndoJournal, action: Action) -> Outcome:
    """Journal, write, and return what is in place now. OSError: a journal cannot be written."""
    match action.kind:
        case ActionKind.INSERT | ActionKind.REWRITE | ActionKind.DELETE:
            return filter.apply(nic, journal, action)
        case ActionKind.QUEUE_CPU:
            return queue_cpu.apply(nic, undo_journal, action)
        case ActionKind.SETTING if lending.lends(action):
            return lending.apply(nic, undo_journal, action)
        case ActionKind.SETTING:
            return lending.keep(nic, undo_journal, action)


def trial(nic: str) -> Trial:
    """Yields the writes and deletes of a filter that matches no flow, so that how long a write
    takes is up to date. Returns the last outcome: a refusal, after which nothing is tried."""
    for _ in range(TRIALS):
        why = Code.TRIAL_WRITE()
        outcome = yield Action(ActionKind.INSERT, nic, NOBODY, None, None, 0, why, "")
        if outcome.errno:
            break
        at = outcome.location
        outcome = yield Action(ActionKind.DELETE, nic, NOBODY, at, 0, None, why, "")
        if outcome.errno:
            break
    return outcome


class NicActuator:
    """`queues` are those of the NIC as last read. OSError: the kernel refuses the programs."""

    def __init__(
        self,
        nic: Nic,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        queues: Callable[[], tuple[Queue, ...]],
    ) -> None:
        self._nic, self._journal, self._undo_journal = nic, journal, undo_journal
        self._queues = queues
        self._transit = Transit()
        self._passages = Passages(self._transit)
        self._writes = WriteTimes()
        self._rings: dict[int, int | None] = {}  # watched: thread by NAPI id, the oldest first
        self._holds: dict[
            int, tuple[frozenset[int], QueueHold]
        ] = {}  # by what is quiesced: what drains
        self._asked: int | None = None  # the quiesced queue whose others are asked for evidence
        self._settles: tuple[int, int, bool] | None = None  # that queue, from when, and how
        self._held: dict[int, HoldResult] = {}  # ended, and not released yet
        self._followed: dict[int, tuple[int, int]] = {}  # by queue: its new CPU, since

    def start(self) -> None:
        """See packets and polls from now on. OSError: the kernel refuses to attach."""
        if self._transit.started():
            return
        self._transit.start()
        if any(self._has_rfs(queue.index) for queue in self._queues()):
            self._transit.know_backlogs()
        for queue in self._queues()[:RINGS]:
            self._watch_ring(queue)

    def _has_rfs(self, queue: int) -> bool:
        try:
            return self._nic.setting(f"rps-flow-cnt:{queue}") not in (None, "0")
        except OSError:  # its link is down
            return False

    def rest(self) -> None:
        """Stop seeing packets and polls, if nothing is watched."""
        if not self._holds and not self._passages:
            self._transit.stop()

    def close(self) -> None:
        for queue in reversed(tuple(self._holds)):
            self._end(queue)
        self._transit.close()

    def watching(self) -> bool:
        """There may be evidence before the machine next looks."""
        return bool(self._passages) or bool(self._followed)

    def fileno(self) -> int:
        """Readable when packets were late."""
        return self._transit.fileno()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def write(self, action: Action) -> Outcome:
        """As `apply`; what the moves have to know of it is noted."""
        began_ns = self.now_ns()
        write = partial(apply, self._nic, self._journal, self._undo_journal, action)
        if (index := rfs_queue(action)) is not None and not self._holds:
            return self._switch(index, action, write)
        outcome = write()
        if action.kind in FILTERS and not outcome.errno:
            self._writes.note(self.now_ns() - began_ns)
            if action.key is not None:
                self._passages.wrote(action.key, began_ns)
        if action.kind is ActionKind.QUEUE_CPU and not outcome.errno and self._transit.started():
            self._follow(action)
        return outcome

    def _switch(self, index: int, action: Action, write: Callable[[], Outcome]) -> Outcome:
        try:
            queue = self._queue(index)
            self._watch_ring(queue)
            self.start()
        except OSError as refusal:
            code = refusal.errno or errno.EIO
            left = f"{action.setting} stays as it is: {refusal.strerror}"
            return Outcome(action, self.now_ns(), code, None, left)
        return rfs.switch(action, self._transit, queue, write)

    def write_ns(self) -> int | None:
        """How long a filter's write takes here, by the last ones. None: not known yet."""
        return self._writes.expected_ns()

    def service_pps(self) -> dict[int, float]:
        """How fast each queue was polled recently while its ring was not empty; without queues that
        were not seen so for SERVED packets."""
        found = {}
        for queue in self._queues():
            if queue.napi_id in self._rings and queue.napi_id is not None:
                packets, took_ns = self._transit.served(queue.napi_id)
                if packets >= SERVED and took_ns:
                    found[queue.index] = packets / took_ns * 1e9
        return found

    def trial(self, nic: str) -> Trial:
        return trial(nic)

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        """As `MoveActuator.hold`; during a hold, only for the queue that must drain meanwhile.
        OSError: as `program.quiesce`; EBUSY (another queue is quiesced), EOPNOTSUPP (no queue has
        to drain, or more than are watched), ENODEV (there is no such queue now), ENOTCONN (not
        started)."""
        for quiesced, (waited_for, _) in self._holds.items():
            if queue not in waited_for:
                raise OSError(errno.EBUSY, f"queue {quiesced} is quiesced")
        beside = next((other for _, other in self._holds.values()), None)
        if not 0 < len(drains) < RINGS:
            raise OSError(errno.EOPNOTSUPP, f"{len(drains)} queues would have to drain")
        if not self._transit.started():
            raise OSError(errno.ENOTCONN, "polls are not seen now")
        olds, b = [self._queue(each) for each in sorted(drains)], self._queue(queue)
        for ring in (*olds, b):
            self._watch_ring(ring)
        hold = QueueHold(self._transit, olds, b, until_ns, beside)
        self._holds[queue] = drains, hold
        self._settles = None
        return hold.effective_ns

    def in_force(self, queue: int) -> bool:
        return queue in self._holds and self._holds[queue][1].in_force()

    def release(self, queue: int) -> bool:
        if queue in self._holds:
            self._end(queue)
        held = self._held.pop(queue, None)
        return held is not None and held.unbroken

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None:
        """ValueError: no queue is quiesced while this one drains. Where it is not known what
        backlogs deliver, nothing is asked, and the hold ends at its limit."""
        if hands_on and not self._transit.knows_backlogs():
            return
        for quiesced, (drains, hold) in self._holds.items():
            if queue in drains:
                settles = quiesced, from_ns, hands_on
                if self._settles != settles:  # one question covers all
                    self._asked, self._settles = quiesced, settles
                    hold.settle(from_ns, hands_on=hands_on)
                return
        raise ValueError(f"queue {queue} drains for no hold")

    def watch(
        self,
        key: FlowKey,
        origins: frozenset[int],
        targets: frozenset[int],
        through: frozenset[int],
        cookie: int | None,
    ) -> None:
        """A flow that cannot be watched counts as lost evidence: its socket or queue is not known,
        it has several, the programs are not attached, or too many flows are watched."""
        started = self._transit.started()
        rings = len(origins), len(targets), max(len(through), 1)
        if cookie is None or rings != (1, 1, 1) or not started:
            self._passages.miss()
            return
        [a], [b] = origins, targets
        try:
            queues = self._queue(a), self._queue(b)
            between = next((self._queue(each) for each in through), None)
            self._passages.watch(key, cookie, *queues, self._queues(), between)
        except OSError as refusal:
            if refusal.errno not in (errno.ENODEV, errno.E2BIG, errno.EEXIST):
                raise
            self._passages.miss()

    def unwatch(self, key: FlowKey) -> None:
        self._passages.unwatch(key)

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        try:
            there = self._nic.filter(location)
        except OSError:
            return True
        return there is not None and (there.match, there.queue) == (Match.of(key), queue)

    def delivered_ns(self, key: FlowKey) -> int | None:
        return self._passages.delivered_ns(key)

    def evidence(self, until_ns: int) -> Sequence[Event]:
        """While a queue is quiesced, wait, and return how that ended; else return what watched
        flows have done up to now."""
        if not self._holds:
            return [*self._passages.events(), *self._arrived()]
        quiesced = self._asked if self._asked in self._holds else next(iter(self._holds))
        drains, hold = self._holds[quiesced]
        if not hold.settled(until_ns):
            return ()
        held = self._end(quiesced)
        match held.end:
            case HoldEnd.DRAINED | HoldEnd.IDLE:
                marked = [] if held.marked_ns is None else [HandedOn(held.marked_ns)]
                return [
                    *(
                        event
                        for drain, proof in zip(sorted(drains), held.proofs, strict=True)
                        for event in _proven(drain, proof)
                    ),
                    *marked,
                ]
            case HoldEnd.EXPIRED | HoldEnd.RELEASED:
                return [HoldLost(quiesced, "it ended at its limit")]

    def _end(self, queue: int) -> HoldResult:
        """KeyError: it is not quiesced."""
        _, hold = self._holds.pop(queue)
        self._held[queue] = held = hold.release()
        return held

    def _follow(self, action: Action) -> None:
        """See whether a queue is polled on its new CPU."""
        queue, cpu = action.queue, action.new
        if queue is None or cpu is None or self._holds:
            return
        self._watch_ring(self._queue(queue))
        self._followed[queue] = cpu, self.now_ns()

    def _arrived(self) -> Iterator[Seen]:
        """Queues that were polled on their new CPU, each reported once; or not within
        FOLLOWED_NS."""
        for queue, (cpu, since_ns) in list(self._followed.items()):
            queues = self._queues()
            napi_id = queues[queue].napi_id if queue < len(queues) else None
            known = napi_id in self._rings  # else its link came up again, or it was displaced
            polled = self._transit.polled(napi_id) if known and napi_id is not None else None
            ended_ns, on_cpu = polled or (0, None)
            there = ended_ns >= since_ns and on_cpu == cpu
            if there or self.now_ns() - since_ns > FOLLOWED_NS:
                del self._followed[queue]
            if there:
                yield Seen(queue, queue, ended_ns)

    def _queue(self, index: int) -> Queue:
        queues = self._queues()
        if index >= len(queues) or queues[index].napi_id is None:
            raise OSError(errno.ENODEV, f"there is no queue {index} now")
        return queues[index]

    def _watch_ring(self, queue: Queue) -> None:
        """Watch its polls, in the place of the queue whose hold is oldest. A queue whose link came
        up again counts as a new one."""
        napi_id, thread = queue.napi_id, queue.pid
        if napi_id is None:
            return
        known = napi_id in self._rings
        if known and self._rings.pop(napi_id) != thread:
            self._transit.unwatch(napi_id)
            known = False
        if not known:
            if len(self._rings) == RINGS:
                oldest = next(iter(self._rings))
                del self._rings[oldest]
                self._transit.unwatch(oldest)
            self._transit.watch(napi_id, thread)
        self._rings[napi_id] = thread


def _proven(queue: int, proof: Proof) -> list[Event]:
    """What an old queue did, as events for the machine."""
    if proof.end is HoldEnd.IDLE:
        return [Asleep(queue, proof.at_ns)]
    return [Polled(queue, *end) for end in proof.polls]
