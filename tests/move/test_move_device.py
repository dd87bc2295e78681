# SPDX-License-Identifier: GPL-2.0-or-later
"""What runs at the same time on one NIC, what waits, and what each end teaches."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from atfnd.model import Action, ActionKind, Actuator, Outcome
from atfnd.model.reason import Code
from atfnd.move.command import (
    Ended,
    Hold,
    Release,
    Reread,
    Unwatch,
    Watch,
    Write,
)
from atfnd.move.device import due_ns
from atfnd.move.event import (
    Disturbed,
    Event,
    EvidenceLost,
    FlowClosed,
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
from atfnd.move.learn import Lesson, adapted_ns
from atfnd.move.timer import Times, pipe_ns, t_timer_ns
from atfnd.move.transition import Phase, Transition
from atfnd.move.verdict import Mode, Verdict
from tests.move.check import PORT
from tests.move.stepped import TIMES, SteppedNic, to
from tests.values import key

PORT_KEY = key(0)._replace(remote=bytes(4), remote_port=0)


@pytest.fixture
def nic() -> SteppedNic:
    return SteppedNic()


def proven(nic: SteppedNic, wanted: Wanted) -> None:
    nic(QueueHeld(1, nic.now_ns))
    nic.written(wanted)
    for _ in range(3):
        nic(Polled(0, nic.now_ns, 0, 64), 50_000)
    nic(Released(1, True))
    nic(Seen(key(0), 1, nic.now_ns))
    nic(TimerDue(), 10_000_000)


def moving(nic: SteppedNic) -> Transition:
    """The only move."""
    [(_, found)] = nic.device.live.items()
    return found


def ended(nic: SteppedNic) -> Ended:
    """The only move that has just ended."""
    [found] = [each for each in nic.commands if isinstance(each, Ended)]
    return found


def held(nic: SteppedNic) -> None:
    """Quiesced, and its write is out."""
    nic(to(0, Mode.STRICT))
    assert nic(QueueHeld(1, nic.now_ns)) == (Write(to(0, Mode.STRICT).action),)


def at_once(nic: SteppedNic) -> None:
    """Written, with no proof asked for."""
    nic(wanted := to(0, Mode.IMMEDIATE))
    nic.written(wanted)


def test_a_hold_is_released_once_and_counts_no_more(nic: SteppedNic) -> None:
    """What we have asked to end may have been held before our order arrives."""
    nic.device = nic.device._replace(port=PORT._replace(actuator=Actuator.LONG_GAP))
    nic(to(0, Mode.STRICT))
    assert set(nic(FlowClosed(key(0)))) == {Release(1), Release(2)}
    assert nic(QueueHeld(1, nic.now_ns)) == nic(QueueHeld(2, nic.now_ns)) == ()
    assert moving(nic).held == frozenset()


@pytest.mark.parametrize("event", [TimerDue(), HoldLost(1, "others have it")], ids=str)
def test_a_queue_that_was_not_quiesced_in_time_is_called_so(nic: SteppedNic, event: Event) -> None:
    """Nothing was to drain yet."""
    nic(to(0, Mode.STRICT))
    nic(event, TIMES.hold_max_ns)
    if isinstance(event, TimerDue):
        nic(Released(1, True))
    assert (ended(nic).verdict, ended(nic).why.code) == (Verdict.DEFERRED, Code.NOT_HELD_IN_TIME)


def test_a_hold_ends_at_its_limit_while_the_write_is_out(nic: SteppedNic) -> None:
    held(nic)
    assert nic(TimerDue(), TIMES.hold_max_ns) == (Release(1),)
    assert moving(nic).broken is not None


def test_a_reset_while_the_write_is_out_waits_for_its_answer(nic: SteppedNic) -> None:
    held(nic)
    assert nic(Reset()) == (Release(1),)
    assert nic(Released(1, True)) == ()
    nic.written(to(0, Mode.STRICT))
    assert nic.verdicts() == [Verdict.RESYNC]


def test_a_refused_rewrite_that_lost_its_rule_proves_nothing(nic: SteppedNic) -> None:
    """Its packets come through RSS's queue, which was not quiesced."""
    held(nic)
    outcome = Outcome(to(0, Mode.STRICT).action, nic.now_ns, errno.EIO, None, "the NIC said no")
    nic(Written(outcome, nic.now_ns, nic.now_ns))
    assert moving(nic).broken is not None
    assert moving(nic).targets == frozenset({2})


def test_what_is_in_rsss_queue_may_take_longest_to_arrive(nic: SteppedNic) -> None:
    slow = (*PORT.rings[:2], PORT.rings[2]._replace(rx_usecs=100))
    nic.device = nic.device._replace(port=PORT._replace(rings=slow, actuator=Actuator.LONG_GAP))
    nic(to(0, Mode.STRICT))
    assert moving(nic).pipe_ns == TIMES.pipe_ns + 100_000


def test_the_first_packet_on_the_new_queue_begins_the_last_wait(nic: SteppedNic) -> None:
    at_once(nic)
    nic(Seen(key(0), 1, nic.now_ns - 1), 10)  # of before the write
    assert not moving(nic).seen
    nic(Seen(key(0), 1, nic.now_ns), 10)
    assert moving(nic).seen
    due_ns = nic.now_ns + nic.device.timer_ns(frozenset({0}))
    assert moving(nic).due_ns == due_ns
    nic(Seen(key(0), 1, nic.now_ns), 10)
    assert moving(nic).due_ns == due_ns


def test_packets_that_still_come_by_the_old_queue(nic: SteppedNic) -> None:
    at_once(nic)
    began_ns, timer_ns = nic.now_ns, nic.device.timer_ns(frozenset({0}))
    nic(Seen(key(0), 0, began_ns + timer_ns), timer_ns)
    assert (moving(nic).elsewhere, moving(nic).stayed_ns) == (False, timer_ns)  # they were in it
    nic(Seen(key(0), 2, began_ns + timer_ns + 1), 1)
    assert (moving(nic).elsewhere, moving(nic).stayed_ns) == (True, timer_ns)
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [Verdict.NO_EFFECT]


def test_what_was_not_promised_is_not_verified_when_telemetry_was_lost(nic: SteppedNic) -> None:
    at_once(nic)
    nic(EvidenceLost())
    nic(Seen(key(0), 1, nic.now_ns))
    nic(TimerDue(), TIMES.verify_ns)
    assert (ended(nic).verdict, ended(nic).why) == (Verdict.UNPROVEN, Code.TELEMETRY_LOST())


def test_a_socket_that_closes_ends_what_was_not_written(nic: SteppedNic) -> None:
    nic(to(0, Mode.STRICT))
    assert nic(FlowClosed(key(0))) == (Release(1),)
    nic(Released(1, True))
    assert nic.verdicts() == [Verdict.DEFERRED]
    nic.device = nic.device._replace(port=PORT._replace(holds_max=0))
    nic(to(0, Mode.BOUNDED))
    nic(FlowClosed(key(0)))
    assert nic.verdicts() == [Verdict.DEFERRED]
    nic(to(0, Mode.IMMEDIATE))
    nic(FlowClosed(key(0)))
    assert moving(nic).phase is Phase.COMMIT


def test_a_move_that_waits_is_decided_again_when_its_port_s_filter_goes(nic: SteppedNic) -> None:
    """It was decided with the queue that this filter gave its flow."""
    gone = Action(ActionKind.DELETE, "nic", PORT_KEY, 9, 2, None, Code.UNSAID(), "", live=False)
    nic(to(0, Mode.STRICT))
    nic(to(1, Mode.STRICT))  # one hold at a time
    nic(Wanted(gone, Mode.STRICT, live=False))
    nic(TimerDue(), TIMES.quiet_ns)
    nic.written(Wanted(gone, Mode.STRICT, live=False))
    ends = [(each.subject, each.verdict) for each in nic.commands if isinstance(each, Ended)]
    assert ends == [(PORT_KEY, Verdict.DONE), (key(1), Verdict.DEFERRED)]


def port_to(new: int) -> Wanted:
    """Another queue for its connections, from queue 2."""
    action = Action(ActionKind.REWRITE, "nic", PORT_KEY, 9, 2, new, Code.UNSAID(), "")
    return Wanted(action, Mode.STRICT, frozenset({2}), frozenset({0, 1, 2}))


def under_port(number: int, mode: Mode, queue: int) -> Wanted:
    """A first filter, decided while that of its port led to this queue."""
    action = Action(ActionKind.INSERT, "nic", key(number), None, queue, 1, Code.UNSAID(), "")
    return Wanted(action, mode, frozenset({queue}), frozenset({queue}))


def test_what_waits_is_decided_again_once_its_port_s_filter_leads_elsewhere(
    nic: SteppedNic,
) -> None:
    """Its packets come by another queue now, long before the port's move has ended."""
    assert not any(isinstance(each, Watch) for each in nic(port_to(0)))  # it is many flows
    nic(under_port(0, Mode.STRICT, 2))
    nic(QueueHeld(0, nic.now_ns))
    nic.written(port_to(0))
    ends = [(each.subject, each.verdict) for each in nic.commands if isinstance(each, Ended)]
    assert ends == [(key(0), Verdict.DEFERRED)]
    nic(under_port(1, Mode.STRICT, 2))  # decided before that write was known
    assert nic.verdicts() == [Verdict.DEFERRED]
    nic(under_port(1, Mode.STRICT, 0))
    assert nic.verdicts() == []


def test_a_wait_for_a_gap_ends_once_its_port_s_filter_leads_elsewhere(nic: SteppedNic) -> None:
    """The gap would be that of the queue that it has left."""
    nic(PortChanged(PORT._replace(asynchronous=True)))
    nic(under_port(0, Mode.BOUNDED, 2))
    immediate = port_to(0)._replace(mode=Mode.IMMEDIATE)
    nic(immediate)
    nic.written(immediate)
    assert nic.verdicts() == [Verdict.DONE, Verdict.DEFERRED]
    assert Unwatch(key(0)) in nic.commands


def test_a_gap_is_looked_at_again_just_before_the_write(nic: SteppedNic) -> None:
    wanted = to(0, Mode.BOUNDED)
    nic(PortChanged(PORT._replace(asynchronous=True)))
    nic(wanted)
    timer_ns = nic.device.timer_ns(frozenset({0}))
    assert nic(Idle(key(0), nic.now_ns - timer_ns + 1)) == ()
    since_ns = nic.now_ns - timer_ns
    assert nic(Idle(key(0), since_ns)) == (Write(wanted.action, since_ns),)
    assert nic.written(wanted, errno.ECANCELED) == ()
    nic(TimerDue(), TIMES.arm_ns)
    assert nic.verdicts() == [Verdict.DEFERRED]


def test_a_wait_for_a_gap_goes_on_when_the_same_is_decided_again(nic: SteppedNic) -> None:
    nic(PortChanged(PORT._replace(asynchronous=True)))
    wanted, every_ns = to(0, Mode.BOUNDED), TIMES.arm_ns // 4
    nic(wanted)
    for number in range(3):
        again = wanted._replace(
            action=replace(wanted.action, why=Code.KERNEL(f"decided again, {number}"))
        )
        assert nic(again, every_ns) == ()
    nic(TimerDue(), every_ns)
    assert (ended(nic).verdict, ended(nic).took_ns) == (Verdict.DEFERRED, TIMES.arm_ns)
    assert ended(nic).action is again.action  # else a filter stays reserved for the last decision


def test_a_violation_makes_the_timer_longer_and_the_flow_rest(nic: SteppedNic) -> None:
    wanted = to(0, Mode.IMMEDIATE)
    before_ns = nic.device.timer_ns(frozenset({0}))
    nic(wanted)
    nic.written(wanted)
    nic(Violated(key(0), 3, nic.now_ns))
    nic(TimerDue(), TIMES.verify_ns)
    assert (ended(nic).verdict, ended(nic).why) == (Verdict.VIOLATED, Code.OVERTOOK(3))
    learned_ns = TIMES.learn_ns - round(TIMES.learn_ns * TIMES.epsilon)
    assert nic.device.timer_ns(frozenset({0})) == before_ns + learned_ns
    assert nic(wanted) == ()
    assert due_ns(nic.device) == nic.now_ns + 2 * TIMES.hold_down_ns
    assert any(isinstance(each, Write) for each in nic(TimerDue(), 2 * TIMES.hold_down_ns))


def test_a_queue_is_not_moved_while_a_flow_leaves_it(nic: SteppedNic) -> None:
    nic(to(0, Mode.STRICT))
    action = Action(ActionKind.QUEUE_CPU, "nic", None, None, 0, 3, Code.UNSAID(), "", queue=0)
    follow = Wanted(action, Mode.STRICT, frozenset({0}))
    assert nic(follow) == ()
    proven(nic, to(0, Mode.STRICT))
    assert Write(action) in nic.commands
    nic.written(follow)
    nic(Seen(0, 0, nic.now_ns))
    nic(TimerDue(), TIMES.follow_ns)
    assert nic.verdicts() == [Verdict.PROVEN]


def test_a_queue_follows_while_a_proven_flow_is_looked_at(nic: SteppedNic) -> None:
    nic.device = nic.device._replace(times=replace(TIMES, late_ns=50_000_000))
    wanted = to(0, Mode.STRICT)
    nic(wanted)
    proven(nic, wanted)
    assert not nic.verdicts()  # what is late by less would still be reported
    action = Action(ActionKind.QUEUE_CPU, "nic", None, None, 0, 3, Code.UNSAID(), "", queue=0)
    assert nic(Wanted(action, Mode.STRICT, frozenset({0}))) == (Write(action),)
    nic(TimerDue(), 50_000_000)
    assert nic.verdicts() == [Verdict.PROVEN]


def test_a_dead_flows_rule_goes_after_what_may_be_in_flight(nic: SteppedNic) -> None:
    action = Action(ActionKind.DELETE, "nic", key(0), 7, 0, None, Code.UNSAID(), "")
    nic(FlowClosed(key(0)))
    assert nic(Wanted(action, Mode.STRICT, live=False)) == ()
    assert nic(TimerDue(), TIMES.quiet_ns) == (Write(action),)
    nic.written(Wanted(action, Mode.STRICT))
    assert nic.verdicts() == [Verdict.DONE]


def test_a_new_socket_of_the_same_addresses_keeps_the_rule(nic: SteppedNic) -> None:
    action = Action(ActionKind.DELETE, "nic", key(0), 7, 0, None, Code.UNSAID(), "")
    nic(Wanted(action, Mode.STRICT, live=False))
    nic(to(0, Mode.IMMEDIATE))
    assert nic.verdicts() == [Verdict.DEFERRED]
    assert Write(to(0, Mode.IMMEDIATE).action) in nic.commands


@pytest.mark.parametrize(
    ("mode", "verdict"), [(Mode.STRICT, Verdict.UNPROVEN), (Mode.BOUNDED, Verdict.VERIFIED)]
)
def test_a_hold_without_proof_is_enough_only_where_seeing_is(
    nic: SteppedNic, mode: Mode, verdict: Verdict
) -> None:
    nic(to(0, mode))
    nic(QueueHeld(1, nic.now_ns))
    nic.written(to(0, mode))
    assert nic(TimerDue(), TIMES.hold_max_ns) == (Release(1),)
    nic(Released(1, True))
    nic(Seen(key(0), 1, nic.now_ns))
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [verdict]


def test_a_burst_is_bounded(nic: SteppedNic) -> None:
    for number in range(20):
        nic(to(number, Mode.IMMEDIATE))
    assert len(nic.device.live) == TIMES.burst
    nic(TimerDue(), TIMES.move_every_ns)
    assert len(nic.device.live) == TIMES.burst + 1


def test_the_timer_has_the_paper_s_term_and_those_it_leaves_out() -> None:
    ring = PORT.rings[0]._replace(size=513, service_pps=1e6, rx_usecs=50)
    port = PORT._replace(programming_ns=3_000)
    drain_ns, moderation_ns, write_back_ns = 512_000, 50_000, 20_000 + 50_000
    plain_ns = drain_ns + moderation_ns + write_back_ns
    assert t_timer_ns(ring, port, Times()) == plain_ns
    late = port._replace(asynchronous=True)
    assert t_timer_ns(ring, late, Times()) == plain_ns + 3_000
    held = ring._replace(gro_flush_timeout_ns=20_000)
    assert t_timer_ns(held, port, Times()) == plain_ns + 20_000
    assert t_timer_ns(ring._replace(service_pps=1.0), port, Times()) == Times().timer_max_ns


TWO_CHANNELS = PortChanged(PORT._replace(rings=PORT.rings[:2]))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(("old", "new"), [(2, 0), (0, 2)], ids=["from", "to"])
def test_a_move_decided_before_a_channel_was_taken_away(
    nic: SteppedNic, mode: Mode, old: int, new: int
) -> None:
    """It is never proven by a ring that is gone; at once, it is tried, for the kernel to refuse."""
    nic(TWO_CHANNELS)
    wanted = to(0, mode, old, new)._replace(rss=frozenset({2}))
    commands = nic(wanted)
    if mode is Mode.IMMEDIATE:
        assert commands == (Write(wanted.action),)
    else:
        assert not any(isinstance(each, Hold | Write) for each in commands)
    if new == 2 and mode is not Mode.IMMEDIATE:
        assert nic.verdicts() == [Verdict.DEFERRED]


def test_a_channel_is_taken_away_under_a_move(nic: SteppedNic) -> None:
    """What it said of how long packets stay is of no ring there is."""
    wanted = to(0, Mode.STRICT, 2, 0)
    nic(wanted)
    nic(QueueHeld(0, nic.now_ns))
    nic.written(wanted)
    nic(TWO_CHANNELS)
    nic(Violated(key(0), 1, nic.now_ns))
    nic(Released(0, True))
    nic(Reset(), 10_000_000)
    nic(TimerDue(), 10_000_000_000)
    assert (dict(nic.device.live), dict(nic.device.timers_ns)) == ({}, {})


# Another program deletes or changes the filter in the middle of a move: it is not ours that packets
# are late by, and it teaches nothing.


def disturbed(nic: SteppedNic) -> Ended:
    """How the move ended, which taught nothing."""
    found = ended(nic)
    assert (found.verdict, found.violations) == (Verdict.RESYNC, 0)
    records = dict(nic.device.records).values()
    assert not nic.device.timers_ns
    assert not any(record.strikes for record in records)
    assert dict(nic.device.live) == {}
    return found


@pytest.mark.parametrize("mode", [Mode.IMMEDIATE, Mode.STRICT])
def test_another_program_changes_a_filter_after_its_write(nic: SteppedNic, mode: Mode) -> None:
    wanted = to(0, mode)
    nic(wanted)
    if mode is Mode.STRICT:
        nic(QueueHeld(1, nic.now_ns))
    nic.written(wanted)
    if mode is Mode.STRICT:
        for _ in range(3):
            nic(Polled(0, nic.now_ns, 0, 64), 50_000)
        nic(Released(1, True))
    nic(Seen(key(0), 1, nic.now_ns))
    assert nic(Violated(key(0), 3, nic.now_ns + 1_000)) == (Reread(key(0), 7, 1),)
    nic(Disturbed(key(0)))
    disturbed(nic)


def test_packets_that_come_as_before_do_not_say_that_a_filter_has_no_effect(
    nic: SteppedNic,
) -> None:
    wanted = to(0, Mode.IMMEDIATE)
    nic(wanted)
    nic.written(wanted)
    late_ns = nic.device.timer_ns(frozenset({0})) + 1
    assert nic(Seen(key(0), 0, nic.now_ns + late_ns), late_ns) == (Reread(key(0), 7, 1),)
    assert nic(Seen(key(0), 0, nic.now_ns + 1), 1) == ()  # asked once
    nic(Disturbed(key(0)))
    disturbed(nic)


@pytest.mark.parametrize("mode", [Mode.IMMEDIATE, Mode.STRICT])
def test_another_program_changes_a_filter_before_its_write(nic: SteppedNic, mode: Mode) -> None:
    """The rewrite finds nothing: RSS delivers, and what is late is late by that."""
    wanted = to(0, mode)
    nic(wanted)
    if mode is Mode.STRICT:
        nic(QueueHeld(1, nic.now_ns))
    left = "another program deleted its filter, or replaced it: delivered by RSS"
    outcome = Outcome(wanted.action, nic.now_ns, errno.ENOENT, None, left)
    nic(Written(outcome, nic.now_ns, nic.now_ns))
    if mode is Mode.STRICT:
        assert nic.commands == (Release(1),)
        nic(Released(1, True))
    assert str(disturbed(nic).why) == left


def test_another_program_changes_a_filter_that_waits_for_a_gap(nic: SteppedNic) -> None:
    """It is not written any more: what was decided was decided on something else."""
    nic.device = nic.device._replace(port=PORT._replace(holds_max=0))
    nic(to(0, Mode.BOUNDED))
    nic(Violated(key(0), 2, nic.now_ns + 5_000), 5_000)
    disturbed(nic)
    assert not any(isinstance(each, Write) for each in nic.commands)


# What stands in another move's way.


def of_queue(queue: int, mode: Mode = Mode.IMMEDIATE) -> Wanted:
    """This queue to CPU 9."""
    action = Action(ActionKind.QUEUE_CPU, "nic", None, None, 0, 9, Code.UNSAID(), "", queue)
    return Wanted(action, mode, frozenset({queue}), frozenset({queue}))


def delete(number: int) -> Wanted:
    """The rule of a flow whose socket is gone."""
    action = Action(
        ActionKind.DELETE, "nic", key(number), number, 1, None, Code.UNSAID(), "", live=False
    )
    return Wanted(action, Mode.STRICT, frozenset({1}), frozenset({2}), live=False)


def written(nic: SteppedNic) -> list[object]:
    """Of what was just asked for: the subjects of writes."""
    writes = [each.action for each in nic.commands if isinstance(each, Write)]
    return [each.queue if each.key is None else each.key for each in writes]


def test_a_flow_waits_while_a_queue_that_it_leaves_or_comes_to_changes_its_cpu() -> None:
    """Where it comes from is not known: while any does."""
    from_0 = frozenset({0})
    for queue, origins, waits in ((0, from_0, True), (1, from_0, True), (2, from_0, False),
                                  (2, None, True)):  # fmt: skip
        nic = SteppedNic()
        nic(of_queue(queue))
        assert written(nic) == [queue]
        nic(to(1, Mode.IMMEDIATE)._replace(origins=origins))
        assert written(nic) == ([] if waits else [key(1)])


def test_a_queue_waits_for_a_flow_that_comes_through_it_while_its_rule_is_added_again() -> None:
    for actuator, waits in ((Actuator.LONG_GAP, True), (Actuator.IN_PLACE, False)):
        nic = SteppedNic()
        nic.device = nic.device._replace(port=PORT._replace(actuator=actuator))
        nic(to(1, Mode.IMMEDIATE))  # from queue 0 to 1; RSS gives it queue 2
        assert written(nic) == [key(1)]
        nic(of_queue(2))
        assert written(nic) == ([] if waits else [2])


def test_a_dead_flows_waiting_move_is_forgotten_but_not_the_delete_of_its_rule() -> None:
    for waiting, stays in ((to(1, Mode.IMMEDIATE, new=2), False), (delete(1), True)):
        nic = SteppedNic()
        nic(to(1, Mode.IMMEDIATE))
        nic(waiting)
        assert nic.device.waiting.get(key(1)) == waiting
        nic(FlowClosed(key(1)))
        assert (nic.device.waiting.get(key(1)) == waiting) is stays


def test_a_refused_write_leaves_what_waits_as_it_was_decided() -> None:
    for code, verdicts in ((22, [Verdict.REFUSED]), (0, [])):
        nic, first = SteppedNic(), to(1, Mode.IMMEDIATE)
        nic(first)
        nic(to(1, Mode.IMMEDIATE, new=2))
        nic.written(first, code)
        assert nic.verdicts() == verdicts
        writes = [each.action for each in nic.commands if isinstance(each, Write)]
        assert [each.new for each in writes] == [2] * (code != 0)


# What the end of a move teaches of T_A.


def test_the_timer_settles_where_epsilon_of_the_moves_reorder() -> None:
    times = replace(Times(), epsilon=0.01)
    timer_ns, floor_ns = 10_000_000, pipe_ns(PORT.rings[0], times)
    for move in range(1000):
        timer_ns = adapted_ns(timer_ns, Lesson(move % 100 == 0, False), floor_ns, times)
    assert timer_ns == pytest.approx(10_000_000, abs=times.learn_ns)
    assert adapted_ns(timer_ns, Lesson(False, True), floor_ns, times) == timer_ns
    assert adapted_ns(floor_ns, Lesson(False, False), floor_ns, times) == floor_ns


def test_a_timer_becomes_as_long_as_a_packet_was_seen_to_stay(nic: SteppedNic) -> None:
    """One gap that was none is enough to know better: it was idle for 1 ms, the packet that was
    overtaken came 4 ms later."""
    queue, wanted = frozenset({0}), to(0, Mode.BOUNDED)
    nic.device = nic.device._replace(port=PORT._replace(holds_max=0))
    nic(wanted)
    idle_ns = max(nic.device.timer_ns(queue), 1_000_000)
    nic(Idle(key(0), nic.now_ns - idle_ns))
    nic.written(wanted)
    nic(Seen(key(0), 1, nic.now_ns))
    nic(Violated(key(0), 1, nic.now_ns + 4_000_000), 4_000_000)
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [Verdict.VIOLATED]
    assert nic.device.timer_ns(queue) == idle_ns + 4_000_000
