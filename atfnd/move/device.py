# SPDX-License-Identifier: GPL-2.0-or-later
"""All moves of one NIC: which may run at the same time, and what is learned from each. Pure.

`step(device, event, now) -> (device, commands)`. The state is a value. These rules make a move
wait:

- one move and one write under way per flow; of what is wanted meanwhile, the last one waits (I1,
  I2)
- one hold a NIC (I1), and no queue changes its CPU while a move of a flow concerns it
- no other steering setting is written while a move is live, and no move begins before it is written
  (I5)
- a flow rests for its hold-down between two moves, doubled by each strike; a mechanism that failed
  it twice is not tried on it again
- a token bucket bounds moves a second; a dead flow's delete costs nothing
- a move that could be held if its queues had NAPI threads waits until these are borrowed (loan.py);
  so does a switch of RFS, which quiesces its queue, and no move waits for it while none may be
"""

from __future__ import annotations

from collections.abc import Container, Set
from dataclasses import replace
from typing import NamedTuple

from atfnd.model import Action, ActionKind, FlowKey, Outcome
from atfnd.model.reason import UNSAID, Code, Why
from atfnd.move import bucket
from atfnd.move.choose import (
    Choice,
    choose,
    handing_on,
    still_there,
    switch_loan,
    why_no_hold,
)
from atfnd.move.command import Command, Ended, Write
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
    Subject,
    TimerDue,
    Violated,
    Wanted,
    Written,
)
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.learn import Lesson, Record, adapted_ns, demoted, recorded, teaches
from atfnd.move.loan import GIVEN_BACK, Loan, borrows
from atfnd.move.port import Port, given_back, lent, rfs_queue
from atfnd.move.step import start
from atfnd.move.step import step as step_one
from atfnd.move.timer import Times, pipe_ns, t_timer_ns
from atfnd.move.transition import Moved, Phase, Transition, finish
from atfnd.move.verdict import Mechanism, Mode, Verdict

__all__ = ["NicMoves", "Record", "due_ns", "only_known", "step"]


class NicMoves(NamedTuple):
    """One NIC's moves. `timers_ns` is T_A by queue, of queues that have learned one."""

    port: Port
    times: Times
    live: FrozenMap[Subject, Transition] = FrozenMap()
    waiting: FrozenMap[Subject, Wanted] = FrozenMap()
    settings: tuple[Action, ...] = ()  # to be written once no move is live
    turning: tuple[Action, ...] = ()  # being written
    records: FrozenMap[Subject, Record] = FrozenMap()
    timers_ns: FrozenMap[int, int] = FrozenMap()
    arrival_ns: int = 0  # of the token bucket
    admit_ns: int | None = None  # when the next one that waits for a time may begin
    loan: Loan = Loan()

    def timer_ns(self, origins: Set[int] | None) -> int:
        """T_A of a move from these queues: the longest of them; of all queues, if they are not
        known."""
        queues = range(len(self.port.rings)) if origins is None else origins
        return max((self._timer_ns(queue) for queue in queues), default=0)

    def _timer_ns(self, queue: int) -> int:
        learned_ns = self.timers_ns.get(queue)
        if learned_ns is not None:
            return learned_ns
        return t_timer_ns(self.port.rings[queue], self.port, self.times)


_UNCHANGED = Verdict.DEFERRED, Verdict.REFUSED, Verdict.SUPERSEDED  # its packets come as before

Stepped = tuple[NicMoves, tuple[Command, ...]]


def step(device: NicMoves, event: Event, now_ns: int) -> Stepped:
    """Take one event into account, and begin what may begin."""
    commands: tuple[Command, ...] = ()
    match event:
        case Wanted():
            device, ends = _want(device, event, now_ns)
            lone = None if ends or event.action.key is None else event.subject
            return _admit(device, ends, now_ns, lone)
        case PortChanged():
            return _know(device, event.port), ()
        case Polled() | Asleep() | HandedOn():
            subjects = [s for s, m in device.live.items() if m.phase is Phase.SETTLE]
        case QueueHeld() | HoldLost() | Released():
            subjects = [s for s, m in device.live.items() if m.asked]
        case Idle() | Violated() | Disturbed():
            subjects = [event.key]
        case Seen():
            subjects = [event.subject]
        case FlowClosed():
            subjects, device = [event.key], _forget(device, event)
        case Established():
            subjects, (device, commands) = (
                [event.key],
                _outdated(device, event.key, Code.TOO_EARLY()),
            )
        case Written():
            action = event.outcome.action
            if action in device.loan.asked:
                return _answered(device, event, now_ns)
            if action in device.turning:
                turning = tuple(each for each in device.turning if each != action)
                device = device._replace(turning=turning)
                if not event.outcome.errno:
                    loan = device.loan.kept(action.setting or "")
                    device = device._replace(port=device.port.after(action), loan=loan)
                return _admit(device, (), now_ns)
            subjects = [s for s in (action.key, action.queue) if s is not None][:1]
        case EvidenceLost() | Reset() | TimerDue():
            subjects = list(device.live)
    for subject in subjects:
        if subject in device.live:
            moved = step_one(device.live[subject], event, device.times, now_ns)
            device, more = _put(device, subject, moved, now_ns)
            commands += more
    if isinstance(event, Written):
        device, more = _outdated_under(device, event.outcome, now_ns)
        commands += more
    if isinstance(event, Reset | EvidenceLost):
        why = Code.RESET() if isinstance(event, Reset) else Code.TELEMETRY_LOST()
        for subject, wanted in device.waiting.items():
            if isinstance(event, Reset) or wanted.first_data_ns is not None:
                device, more = _outdated(device, subject, why)
                commands += more
    if isinstance(event, Reset):
        device = device._replace(loan=device.loan._replace(used_ns=0))
    if isinstance(event, TimerDue) or any(isinstance(each, Ended) for each in commands):
        device, commands = _admit(device, commands, now_ns)
    if isinstance(event, TimerDue) and (due_ns := _loan_due_ns(device)) is not None:
        return _give_back(device, commands) if now_ns >= due_ns else (device, commands)
    return device, commands


def due_ns(device: NicMoves) -> int | None:
    """When a Tick is needed. None: nothing waits for a time."""
    dues = [move.next_due_ns() for move in device.live.values()]
    dues += [device.admit_ns, _loan_due_ns(device)]
    return min((due for due in dues if due is not None), default=None)


def _loan_due_ns(device: NicMoves) -> int | None:
    """When threads are given back: not while a queue is quiesced, for a move or for a setting."""
    held = any(move.asked for move in device.live.values()) or bool(device.turning)
    return None if held else device.loan.due_ns(device.times)


def _give_back(device: NicMoves, commands: tuple[Command, ...]) -> Stepped:
    device = device._replace(loan=device.loan.give_back())
    return device, (*commands, *(Write(action) for action in device.loan.asked))


def _answered(device: NicMoves, event: Written, now_ns: int) -> Stepped:
    """Threads were borrowed, or given back, or not."""
    loan = device.loan.answered(event.outcome, device.times, now_ns)
    action, name = event.outcome.action, event.outcome.action.setting or ""
    if borrows(action) and event.outcome.errno:
        port = device.port
    elif name in loan.settings:
        port = lent(device.port, {name})
    else:
        given = device.loan.settings.get(name, GIVEN_BACK)
        port = given_back(device.port, name, given)
    return _admit(device._replace(loan=loan, port=port), (), now_ns)


def _want(device: NicMoves, wanted: Wanted, now_ns: int) -> Stepped:
    """The last decision replaces one that waits or has not written. `immediate` does not wait."""
    if wanted.action.kind is ActionKind.SETTING:
        return device._replace(settings=(*device.settings, wanted.action)), ()
    subject = wanted.subject
    commands: tuple[Command, ...] = ()
    if wanted.live and _port_went_first(device, wanted):
        return device, (_again(wanted, Code.QUEUE_CHANGED()),)
    move = device.live.get(subject)
    if move is not None and move.phase is Phase.RETIRE and not wanted.live:
        return device, ()  # the same is wanted once more
    if move is not None and move.phase is Phase.ARM_GAP and _same(move.wanted, wanted):
        # Its wait would begin anew, each time that it is decided again.
        live = device.live.put(subject, move._replace(wanted=wanted))
        return device._replace(live=live), ()
    if move is not None and move.phase in (Phase.ARM_GAP, Phase.RETIRE):
        moved = finish(move, now_ns, (Verdict.DEFERRED, Code.REPLACED()))
        device, commands = _put(device, subject, moved, now_ns)
    elif move is not None and move.phase is Phase.VERIFY and wanted.mode is Mode.IMMEDIATE:
        moved = finish(move, now_ns)
        device, commands = _put(device, subject, moved, now_ns)
    waiting = device.waiting.without(subject).put(subject, wanted)
    return device._replace(waiting=waiting), commands


def _same(one: Wanted, other: Wanted) -> bool:
    """They want the same, whatever the reason."""
    action, again = (replace(each.action, why=UNSAID, rule_name="") for each in (one, other))
    return action == again and one[1:] == other[1:]


def _know(device: NicMoves, port: Port) -> NicMoves:
    """The NIC has changed: a hold that would not be chosen now proves nothing. Once its queues are
    released, their threads may have been given back."""
    live = device.live
    with_threads = lent(port, {each for ring in port.rings for each in (ring.loan, ring.timeout)})
    for subject, move in live.items():
        if move.mechanism is Mechanism.HOLD:
            then = port if move.asked else with_threads
            why = why_no_hold(still_there(move.wanted, then), then, device.times)
            drains = (move.wanted.origins or frozenset()) | move.through
            if why is None and handing_on(drains, port) - move.hands_on:
                why = Code.RFS_SWITCHED()
            live = live.put(subject, move.breaks(Code.ON_THE_WAY(why)) if why else move)
    kept = {q: t for q, t in device.timers_ns.items() if q < len(port.rings)}
    return device._replace(port=port, live=live, timers_ns=FrozenMap(kept))


def only_known(device: NicMoves, known: Container[FlowKey]) -> NicMoves:
    """Without what moves have taught of flows that have neither an entry nor a move."""
    kept = {
        subject: record
        for subject, record in device.records.items()
        if not isinstance(subject, FlowKey)
        or subject in device.live
        or subject in device.waiting
        or subject in known
    }
    if len(kept) == len(device.records):
        return device
    return device._replace(records=FrozenMap(kept))


def _forget(device: NicMoves, event: FlowClosed) -> NicMoves:
    """A dead flow's waiting move is pointless, except the delete of its filter."""
    records, waiting = device.records.without(event.key), device.waiting
    if event.key in waiting and waiting[event.key].live:
        waiting = waiting.without(event.key)
    return device._replace(records=records, waiting=waiting)


def _admit(
    device: NicMoves, commands: tuple[Command, ...], now_ns: int, lone: Subject | None = None
) -> Stepped:
    """Begin what waits and may begin, in the order it came; settings go first. `lone`: nothing has
    changed except for this one."""
    due, later = _due(device, now_ns)
    if due and not device.live:
        device, more = _turn(device._replace(admit_ns=None), due, later, now_ns)
        return device, (*commands, *more)
    if due or device.turning:
        return device._replace(admit_ns=None), commands
    if device.loan.over(device.times, now_ns) and _loan_due_ns(device) is not None:
        device, commands = _give_back(device, commands)
    early = [] if lone is None or device.admit_ns is None else [device.admit_ns]
    early += [device.loan.rests_until_ns] if later else []
    nic, loan = "", dict[str, str]()
    for subject in device.waiting if lone is None else (lone,):
        wanted = device.waiting.get(subject)
        if wanted is None or subject in device.live:
            continue
        wanted = still_there(wanted, device.port)
        if wanted.live and (at_ns := bucket.spendable_ns(device.arrival_ns, device.times)) > now_ns:
            early.append(bucket.half_full_ns(at_ns, device.times))
            continue
        record = device.records.get(subject, Record(0))
        if wanted.live and now_ns < record.rests_until_ns:
            early.append(record.rests_until_ns)
            continue
        choice = choose(wanted, device.port, device.times, now_ns, demoted(record))
        if _must_wait(device, wanted, choice):
            continue
        if choice.loan and (why := device.loan.refused(now_ns)) is not None:
            choice = choice._replace(why=Code.LENDS_NOT(choice.why, why))
        elif choice.loan:
            if now_ns < device.loan.rests_until_ns:
                early.append(device.loan.rests_until_ns)
            elif not device.loan.asked:
                nic, loan = wanted.action.nic, {**loan, **choice.loan}
            continue
        device, more = _begin(device, wanted, choice, now_ns)
        commands += more
    device = device._replace(admit_ns=min(early, default=None))
    if loan:
        device = device._replace(loan=device.loan.borrow(nic, loan))
        commands += tuple(Write(action) for action in device.loan.asked)
    return device, commands


Settings = tuple[Action, ...]


def _due(device: NicMoves, now_ns: int) -> tuple[Settings, Settings]:
    """The settings to be written now, and those that wait until threads can be borrowed again."""
    if now_ns >= device.loan.rests_until_ns or device.loan.refused(now_ns) is not None:
        return device.settings, ()
    lacks = {each: switch_loan(each, device.port) is not None for each in device.settings}
    due = tuple(each for each in device.settings if not lacks[each])
    return due, tuple(each for each in device.settings if lacks[each])


def _turn(device: NicMoves, due: Settings, later: Settings, now_ns: int) -> Stepped:
    """Write these settings, no move is live; first borrow the threads of queues that are quiesced
    for it. What cannot borrow one is refused when it is written."""
    if device.loan.asked:
        return device, ()
    lacking = {switch_loan(each, device.port) for each in due}
    loan = {each: GIVEN_BACK for each in lacking if each is not None}
    if loan and device.loan.refused(now_ns) is None:
        device = device._replace(loan=device.loan.borrow(due[0].nic, loan))
        return device, tuple(Write(action) for action in device.loan.asked)
    switches = any(rfs_queue(each) is not None for each in due)
    used = device.loan.used(now_ns) if switches else device.loan
    device = device._replace(settings=later, turning=(*device.turning, *due), loan=used)
    return device, tuple(Write(action) for action in due)


def _begin(device: NicMoves, wanted: Wanted, choice: Choice, now_ns: int) -> Stepped:
    subject = wanted.subject
    device = device._replace(waiting=device.waiting.without(subject))
    if choice.mechanism is None:
        return device, (_again(wanted, choice.why)._replace(barred=True),)
    if choice.mechanism is Mechanism.HOLD or _follows_by_loan(device, wanted):
        device = device._replace(loan=device.loan.used(now_ns))
    if wanted.live:
        arrival_ns = bucket.spend(device.arrival_ns, device.times, now_ns)
        device = device._replace(arrival_ns=arrival_ns)
    timer_ns = device.timer_ns(wanted.origins)
    moved = start(wanted, choice, device.port, device.times, timer_ns, now_ns)
    return _put(device, subject, moved, now_ns)


def _follows_by_loan(device: NicMoves, wanted: Wanted) -> bool:
    """A queue that defers its interrupt without the loan."""
    queue = wanted.action.queue
    if queue is None or queue >= len(device.port.rings):
        return False
    return device.port.rings[queue].timeout in device.loan.settings


def _must_wait(device: NicMoves, wanted: Wanted, choice: Choice) -> bool:
    """Another move stands in its way: a hold, or one that concerns the queue to be moved."""
    if choice.mechanism is Mechanism.HOLD and (
        device.loan.asked or any(move.asked for move in device.live.values())
    ):
        return True
    queue = wanted.action.queue
    for other, move in device.live.items():
        if isinstance(other, FlowKey) and move.only_looked_at:
            continue
        if queue is not None and (
            move.wanted.origins is None or queue in _rings(move.wanted) | move.through
        ):
            return True
        if isinstance(other, int) and (wanted.origins is None or other in _rings(wanted)):
            return True
    return False


def _rings(wanted: Wanted) -> frozenset[int]:
    return (wanted.origins or frozenset()) | (wanted.targets or frozenset())


def _put(device: NicMoves, subject: Subject, moved: Moved, now_ns: int) -> Stepped:
    """Store a move that goes on; learn from one that has ended."""
    move, commands = moved
    before = device.live.get(subject)
    if move is before:
        return device, commands
    if move is not None:
        return device._replace(live=device.live.put(subject, move)), commands
    device = device._replace(live=device.live.without(subject))
    for command in commands:
        if isinstance(command, Ended) and before is not None:
            device = _learn(device, before, command, now_ns)
            if command.verdict not in _UNCHANGED:
                device, more = _outdated(device, subject, Code.QUEUE_CHANGED())
                commands = (*commands, *more)
    return device, commands


def _outdated_under(device: NicMoves, written: Outcome, now_ns: int) -> Stepped:
    """A port's filter leads elsewhere from its write on, and its move ends up to T_verify later:
    what has not begun, or waits for a gap, was decided with the queue that it gave before."""
    port, commands = written.action.key, tuple[Command, ...]()
    if port is None or not port.listens or (written.errno and written.location is not None):
        return device, ()
    for subject in [each for each in device.waiting if _comes_by(port, each)]:
        device, more = _outdated(device, subject, Code.QUEUE_CHANGED())
        commands += more
    for subject, move in device.live.items():
        if move.phase is Phase.ARM_GAP and _comes_by(port, subject):
            moved = finish(move, now_ns, (Verdict.DEFERRED, Code.QUEUE_CHANGED()))
            device, more = _put(device, subject, moved, now_ns)
            commands += more
    return device, commands


def _port_went_first(device: NicMoves, wanted: Wanted) -> bool:
    """It was decided before the filter of its port was written: it names another queue."""
    return any(
        isinstance(port, FlowKey)
        and _comes_by(port, wanted.subject)
        and move.done_ns > 0
        and not move.targets <= (wanted.rss or frozenset())
        for port, move in device.live.items()
    )


def _comes_by(port: FlowKey, subject: Subject) -> bool:
    """Without a filter of its own, this flow comes by that of this port."""
    if not isinstance(subject, FlowKey) or subject.listens:
        return False
    return port.listens and port.covers(subject)


def _outdated(device: NicMoves, subject: Subject, why: Why) -> Stepped:
    """A waiting move of a living flow names origins that no longer hold: decide again."""
    wanted = device.waiting.get(subject)
    if wanted is None or not wanted.live or isinstance(subject, int):
        return device, ()
    return device._replace(waiting=device.waiting.without(subject)), (_again(wanted, why),)


def _again(wanted: Wanted, why: Why) -> Ended:
    return Ended(wanted.subject, wanted.action, Mechanism.NONE, Verdict.DEFERRED, why, 0, 0)


def _learn(device: NicMoves, move: Transition, ended: Ended, now_ns: int) -> NicMoves:
    """Feed a verdict back into the timers and the records."""
    if not move.wanted.live:
        return device._replace(records=device.records.without(ended.subject))
    if ended.verdict in (Verdict.DONE, Verdict.DEFERRED, Verdict.RESYNC, Verdict.SUPERSEDED):
        return device
    times, timers_ns = device.times, device.timers_ns
    lesson = Lesson(ended.verdict.strike, move.wanted.mode is Mode.STRICT, move.stayed_ns)
    for queue in teaches(move, ended.verdict) & set(range(len(device.port.rings))):
        floor_ns, was_ns = pipe_ns(device.port.rings[queue], times), device.timer_ns({queue})
        timers_ns = timers_ns.put(queue, adapted_ns(was_ns, lesson, floor_ns, times))
    records = recorded(device.records, move, ended, times, now_ns)
    return device._replace(records=records, timers_ns=timers_ns)
