# SPDX-License-Identifier: GPL-2.0-or-later
"""What stands in another move's way on one NIC."""

from __future__ import annotations

from atfnd.model import Action, ActionKind, Actuator
from atfnd.model.reason import Code
from atfnd.move.command import Write
from atfnd.move.device import due_ns
from atfnd.move.event import FlowClosed, TimerDue, Wanted
from atfnd.move.verdict import Mode, Verdict
from tests.move.check import PORT
from tests.move.stepped import TIMES, SteppedNic, to
from tests.values import key

__all__: list[str] = []


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


def action_of(command: object) -> Action | None:
    return command.action if isinstance(command, Write) else None


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


def test_a_refused_write_leaves_what_waits_as_it_was_decided() -> None:
    for code, verdicts in ((22, [Verdict.REFUSED]), (0, [])):
        nic, first = SteppedNic(), to(1, Mode.IMMEDIATE)
        nic(first)
        nic(to(1, Mode.IMMEDIATE, new=2))
        nic.written(first, code)
        assert nic.verdicts() == verdicts
        assert [each.new for each in map(action_of, nic.commands) if each] == [2] * (code != 0)
