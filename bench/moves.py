# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves of real flows by the machine of the moves, that drives the kernel: without a daemon.

Writes rules (or queues' CPUs) of a bed's NIC through `program.actuator`, as a daemon does. What the
machine was given for the bench: a flow does not rest, nothing is remembered against it, the token
bucket admits 10,000 moves a second, a quiet flow is waited for 50 ms, a queue's new CPU as long.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from atfnd.daemon.moving import carry_out
from atfnd.errors import OperatorError
from atfnd.model import Action, ActionKind, FlowKey, Outcome
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import Event, TimerDue, Wanted
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.mover import Mover
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from atfnd.observe.nics.move_port import read_port
from atfnd.observe.nics.watch import NicWatch
from atfnd.program.actuator import NicActuator
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from bench.bed import Bed
from bench.traffic.datagrams import Stream

__all__ = ["Move", "Steering", "seen_for_long", "steering"]

TIMES = Times(
    hold_down_max_ns=0,
    move_every_ns=100_000,
    verify_ns=50_000_000,
    follow_ns=50_000_000,
    quiet_ns=0,
)
FOLLOW_EVERY_S = 0.01
GAP_S, DUE_S, LOOK_S, LATEST_S = 0.001, 0.002, 0.02, 0.1
NOT_DONE = (Verdict.DEFERRED, Verdict.REFUSED)


class Move(NamedTuple):
    """One that ended."""

    flow: int | None  # None: a queue
    began_ns: int  # CLOCK_REALTIME
    ended: Ended

    @property
    def done(self) -> bool:
        return self.ended.verdict not in NOT_DONE


class _Actuator(NicActuator):
    """Notes when the last move of a flow began."""

    began_ns: dict[FlowKey, int]

    def watch(self, key: FlowKey, *rest: Any, **named: Any) -> None:
        self.began_ns[key] = time.time_ns()
        super().watch(key, *rest, **named)


@dataclass
class Steering:
    """Flows with a rule each, on the queues of one NIC, and the machine that moves them."""

    watch: NicWatch
    actuator: _Actuator
    mover: Mover
    streams: Sequence[Stream]
    queue_of: list[int]
    locations: list[int | None]

    def move(
        self,
        mode: Mode,
        count: int,
        limit_s: float,
        at_once: int,
        sending: Callable[[], Sequence[int]],
    ) -> list[Move]:
        """Move flows that are sending, the least moved first, each to the next queue, until `count`
        moves are done, at most for `limit_s`. `at_once` are wanted at a time. Those that are
        deferred are in the list too."""
        numbers = {stream.key: flow for flow, stream in enumerate(self.streams)}
        found: list[Move] = []
        live: set[int] = set()
        tries = Counter[int]()
        done, end = 0, time.monotonic() + limit_s
        while (goes_on := done < count and time.monotonic() < end) or live:
            room = min(at_once, count - done) - len(live) if goes_on else 0
            chosen = sorted(set(sending()) - live, key=lambda flow: tries[flow])[: max(room, 0)]
            wanted = [self._wanted(flow, mode) for flow in chosen]
            live.update(chosen)
            tries.update(chosen)
            # what a strike taught of one flow would end its moves
            self.mover.device = self.mover.device._replace(records=FrozenMap())
            said = self._answers(
                *wanted, *self.actuator.evidence(self.actuator.now_ns()), TimerDue()
            )
            for each in said:
                flow = numbers[each.action.key] if isinstance(each.action.key, FlowKey) else None
                if flow is None:
                    continue
                if isinstance(each, Ended):
                    key, now_ns = self.streams[flow].key, time.time_ns()
                    found.append(Move(flow, self.actuator.began_ns.get(key, now_ns), each))
                    live.remove(flow)
                    done += found[-1].done
                elif not each.errno:
                    self.queue_of[flow] = each.action.new or 0
            if not said:
                time.sleep(self._soon_s(DUE_S if len(live) < at_once and goes_on else LATEST_S))
        return found

    def follow(self, queue: int, cpus: Sequence[int], count: int) -> list[Move]:
        """Move a queue from CPU to CPU, with all its flows."""
        found: list[Move] = []
        for turn in range(count):
            old, new = cpus[turn % len(cpus)], cpus[(turn + 1) % len(cpus)]
            action = Action(
                ActionKind.QUEUE_CPU, self.watch.facts.name, None, None, old, new, Code.UNSAID(),
                "", queue,
            )  # fmt: skip
            began_ns = time.time_ns()
            said = self._answers(Wanted(action, Mode.STRICT, frozenset({queue})), TimerDue())
            while not (ended := [each for each in said if isinstance(each, Ended)]):
                time.sleep(0.0002)
                said = self._answers(*self.actuator.evidence(self.actuator.now_ns()), TimerDue())
            found.append(Move(None, began_ns, ended[0]))
            time.sleep(max(0.0, began_ns / 1e9 + FOLLOW_EVERY_S - time.time()))
        return found

    def _answers(self, *events: Event) -> list[Outcome | Ended]:
        return carry_out(self.mover.steps(*events), self.actuator.write)

    def _soon_s(self, every_s: float) -> float:
        """The next look, as `atfnd.moving` has it, but within `every_s`."""
        due_ns, look_s = self.mover.due_ns(), LATEST_S
        if self.actuator.watching():
            look_s = GAP_S if self.mover.waits_for_gap() else LOOK_S
        if due_ns is not None:
            look_s = min(look_s, (due_ns - self.actuator.now_ns()) / 1e9)
        return max(GAP_S, min(look_s, every_s))

    def _wanted(self, flow: int, mode: Mode) -> Wanted:
        old = self.queue_of[flow]
        new = (old + 1) % len(self.watch.facts.queues)
        stream, at = self.streams[flow], self.locations[flow]
        action = Action(
            ActionKind.REWRITE, self.watch.facts.name, stream.key, at, old, new, Code.UNSAID(), ""
        )
        return Wanted(action, mode, frozenset({old}), frozenset(), cookie=stream.cookie)


@contextmanager
def steering(
    bed: Bed,
    folder: Path,
    streams: Sequence[Stream],
    queues: Sequence[int],
    holds: bool = True,
) -> Iterator[Steering]:
    """A rule for each stream, in turn to each of these queues; none is left. `holds` False: on a
    NIC without NAPI threads, where only gaps are left to wait for."""
    with ExitStack() as undo:
        nic = undo.enter_context(bed.open())
        watch = NicWatch(nic)
        undo.callback(watch.close)
        watch.inspect()
        journal = undo.enter_context(closing(FilterJournal(folder / "filters.journal")))
        undo_journal = undo.enter_context(closing(UndoJournal(folder / "originals.journal")))
        actuator = undo.enter_context(
            closing(_Actuator(nic, journal, undo_journal, lambda: watch.facts.queues))
        )
        actuator.began_ns = {}
        actuator.start()
        tried = carry_out(actuator.trial(nic.name), actuator.write)
        if tried is None or tried.errno:
            raise OperatorError(f"{nic.name} takes no filter", exit_code=1)
        queue_of = [queues[flow % len(queues)] for flow in range(len(streams))]
        locations = []
        for stream, queue in zip(streams, queue_of, strict=True):
            action = Action(
                ActionKind.INSERT, nic.name, stream.key, None, None, queue, Code.UNSAID(), ""
            )
            outcome = actuator.write(action)
            if outcome.errno:
                raise OperatorError(outcome.left, exit_code=1)
            locations.append(outcome.location)
        undo.callback(bed.clear_filters)
        port = read_port(watch.facts, watch.nic.interface, actuator.write_ns())
        if not holds:
            port = port._replace(holds_max=0)
        mover = Mover(actuator, NicMoves(port, TIMES))
        yield Steering(watch, actuator, mover, streams, queue_of, locations)


def seen_for_long(steering: Steering, stall_ns: int) -> None:
    """Let a move be looked at until no stall, at the most so long, can hide what it did: T_A, which
    nothing waits for in mode immediate, becomes as long as a ring of the slowest kind takes."""
    device = steering.mover.device
    rings = tuple(ring._replace(service_pps=1_000.0) for ring in device.port.rings)
    times = replace(device.times, timer_max_ns=stall_ns)
    steering.mover.device = device._replace(port=device.port._replace(rings=rings), times=times)
