# SPDX-License-Identifier: GPL-2.0-or-later
"""One move: `start` it, and `step` it on with each event. Pure: events in, commands out.

Every phase has a deadline, except COMMIT and RELEASE, which end with an answer that the runner
always gives. In every phase, quiesced queues are released at T_hold_max.
"""

from __future__ import annotations

import errno

from atfnd.model import ActionKind, FlowKey, Outcome
from atfnd.model.reason import Code, Why
from atfnd.move import holding
from atfnd.move.choose import Choice, handing_on, passing
from atfnd.move.command import Reread, Watch, Write
from atfnd.move.event import (
    Asleep,
    Disturbed,
    Established,
    Event,
    EvidenceLost,
    FlowClosed,
    HandedOn,
    HoldLost,
    Idle,
    Polled,
    PortChanged,
    QueueHeld,
    Released,
    Reset,
    Seen,
    TimerDue,
    Violated,
    Wanted,
    Written,
)
from atfnd.move.port import Port
from atfnd.move.timer import Times, in_ms, pipe_ns
from atfnd.move.transition import (
    Moved,
    Phase,
    Transition,
    filter_is_lost,
    finish,
    release,
)
from atfnd.move.verdict import Mechanism, Verdict

__all__ = ["start", "step"]


def start(
    wanted: Wanted, choice: Choice, port: Port, times: Times, timer_ns: int, now_ns: int
) -> Moved:
    """Begin a move by the mechanism chosen. ValueError: there is none."""
    if choice.mechanism is None:
        raise ValueError(f"a deferred move is not started: {wanted}")
    through = passing(wanted, port) if wanted.live else frozenset()
    drains = (wanted.origins or frozenset()) | through
    move = Transition(
        wanted,
        choice.mechanism,
        choice.why,
        began_ns=now_ns,
        timer_ns=timer_ns,
        pipe_ns=max((pipe_ns(port.rings[queue], times) for queue in drains), default=0),
        through=through,
        hands_on=handing_on(drains, port),
        phase=Phase.COMMIT,
        due_ns=now_ns,
    )
    if not wanted.live and wanted.action.kind is ActionKind.DELETE:
        return move._replace(phase=Phase.RETIRE, due_ns=now_ns + times.quiet_ns), ()
    commands: tuple[Watch, ...] = ()
    if (watch := _watch(wanted, through)) is not None:
        move, commands = move._replace(watched=True), (watch,)
    match move.mechanism:
        case Mechanism.HOLD:
            quiesced, holds = holding.quiesce(move, times, now_ns)
            return quiesced, (*commands, *holds)
        case Mechanism.GAP:
            armed = move._replace(phase=Phase.ARM_GAP, due_ns=now_ns + times.arm_ns)
            return armed, commands
        case Mechanism.BIRTH | Mechanism.FOLLOW | Mechanism.NONE:
            return move, (*commands, Write(wanted.action))


def step(move: Transition, event: Event, times: Times, now_ns: int) -> Moved:
    """Take one event into account. An event that does not concern this move or its phase changes
    nothing."""
    match event:
        case QueueHeld():
            return holding.held(move, event)
        case HoldLost():
            return holding.lost(move, event, times, now_ns)
        case Released():
            return holding.released(move, event, now_ns)
        case Polled() | Asleep() | HandedOn():
            return holding.looked(move, event, times, now_ns)
        case Written():
            return _written(move, event, times, now_ns)
        case Idle():
            return _idle(move, event, now_ns)
        case Seen():
            return _seen(move, event, times, now_ns)
        case Violated():
            return _violated(move, event, now_ns)
        case Disturbed():
            return _resync(move, Code.DISTURBED(), now_ns)
        case EvidenceLost():
            return move._replace(blind=True), ()
        case Reset():
            return _resync(move, Code.RESET(), now_ns)
        case Established():
            return _established(move, event), ()
        case FlowClosed():
            return _gone(move, now_ns)
        case TimerDue():
            return _tick(move, times, now_ns)
        case Wanted() | PortChanged():
            raise ValueError(f"not about a move under way: {event}")


def _watch(wanted: Wanted, through: frozenset[int]) -> Watch | None:
    """A key that is open to any remote cannot be watched: it is many flows."""
    key = wanted.action.key
    if not wanted.live or not isinstance(key, FlowKey) or not key.remote_port:
        return None
    if wanted.origins is None or wanted.targets is None or wanted.origins == wanted.targets:
        return None
    return Watch(key, wanted.origins, wanted.targets, through, wanted.cookie)


def _written(move: Transition, event: Written, times: Times, now_ns: int) -> Moved:
    if move.phase is not Phase.COMMIT:
        return move, ()
    outcome = event.outcome
    if outcome.errno == errno.ECANCELED and move.mechanism is Mechanism.GAP:
        armed = move._replace(phase=Phase.ARM_GAP, due_ns=move.began_ns + times.arm_ns)
        return (armed, ()) if move.decided is None else finish(armed, now_ns)
    lost = outcome.errno != 0 and filter_is_lost(move, outcome.location)
    if lost and outcome.errno == errno.ENOENT:  # before the write: there was nothing to move
        return finish(move, now_ns, move.decided or (Verdict.RESYNC, Code.KERNEL(outcome.left)))
    if outcome.errno and not lost:
        return finish(
            move, now_ns, move.decided or (_not_written(outcome), Code.KERNEL(outcome.left))
        )
    if move.decided is not None:
        return finish(move, now_ns)
    move = move._replace(done_ns=event.done_ns, lost=lost, location=outcome.location)
    match move.mechanism:
        case Mechanism.HOLD:
            return holding.settle(move, times, now_ns)
        case Mechanism.BIRTH:
            first_ns = move.wanted.first_data_ns
            if first_ns is None or event.done_ns > first_ns:
                move = move.breaks(Code.TOO_EARLY())
        case Mechanism.NONE if not move.watched:
            return finish(move, now_ns, (Verdict.DONE, move.why))
        case _:
            pass
    wait_ns = times.follow_ns if move.mechanism is Mechanism.FOLLOW else times.verify_ns
    return move._replace(phase=Phase.VERIFY, due_ns=now_ns + wait_ns), ()


def _not_written(outcome: Outcome) -> Verdict:
    if outcome.superseded:
        return Verdict.SUPERSEDED
    return Verdict.DEFERRED if outcome.errno == errno.ECANCELED else Verdict.REFUSED


def _idle(move: Transition, event: Idle, now_ns: int) -> Moved:
    if move.phase is not Phase.ARM_GAP or now_ns - event.since_ns < move.timer_ns:
        return move, ()
    committed = move._replace(phase=Phase.COMMIT, idle_since_ns=event.since_ns)
    return committed, (Write(move.wanted.action, event.since_ns),)


def _violated(move: Transition, event: Violated, now_ns: int) -> Moved:
    """Had we waited until this packet came, the gap would have been seen to be none. Before the
    write, nothing is late because of it."""
    if not move.done_ns:
        return _resync(move, Code.DISTURBED(), now_ns)
    since_ns = move.done_ns if move.idle_since_ns is None else move.idle_since_ns
    stayed_ns = max(move.stayed_ns, event.at_ns - since_ns)
    move = move._replace(violations=move.violations + event.packets, stayed_ns=stayed_ns)
    return move, _reread(move)


def _reread(move: Transition) -> tuple[Reread, ...]:
    """Read whether the filter that was written is still there."""
    action, at = move.wanted.action, move.location
    if at is None or action.new is None or not isinstance(action.key, FlowKey):
        return ()
    return (Reread(action.key, at, action.new),)


def _seen(move: Transition, event: Seen, times: Times, now_ns: int) -> Moved:
    """The first packet on a new ring starts the last wait: packets that it overtook arrive during
    it."""
    if move.phase is not Phase.VERIFY or event.at_ns < move.done_ns:
        return move, ()
    if event.queue not in move.targets:
        after_ns = event.at_ns - move.done_ns
        late, origins = after_ns > move.timer_ns, move.wanted.origins or ()
        stayed_ns = max(move.stayed_ns, after_ns) if event.queue in origins else move.stayed_ns
        first = late and not move.elsewhere
        move = move._replace(elsewhere=move.elsewhere or late, stayed_ns=stayed_ns)
        return move, _reread(move) if first else ()
    if move.seen:
        return move, ()
    looks_ns = max(move.timer_ns, times.late_ns if move.watched else 0)
    return move._replace(seen=True, due_ns=min(move.due_ns, now_ns + looks_ns)), ()


def _resync(move: Transition, why: Why, now_ns: int) -> Moved:
    """The result of our write is no longer known."""
    decided = Verdict.RESYNC, why
    if move.phase is not Phase.COMMIT:
        return finish(move, now_ns, decided)
    return release(move._replace(decided=decided), move.asked)


def _established(move: Transition, event: Established) -> Transition:
    if move.phase is Phase.COMMIT or event.at_ns is None or event.at_ns <= move.done_ns:
        return move.breaks(Code.TOO_EARLY()) if move.mechanism is Mechanism.BIRTH else move
    return move._replace(established=True)


def _gone(move: Transition, now_ns: int) -> Moved:
    match move.phase:
        case Phase.ARM_GAP | Phase.HOLD:
            return finish(move, now_ns, (Verdict.DEFERRED, Code.CLOSED()))
        case Phase.VERIFY:
            return finish(move, now_ns)
        case _:
            return move, ()


def _tick(move: Transition, times: Times, now_ns: int) -> Moved:
    if move.asked - move.releasing and now_ns >= move.hold_due_ns:
        return holding.expired(move, times, now_ns)
    if move.phase in (Phase.COMMIT, Phase.RELEASE) or now_ns < move.due_ns:
        return move, ()
    match move.phase:
        case Phase.ARM_GAP:
            why = Code.NEVER_IDLE(in_ms(move.timer_ns), in_ms(times.arm_ns))
            return finish(move, now_ns, (Verdict.DEFERRED, why))
        case Phase.RETIRE:
            return move._replace(phase=Phase.COMMIT), (Write(move.wanted.action),)
        case _:
            return finish(move, now_ns)
