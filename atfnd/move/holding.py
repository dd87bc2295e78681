# SPDX-License-Identifier: GPL-2.0-or-later
"""Mechanism `hold`: quiesce the new ring, write, prove that the old one drained, release. Pure.

Packets in the old ring A were classified before those in the new ring B. B is not polled until A
has delivered, so none of B's goes ahead. Where a driver deletes and adds a rule, packets come
through A, then RSS's ring R, then B: both wait for A, then B waits for R. What a ring hands on to
backlogs (RFS) is delivered when they are drained as well. A hold never outlives
T_hold_max; if it ends before the proof, the move says so (ordering.md I3, I4, I6, I7).
"""

from __future__ import annotations

from atfnd.model.reason import Code, Why
from atfnd.move import evidence
from atfnd.move.command import Command, DrainEvidence, Hold, Write
from atfnd.move.event import Asleep, HandedOn, HoldLost, Polled, QueueHeld, Released
from atfnd.move.evidence import Drain
from atfnd.move.timer import Times, in_ms
from atfnd.move.transition import Moved, Phase, Transition, finish, release
from atfnd.move.verdict import Verdict

__all__ = ["expired", "held", "looked", "lost", "quiesce", "released", "settle"]


def quiesce(move: Transition, times: Times, now_ns: int) -> Moved:
    """Ask for every hold that the move needs, before anything is written: the new ring first, while
    RSS's ring can still be seen to deliver."""
    queues = move.through | move.targets
    until_ns = now_ns + times.hold_max_ns
    origins = (move.wanted.origins or frozenset()) - move.targets
    holds = [
        *(Hold(queue, until_ns, move.through or origins) for queue in sorted(move.targets)),
        *(Hold(queue, until_ns, origins) for queue in sorted(move.through)),
    ]
    move = move._replace(phase=Phase.HOLD, asked=queues, due_ns=until_ns, hold_due_ns=until_ns)
    return move, tuple(holds)


def held(move: Transition, event: QueueHeld) -> Moved:
    """One more ring is quiesced; with the last one the write goes out."""
    if move.phase is not Phase.HOLD or event.queue not in move.asked - move.releasing:
        return move, ()
    move = move._replace(held=move.held | {event.queue})
    if move.held != move.asked:
        return move, ()
    return move._replace(phase=Phase.COMMIT), (Write(move.wanted.action),)


def settle(move: Transition, times: Times, now_ns: int) -> Moved:
    """The write is done: ask the old rings for proof."""
    safe = move.asked | (move.wanted.origins or frozenset())
    if move.lost and not (move.targets and move.targets <= safe):
        move = move.breaks(Code.LOST_UNHELD())
    if move.broken is not None or not move.asked - move.releasing:
        return _to_verify(move, times, now_ns)
    rings = (move.wanted.origins or frozenset()) - move.targets
    from_ns = evidence.opens_ns(move.done_ns, move.pipe_ns)
    move = move._replace(phase=Phase.SETTLE, due_ns=move.hold_due_ns)
    return _drain(move, rings, from_ns, times, now_ns)


def looked(move: Transition, event: Polled | Asleep | HandedOn, times: Times, now_ns: int) -> Moved:
    """A poll ended, a thread slept or backlogs were emptied, while the old rings have to drain."""
    if move.phase is not Phase.SETTLE:
        return move, ()
    match event:
        case Polled():
            drain = move.drain.after(event)
        case Asleep():
            drain = move.drain.slept(event)
        case HandedOn():
            drain = move.drain.passed_on(event)
    move = move._replace(drain=drain)
    return _next(move, times, now_ns) if move.drain.over else (move, ())


def released(move: Transition, event: Released, now_ns: int) -> Moved:
    """A hold is over. Was it in force until we ended it?"""
    if event.queue not in move.asked:
        return move, ()
    asked_for = event.queue in move.releasing
    move = _without(move, event.queue)
    if not (event.unbroken and asked_for):
        move = move.breaks(Code.HOLD_ENDED(event.queue))
    if move.phase is Phase.RELEASE and not move.asked:
        return finish(move, now_ns)
    return move, ()


def lost(move: Transition, event: HoldLost, times: Times, now_ns: int) -> Moved:
    """A hold was refused, or ended by itself: before the write, nothing has happened."""
    if event.queue not in move.asked:
        return move, ()
    move = _without(move, event.queue)
    if now_ns >= move.hold_due_ns:
        return expired(move, times, now_ns)
    return _give_up(move, Code.NOT_HELD(event.queue, event.why), times, now_ns)


def expired(move: Transition, times: Times, now_ns: int) -> Moved:
    """T_hold_max is over: let traffic flow, proven or not."""
    code = Code.NOT_HELD_IN_TIME if move.phase is Phase.HOLD else Code.NOT_DRAINED_IN_TIME
    return _give_up(move, code(in_ms(times.hold_max_ns)), times, now_ns)


def _give_up(move: Transition, why: Why, times: Times, now_ns: int) -> Moved:
    match move.phase:
        case Phase.HOLD:
            return finish(move, now_ns, (Verdict.DEFERRED, why))
        case Phase.SETTLE:
            return _to_verify(move.breaks(why), times, now_ns)
        case Phase.COMMIT:
            return release(move.breaks(why), move.asked)
        case Phase.RELEASE if not move.asked:
            return finish(move.breaks(why), now_ns)
        case _:
            return move.breaks(why), ()


def _without(move: Transition, queue: int) -> Transition:
    gone = frozenset({queue})
    rest = move.releasing - gone
    return move._replace(asked=move.asked - gone, held=move.held - gone, releasing=rest)


def _drain(
    move: Transition, rings: frozenset[int], from_ns: int, times: Times, now_ns: int
) -> Moved:
    hands_on = rings & move.hands_on
    move = move._replace(drain=Drain(rings, from_ns, hands_on=hands_on))
    if not rings:
        return _next(move, times, now_ns)
    asked = (DrainEvidence(queue, from_ns, bool(hands_on)) for queue in sorted(rings))
    return move, tuple(asked)


def _next(move: Transition, times: Times, now_ns: int) -> Moved:
    """The old rings have drained: release RSS's ring first, and the new one once RSS's has
    drained."""
    between = (move.through & move.held) - move.targets
    if not between or move.lost:
        return _to_verify(move, times, now_ns)
    move, commands = release(move, between)
    from_ns = max(now_ns, evidence.opens_ns(move.done_ns, move.pipe_ns))
    drained, more = _drain(move, between, from_ns, times, now_ns)
    return drained, (*commands, *more)


def _to_verify(move: Transition, times: Times, now_ns: int) -> Moved:
    commands: tuple[Command, ...]
    move, commands = release(move, move.asked)
    return move._replace(phase=Phase.VERIFY, due_ns=now_ns + times.verify_ns), commands
