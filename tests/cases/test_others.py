# SPDX-License-Identifier: GPL-2.0-or-later
"""What other programs, a reset of the NIC and an earlier run have done."""

from __future__ import annotations

import errno

from atfnd.engine import event as told
from atfnd.engine.command import Begin, ReleaseClaim
from atfnd.model import Filter, FlowState, Match, Outcome, Protocol
from tests.cases.given import STRICT, nic, policy
from tests.cases.machine import Machine
from tests.values import key


def steering(*numbers: int) -> Machine:
    machine = Machine()
    for number in numbers:
        machine.uses(number, 1)
    machine.later(1)
    return machine


def test_filters_that_a_reset_took_are_written_again() -> None:
    """Row 50. All of them at once, or some just after the NIC said that it changed."""
    machine = steering(1, 2)
    machine.nics["nic"].filters.clear()
    assert machine.lists() == ["insert 1 to 1", "insert 2 to 1"]
    machine.later(1)
    machine.nics["nic"].filters.popitem()
    assert machine.lists(disturbed=True) == ["insert 2 to 1"]


def test_a_filter_that_another_program_deleted_is_left_alone_until_resume() -> None:
    """Row 50, and 59."""
    machine = steering(1, 2)
    machine.nics["nic"].filters.popitem()
    assert machine.lists() == []
    assert machine.state(2) is FlowState.MANUAL
    assert machine.why(2) == "another program removed its filter at location 102"
    assert ReleaseClaim("nic", Match.of(key(2))) in machine.commands
    assert machine.uses(2, 2) + machine.later(5) == ["rewrite 1 to 2"]
    assert machine.resumes() == ["insert 2 to 2"]


def test_a_filter_that_another_program_pointed_elsewhere_is_left_alone() -> None:
    """Row 59."""
    machine = steering(1)
    held = machine.nics["nic"].filters
    held |= {at: (flow, 0) for at, (flow, _) in held.items()}
    machine.lists()
    assert machine.why(1) == "another program pointed its filter to queue 0"
    assert machine.state(1) is FlowState.MANUAL


def test_a_flow_that_another_program_has_a_filter_for_gets_none() -> None:
    """Row 59. When that is gone, it does."""
    machine = Machine()
    machine.tell(told.ForeignFound("nic", (Filter(1, Match.of(key(1)), 0),)))
    assert machine.uses(1, 1) == []
    assert machine.why(1) == "another program has a filter for it"
    assert machine.tell(told.ForeignFound("nic", ())) == ["insert 1 to 1"]


def test_a_setting_that_changed_while_a_write_waited_is_not_written() -> None:
    """Row 59."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 1)
    machine.later(1)
    machine.answer = None
    assert machine.uses(1, 2) == ["queue 1 to CPU 2"]
    machine.tell(told.SettingsLeftAlone("nic", frozenset({"queue-cpu:1"})))
    machine.answer = 0
    machine.finish()
    assert machine.cpu(1) == 1


def test_a_filter_without_effect_is_written_anew_and_then_left_alone() -> None:
    """Row 51. Three times, each after two looks."""
    machine = steering(1)
    machine.nics["nic"].deaf = True
    assert machine.later(40) == ["rewrite 1 to 1"] * 3
    assert machine.state(1) is FlowState.MANUAL
    assert machine.why(1) == "its filter is in the NIC, but the NIC delivers on queue 3"


def test_filters_of_an_earlier_run_are_taken_over_or_deleted() -> None:
    """Row 52. That of a living socket stays, until its thread is seen elsewhere."""
    machine = Machine()
    machine.uses(1, 3)
    assert machine.finds((1, 1), (2, 1)) == ["delete 2"]
    assert machine.why(1).startswith("adopted from an earlier run")
    assert machine.uses(1, 2) == ["rewrite 1 to 2"]


def test_an_orphan_stays_until_its_nic_is_armed() -> None:
    """Row 52."""
    machine = Machine(armed=False)
    assert machine.finds((2, 1)) == []
    assert machine.nics["nic"].filters


def test_a_filter_that_was_written_after_its_flow_was_given_up_goes() -> None:
    """Row 52."""
    machine = Machine()
    machine.answer = None
    machine.uses(1, 1)
    [insert] = machine.waiting
    machine.closes(1)
    machine.answer, machine.waiting = 0, []
    machine.tell(told.MovesReported([Outcome(insert, machine.now_ns, 0, 7, "done")]))
    machine.nics["nic"].filters[7] = key(1), 1
    assert machine.tell(told.RemainsDue(frozenset())) == ["delete 1"]
    assert machine.tell(told.RemainsDue(frozenset())) == []


def test_an_insert_that_finds_our_filter_takes_it() -> None:
    """Row 53. It is moved if it leads elsewhere."""
    machine = Machine()
    machine.answer = None
    machine.uses(1, 1)
    [insert] = machine.waiting
    machine.nics["nic"].filters[7] = key(1), 2
    machine.answer, machine.waiting = 0, []
    found = Outcome(insert, machine.now_ns, errno.EEXIST, 7, "there already", queue=2)
    machine.tell(told.MovesReported([found]))
    assert machine.state(1) is FlowState.STEERED
    assert machine.later(1) == ["rewrite 1 to 1"]


def test_a_refused_rewrite_that_lost_the_filter_is_followed_by_an_insert() -> None:
    """Row 53."""
    machine = steering(1)
    machine.answer = None
    machine.uses(1, 2)
    [rewrite] = machine.waiting
    machine.nics["nic"].filters.clear()
    machine.answer, machine.waiting = 0, []
    machine.tell(told.MovesReported([Outcome(rewrite, machine.now_ns, errno.EIO, None, "lost")]))
    assert machine.state(1) is FlowState.WANTED
    assert machine.later(1) == ["insert 1 to 2"]


def test_what_has_no_reason_any_more_is_not_written() -> None:
    """Row 53. The socket was closed, or its filter deleted, while the write waited."""
    machine = steering(1)
    machine.answer = None
    machine.uses(1, 2)
    machine.uses(2, 1, by=2)
    for number in (1, 2):
        machine.closes(number)
    machine.answer = 0
    machine.finish()
    assert machine.nics["nic"].filters == {}
    assert machine.state(1) is machine.state(2) is None


def test_what_happens_to_one_nic_changes_nothing_of_another() -> None:
    """Rows 50 and 59. Both have the same locations and queues."""
    machine = Machine(policy(), nic(), nic("two"))
    for number, on in ((1, "nic"), (2, "two"), (3, "two")):
        machine.uses(number, 1, number, on)
    machine.later(1)
    machine.nics["two"].filters.clear()
    assert machine.lists("nic") == []
    assert machine.lists("two") == ["insert 2 to 1 on two", "insert 3 to 1 on two"]
    machine.later(1)
    machine.nics["two"].filters.popitem()
    machine.lists("two")
    assert machine.state(1) is FlowState.STEERED
    assert sorted(machine.pauses("two")) == ["delete 2 on two"]
    assert machine.state(1) is FlowState.STEERED


def test_one_filter_alone_that_is_gone_was_taken_by_somebody() -> None:
    """Row 50."""
    machine = steering(1)
    machine.nics["nic"].filters.clear()
    assert machine.lists() == []
    assert machine.state(1) is FlowState.MANUAL


def test_both_flows_of_a_dual_stack_socket_end_with_it() -> None:
    """Row 52."""
    machine = steering(1)
    machine.uses(2, 1, cookie=1)
    assert machine.closes(1) == ["delete 1", "delete 2"]


def test_the_first_socket_of_a_udp_port_keeps_its_filter() -> None:
    """Row 21."""
    machine = Machine()
    udp = key(1)._replace(protocol=Protocol.UDP, remote=bytes(4), remote_port=0)
    assert machine.uses(1, 1, key=udp) == ["insert 0 to 1"]
    machine.later(1)
    assert machine.uses(2, 2, by=2, key=udp) + machine.later(1) == []


def test_a_filter_is_not_judged_without_traffic_or_just_after_a_move() -> None:
    """Row 51."""
    machine = steering(1)
    machine.nics["nic"].deaf = True
    machine.sockets[1].rate = 0
    assert machine.later(20) == []
    machine.sockets[1].rate = 100_000
    machine.later(2)
    machine.uses(1, 2)
    assert machine.later(2) == []
    assert machine.later(4) == ["rewrite 1 to 2"]


def test_one_look_at_which_it_comes_right_ends_the_doubt() -> None:
    """Row 51."""
    machine = steering(1)
    for deaf in (True, False, True):
        machine.nics["nic"].deaf = deaf
        machine.later(2)
    assert machine.begun == ["insert 1 to 1"]


def test_on_a_nic_that_is_not_armed_nothing_is_written_anew() -> None:
    """Row 51."""
    machine = steering(1)
    machine.nics["nic"].deaf = True
    machine.tell(told.Disarmed("nic"))
    assert machine.later(20) == []
    assert machine.state(1) is FlowState.STEERED


def strayed(code: int = 0) -> Machine:
    """The filter of flow 1, at location 7, was written after its socket had been closed; `code` is
    then the answer to each write."""
    machine = Machine()
    machine.answer = None
    machine.uses(1, 1)
    [insert] = machine.waiting
    machine.closes(1)
    machine.answer, machine.waiting = code, []
    machine.nics["nic"].filters[7] = key(1), 1
    machine.tell(told.MovesReported([Outcome(insert, machine.now_ns, 0, 7, "done")]))
    return machine


def test_the_delete_of_a_stray_waits_for_a_move_of_its_flow() -> None:
    """Row 52."""
    machine = strayed()
    assert machine.tell(told.StraysLooked({}, frozenset({key(1)}))) == []
    assert machine.tell(told.StraysLooked({}, frozenset())) == ["delete 1"]


def test_a_stray_is_deleted_until_it_is_gone() -> None:
    """Row 52."""
    machine = strayed(errno.EBUSY)
    for code, again in ((errno.EBUSY, 1), (errno.ENOENT, 1), (0, 0)):
        machine.answer = code
        assert len(machine.tell(told.RemainsDue(frozenset()))) == again


def test_only_the_stray_of_a_living_flow_keeps_an_order() -> None:
    """Row 52. A dead one has no packets whose order a hold could keep."""
    for lives in (True, False):
        machine = strayed()
        machine.tell(told.StraysLooked({("nic", key(1)): lives}, frozenset()))
        [begin] = [each for each in machine.commands if isinstance(each, Begin)][-1:]
        assert [each.action.live for each in begin.wanted] == [lives]


def test_the_filter_of_a_flow_that_has_come_back_is_no_stray() -> None:
    """Row 52. Its insert finds it there."""
    machine = strayed(errno.EEXIST)
    machine.answer = None
    machine.uses(1, 1, rx_cpu=3)
    [insert] = machine.waiting
    found = Outcome(insert, machine.now_ns, errno.EEXIST, 7, "there already", queue=1)
    machine.tell(told.MovesReported([found]), told.RemainsDue(frozenset()))
    assert machine.begun[-1] == "insert 1 to 1"
