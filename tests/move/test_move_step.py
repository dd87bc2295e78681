# SPDX-License-Identifier: GPL-2.0-or-later
"""One move, event by event: what it waits for, for how long, and what it says of itself."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from atfnd.model import Action, ActionKind, Actuator, FlowKey, Outcome, Protocol
from atfnd.model.reason import Code
from atfnd.move.choose import Choice
from atfnd.move.command import Ended, Hold, Release, Unwatch, Watch, Write
from atfnd.move.event import (
    Asleep,
    EvidenceLost,
    FlowClosed,
    HoldLost,
    Idle,
    Polled,
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
from atfnd.move.step import start, step
from atfnd.move.timer import Times
from atfnd.move.transition import Moved, Phase, Transition
from atfnd.move.verdict import Mechanism, Mode, Verdict
from tests.move.check import PORT, RING
from tests.values import key

__all__: list[str] = []

TIMES = Times()
T0 = 1_000_000_000
TIMER_NS = 5_000_000
GAPPY = PORT._replace(actuator=Actuator.LONG_GAP)


def wanted(
    kind: ActionKind = ActionKind.REWRITE, *, live: bool = True, mode: Mode = Mode.STRICT,
    flow: FlowKey | None = None, first_data_ns: int | None = None,
) -> Wanted:  # fmt: skip
    """From queue 0 to 1; RSS has 2."""
    new = None if kind is ActionKind.DELETE else 1
    location = None if kind is ActionKind.INSERT else 7
    action = Action(kind, "nic", flow or key(0), location, 0, new, Code.UNSAID(), "")
    return Wanted(action, mode, frozenset({0}), frozenset({2}), live, first_data_ns)


class Move:
    """One that goes on by a clock of its own, and what it asked for last."""

    def __init__(
        self, asked: Wanted, how: Mechanism | None, port: Port = PORT, times: Times = TIMES
    ) -> None:
        self.times, self.now_ns, self.asked = times, T0, asked
        choice = Choice(how, Code.KERNEL("because"))
        self._take(start(asked, choice, port, times, TIMER_NS, T0))

    def _take(self, moved: Moved) -> None:
        self.now, self.commands = moved

    def __call__(self, event: object, after_ns: int = 0) -> Move:
        self.now_ns += after_ns
        assert self.now is not None
        self._take(step(self.now, event, self.times, self.now_ns))  # type: ignore[arg-type]
        return self

    def written(self, code: int = 0, location: int | None = 7) -> Move:
        outcome = Outcome(self.asked.action, self.now_ns, code, location, "the NIC said no")
        return self(Written(outcome, self.now_ns, self.now_ns))

    @property
    def moving(self) -> Transition:
        assert self.now is not None
        return self.now

    def ended(self) -> Ended:
        assert self.now is None
        [found] = [each for each in self.commands if isinstance(each, Ended)]
        return found


def held(port: Port = PORT) -> Move:
    """Quiesced, written, and what drains is waited for."""
    move = Move(wanted(), Mechanism.HOLD, port)
    for each in move.commands:
        if isinstance(each, Hold):
            move(QueueHeld(each.queue, T0))
    return move.written()


def test_a_hold_is_released_once_and_counts_no_more() -> None:
    """What we have asked to end may have been held before our order arrives."""
    move = Move(wanted(), Mechanism.HOLD, GAPPY)
    first, second = (each.queue for each in move.commands if isinstance(each, Hold))
    move(FlowClosed(key(0)))
    assert set(move.commands) == {Release(first), Release(second)}
    move(QueueHeld(first, T0))
    move(QueueHeld(second, T0))
    assert move.commands == ()
    assert move.moving.held == frozenset()


def test_a_queue_that_was_not_quiesced_in_time_is_called_so() -> None:
    """Nothing was to drain yet."""
    released = Move(wanted(), Mechanism.HOLD)(TimerDue(), TIMES.hold_max_ns)(Released(1, True))
    lost = Move(wanted(), Mechanism.HOLD)(HoldLost(1, "others have it"), TIMES.hold_max_ns)
    for move in (released, lost):
        assert move.ended().verdict is Verdict.DEFERRED
        assert move.ended().why.code is Code.NOT_HELD_IN_TIME


def test_what_is_in_rsss_queue_may_take_longest_to_arrive() -> None:
    slow = GAPPY._replace(rings=(RING, RING, RING._replace(rx_usecs=100)))
    assert Move(wanted(), Mechanism.HOLD, slow).moving.pipe_ns == TIMES.pipe_ns + 100_000
    assert Move(wanted(), Mechanism.HOLD, GAPPY).moving.pipe_ns == TIMES.pipe_ns


def test_a_dead_flow_passes_through_no_queue() -> None:
    move = Move(wanted(live=False), Mechanism.NONE, GAPPY)
    assert move.moving.through == frozenset()
    assert move.commands == (Write(move.asked.action),)


@pytest.mark.parametrize(
    "flow",
    [
        FlowKey(Protocol.UDP, bytes([10, 0, 0, 1]), 53, bytes(4), 0),
        FlowKey(Protocol.TCP, bytes([10, 0, 0, 1]), 443, bytes(4), 0),
    ],
)
def test_many_flows_are_not_watched(flow: FlowKey) -> None:
    move = Move(wanted(flow=flow), Mechanism.HOLD)
    assert not [each for each in move.commands if isinstance(each, Watch)]


def test_a_gap_that_ended_before_the_write_is_waited_for_again() -> None:
    move = Move(wanted(mode=Mode.BOUNDED), Mechanism.GAP)
    move(Idle(key(0), T0), TIMER_NS)
    move.written(errno.ECANCELED)
    assert move.moving.phase is Phase.ARM_GAP
    assert move.moving.due_ns == T0 + TIMES.arm_ns
    move(TimerDue(), TIMES.arm_ns)
    assert move.ended().verdict is Verdict.DEFERRED


def test_the_first_packet_on_the_new_queue_begins_the_last_wait() -> None:
    move = Move(wanted(mode=Mode.IMMEDIATE), Mechanism.NONE).written()
    assert move.moving.phase is Phase.VERIFY
    move(Seen(key(0), 1, T0 - 1), 10)  # of before the write
    assert not move.moving.seen
    move(Seen(key(0), 1, move.now_ns), 10)
    assert move.moving.seen
    assert move.moving.due_ns == move.now_ns + max(TIMER_NS, TIMES.late_ns)
    due_ns = move.moving.due_ns
    move(Seen(key(0), 1, move.now_ns), 10)
    assert move.moving.due_ns == due_ns
    late = Move(wanted(mode=Mode.IMMEDIATE), Mechanism.NONE).written()
    end_ns = late.moving.due_ns
    late(Seen(key(0), 1, end_ns - 1), TIMES.verify_ns - 1)
    assert late.moving.due_ns == end_ns


def test_packets_that_still_come_by_the_old_queue() -> None:
    move = Move(wanted(mode=Mode.IMMEDIATE), Mechanism.NONE).written()
    move(Seen(key(0), 0, T0 + TIMER_NS), TIMER_NS)
    assert not move.moving.elsewhere  # they may have been in it
    assert move.moving.stayed_ns == TIMER_NS
    move(Seen(key(0), 2, T0 + TIMER_NS + 1), 1)
    assert move.moving.elsewhere
    assert move.moving.stayed_ns == TIMER_NS  # which says nothing of the old queue
    move(TimerDue(), TIMES.verify_ns)
    assert move.ended().verdict is Verdict.NO_EFFECT


def test_what_was_not_promised_is_not_verified_when_telemetry_was_lost() -> None:
    move = Move(wanted(mode=Mode.IMMEDIATE), Mechanism.NONE).written()
    move(EvidenceLost())(Seen(key(0), 1, T0))(TimerDue(), TIMES.verify_ns)
    assert (move.ended().verdict, move.ended().why) == (Verdict.UNPROVEN, Code.TELEMETRY_LOST())


def test_a_refused_insert_had_no_rule_to_lose() -> None:
    asked = wanted(ActionKind.INSERT, mode=Mode.IMMEDIATE)
    move = Move(asked, Mechanism.NONE).written(errno.EIO, None)
    assert (move.ended().verdict, move.ended().why) == (
        Verdict.REFUSED,
        Code.KERNEL("the NIC said no"),
    )


def test_a_reset_while_the_write_is_out_waits_for_its_answer() -> None:
    move = Move(wanted(), Mechanism.HOLD)
    move(QueueHeld(1, T0))
    assert move.moving.phase is Phase.COMMIT
    assert move(Reset()).commands == (Release(1),)
    move(Released(1, True))
    assert move.moving.phase is Phase.COMMIT
    move.written()
    assert move.ended().verdict is Verdict.RESYNC


def test_a_hold_ends_at_its_limit_while_the_write_is_out() -> None:
    writing = Move(wanted(), Mechanism.HOLD)(QueueHeld(1, T0))
    assert writing(TimerDue(), TIMES.hold_max_ns).commands == (Release(1),)
    assert writing.moving.broken is not None


def test_a_violation_under_a_broken_hold_says_why_it_broke() -> None:
    move = held()
    move(HoldLost(1, "it has no CPU"), 10)
    move(Violated(key(0), 2, move.now_ns))
    move(Seen(key(0), 1, move.now_ns))(TimerDue(), TIMES.verify_ns)
    assert move.ended().verdict is Verdict.VIOLATED
    assert "2 packets overtook others: " in str(move.ended().why)
    assert "it has no CPU" in str(move.ended().why)
    whole = Move(wanted(mode=Mode.IMMEDIATE), Mechanism.NONE).written()
    whole(Violated(key(0), 2, T0))(Seen(key(0), 1, T0))(TimerDue(), TIMES.verify_ns)
    assert whole.ended().why == Code.OVERTOOK(2)


def test_a_socket_that_closes_ends_what_was_not_written() -> None:
    quiescing = Move(wanted(), Mechanism.HOLD)
    assert quiescing(FlowClosed(key(0))).commands == (Release(1),)
    assert quiescing(Released(1, True)).ended().verdict is Verdict.DEFERRED
    waiting = Move(wanted(mode=Mode.BOUNDED), Mechanism.GAP)
    assert waiting(FlowClosed(key(0))).ended().verdict is Verdict.DEFERRED
    writing = Move(wanted(mode=Mode.IMMEDIATE), Mechanism.NONE)
    assert writing(FlowClosed(key(0))).moving.phase is Phase.COMMIT
