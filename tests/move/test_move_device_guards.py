# SPDX-License-Identifier: GPL-2.0-or-later
"""What stands in another move's way on one NIC, and what is kept, each case by itself."""

from __future__ import annotations

from dataclasses import replace

from atfnd.model import Action, ActionKind, Actuator
from atfnd.move.command import Ended, Write
from atfnd.move.device import Record, due_ns, only_known
from atfnd.move.event import FlowClosed, PortChanged, QueueHeld, TimerDue, Wanted
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.verdict import Mode, Verdict
from tests.move.check import PORT
from tests.move.stepped import TIMES, SteppedNic, to
from tests.values import key

__all__: list[str] = []


def of_queue(queue: int, mode: Mode = Mode.IMMEDIATE) -> Wanted:
    """This queue to CPU 9."""
    action = Action(ActionKind.QUEUE_CPU, "nic", None, None, 0, 9, "", "", queue)
    return Wanted(action, mode, frozenset({queue}), frozenset({queue}))


def delete(number: int) -> Wanted:
    """The rule of a flow whose socket is gone."""
    action = Action(ActionKind.DELETE, "nic", key(number), number, 1, None, "", "", live=False)
    return Wanted(action, Mode.STRICT, frozenset({1}), frozenset({2}), live=False)


def written(nic: SteppedNic) -> list[object]:
    """Of what was just asked for: the subjects of writes."""
    writes = [each.action for each in nic.commands if isinstance(each, Write)]
    return [each.queue if each.key is None else each.key for each in writes]


def test_a_flow_waits_while_a_queue_that_it_leaves_or_comes_to_changes_its_cpu() -> None:
    for queue, waits in ((0, True), (1, True), (2, False)):
        nic, moved = SteppedNic(), of_queue(queue)
        nic(moved)
        assert written(nic) == [queue]
        nic(to(1, Mode.IMMEDIATE))
        assert written(nic) == ([] if waits else [key(1)])


def test_a_flow_whose_queue_is_not_known_waits_for_any_queue() -> None:
    nic = SteppedNic()
    nic(of_queue(2))
    nic(to(1, Mode.IMMEDIATE)._replace(origins=None))
    assert written(nic) == []


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


def test_a_delete_that_is_wanted_once_more_rests_no_longer() -> None:
    nic = SteppedNic()
    nic(delete(1))
    due = due_ns(nic.device)
    assert due == nic.now_ns + TIMES.quiet_ns
    assert nic(delete(1), TIMES.quiet_ns // 2) == ()
    assert (due_ns(nic.device), len(nic.device.waiting)) == (due, 0)
    nic(TimerDue(), TIMES.quiet_ns // 2)
    assert written(nic) == [key(1)]


def test_what_was_learned_of_a_queue_goes_with_it() -> None:
    nic = SteppedNic()
    nic.device = nic.device._replace(timers_ns=FrozenMap({0: 5, 2: 7}))
    nic(PortChanged(PORT._replace(rings=PORT.rings[:2])))
    assert dict(nic.device.timers_ns.items()) == {0: 5}


def test_what_was_put_off_teaches_nothing() -> None:
    nic = SteppedNic()
    nic.device = nic.device._replace(port=PORT._replace(asynchronous=True))
    nic(to(1, Mode.BOUNDED))  # it waits for a gap
    nic(TimerDue(), TIMES.arm_ns)
    assert nic.verdicts() == [Verdict.DEFERRED]
    assert (len(nic.device.records), len(nic.device.timers_ns)) == (0, 0)


def test_a_refused_write_leaves_what_waits_as_it_was_decided() -> None:
    for code, verdicts in ((22, [Verdict.REFUSED]), (0, [])):
        nic, first = SteppedNic(), to(1, Mode.IMMEDIATE)
        nic(first)
        nic(to(1, Mode.IMMEDIATE, new=2))
        nic.written(first, code)
        assert nic.verdicts() == verdicts
        assert [each.new for each in map(action_of, nic.commands) if each] == [2] * (code != 0)


def action_of(command: object) -> Action | None:
    return command.action if isinstance(command, Write) else None


def test_each_move_is_paid_for_but_no_dead_flows_delete() -> None:
    nic = SteppedNic()
    nic(delete(9))
    assert nic.device.arrival_ns == 0
    nic(to(1, Mode.IMMEDIATE))
    assert nic.device.arrival_ns == nic.now_ns + TIMES.move_every_ns
    for number in range(2, TIMES.burst + 1):
        nic(to(number, Mode.IMMEDIATE))
        assert written(nic) == [key(number)]
    nic(to(50, Mode.IMMEDIATE))
    assert written(nic) == []
    nic(delete(60), 0)
    assert not any(isinstance(each, Ended) for each in nic.commands)


def test_one_hold_at_a_time_whichever_queues_it_is_of() -> None:
    nic = SteppedNic()
    nic(to(1, Mode.STRICT))
    assert nic(to(2, Mode.STRICT, old=2, new=0)) == ()
    nic(QueueHeld(1, nic.now_ns))
    assert written(nic) == [key(1)]


def test_a_setting_waits_for_every_move_and_every_move_for_the_setting() -> None:
    setting = Action.of_setting("nic", "rps-cpus:0", None)
    turn, nic = Wanted(replace(setting, value="0"), Mode.IMMEDIATE), SteppedNic()
    first = to(1, Mode.IMMEDIATE)
    nic(first)
    assert nic(turn) == ()
    assert nic(to(2, Mode.IMMEDIATE, old=2)) == ()
    nic.written(first)
    nic(TimerDue(), TIMES.verify_ns)
    assert [each.action.setting for each in nic.commands if isinstance(each, Write)] == [
        "rps-cpus:0"
    ]
    nic.written(turn)
    assert written(nic) == [key(2)]


def test_what_moves_taught_of_a_flow_ends_with_its_entry_and_its_last_move() -> None:
    nic = SteppedNic()
    nic(to(1, Mode.IMMEDIATE))  # its move is under way
    rests = Record(nic.now_ns)
    nic.device = nic.device._replace(
        records=FrozenMap({key(0): rests, key(1): rests, key(2): rests, 3: rests})
    )
    kept = only_known(nic.device, {key(2)}).records
    assert [*kept] == [key(1), key(2), 3]  # and that of a queue
