# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections at their birth, and the filters of ports."""

from __future__ import annotations

from atfnd.engine import event as told
from atfnd.engine.command import FindListeners, TellMoves
from atfnd.model import Accepted, Distance, FlowState, Forked, SocketGone, ThreadReads
from atfnd.model.reason import Code
from atfnd.move.event import Established, EvidenceLost, FlowClosed
from tests.cases.given import PORT, STRICT, policy, thread
from tests.cases.machine import Machine
from tests.values import key


def far(machine: Machine, *numbers: int) -> Machine:
    """The answers of these remotes take long."""
    for number in numbers:
        machine.connects(number, 3)
        machine.answered(number)
        machine.closes(number)
        machine.hears(SocketGone(machine.now_ns, number))
    return machine


def serving(cpu: int = 1, **rule: object) -> Machine:
    machine = Machine(policy({**STRICT, **rule}))
    machine.listens(9, cpu)
    return machine


def test_a_connection_is_placed_before_its_answer() -> None:
    """Row 26."""
    machine = far(Machine(policy(STRICT)), 1)
    assert machine.connects(1, 1) == ["insert 1 to 1"]
    assert "connects on CPU 1" in machine.why(1)
    machine.answered(1)
    assert machine.later(5) == []


def test_a_connect_to_an_unknown_remote_is_left_to_rss() -> None:
    """Row 26. Whether there is time is not known."""
    machine = Machine(policy(STRICT))
    assert machine.connects(1, 1) == []
    assert machine.state(1) is None


def test_a_connect_is_placed_as_far_as_its_user_may_move() -> None:
    """Row 26."""
    machine = far(Machine(policy(STRICT, daemon={"settle": {"moves": 2}})), *range(1, 41))
    begun = [machine.connects(number, 1) for number in range(1, 41)]
    assert sum(map(len, begun)) == 16


def test_a_5_tuple_that_is_used_again_keeps_its_filter() -> None:
    """Row 27. If it leads to the wrong queue, it is moved as any other."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 1)
    machine.later(1)
    assert machine.connects(1, cpu=2, by=2, cookie=101) == []
    assert TellMoves("nic", FlowClosed(key(1))) in machine.commands
    assert machine.later(1) == ["rewrite 1 to 2"]


def test_the_heir_of_a_closed_socket_takes_its_filter_over() -> None:
    """Row 27."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 1)
    machine.later(1)
    machine.answer = None
    assert machine.closes(1) == ["delete 1"]
    machine.tell(told.HeirFound(machine.waiting[0], 101))
    machine.answer = 0
    assert machine.finish() == []
    flow = machine.flow(1)
    assert (machine.queue(1), flow and flow.cookie) == (1, 101)


def test_a_birth_that_was_too_late_is_forgotten() -> None:
    """Row 28. Its first use reports it, as any flow."""
    machine = far(Machine(policy(STRICT)), 1)
    machine.answer = Code.NO_DATA_YET()
    assert machine.connects(1, 1) == ["insert 1 to 1"]
    assert machine.state(1) is None


def test_an_audit_does_not_end_what_no_observer_knows_yet() -> None:
    """Row 28."""
    machine = far(Machine(policy(STRICT)), 1)
    machine.connects(1, 1)
    machine.sockets.clear()
    assert machine.later(100) == []
    assert machine.state(1) is FlowState.STEERED
    machine.hears(SocketGone(machine.now_ns, 1))
    assert machine.begun[-1] == "delete 1"


def test_births_that_were_lost_are_looked_for() -> None:
    """Row 29. Any process may have forked: a port has no filter until somebody reads."""
    machine = Machine(policy(STRICT), armed=False)
    machine.listens(9)
    machine.tell(told.BirthsLost())
    assert FindListeners() in machine.commands
    machine.tell(told.Armed("nic"), *machine.met())
    assert machine.later(3) == []
    machine.hears(ThreadReads(machine.now_ns, key(1), 101, thread(1), 1))
    assert machine.later(3) == ["insert port to 1"]


def test_a_port_has_a_filter_where_one_thread_serves_it() -> None:
    """Row 30. Its connections are born on that thread's queue."""
    machine = serving()
    assert machine.begun == ["insert port to 1"]
    assert machine.state(PORT) is FlowState.STEERED


def test_a_port_with_two_listeners_has_none() -> None:
    """Row 30."""
    machine = Machine(policy(STRICT), armed=False)
    for cookie in (8, 9):
        machine.listens(cookie, by=cookie)
    machine.tell(told.Armed("nic"), *machine.met())
    machine.later(3)
    assert machine.begun == []


def test_a_port_that_a_second_thread_may_serve_has_none() -> None:
    """Row 30. The filter goes when the process forks, while nobody has read a connection."""
    machine = serving()
    assert machine.hears(Forked(machine.now_ns, 1)) == ["delete port"]


def test_a_port_whose_connections_two_threads_read_has_none() -> None:
    """Row 30."""
    machine = serving()
    for tid in (1, 2):
        machine.hears(ThreadReads(machine.now_ns, key(tid), 101, thread(tid), 1))
    assert machine.begun[-1] == "delete port"


def test_a_port_filter_moves_no_live_connection() -> None:
    """Row 31. It comes when they have gone, or have their own."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 3)
    machine.listens(9)
    assert machine.begun == []
    machine.closes(1)
    assert machine.later(3) == ["insert port to 1"]


def test_a_listener_that_may_move_gets_a_queue_of_its_own() -> None:
    """Row 32. Its CPU's queue has an owner. (Few ports on many queues are no case any more.)"""
    machine = Machine(policy(STRICT))
    machine.uses(5, 1, by=5, key=key(5)._replace(local_port=80))
    assert machine.listens(9, cpu=1) == ["insert port to 0"]


def test_connections_settle_before_the_filter_of_their_port() -> None:
    """Row 33."""
    machine = Machine(policy(STRICT))
    machine.answer = None
    assert machine.uses(1, 1) == ["insert 1 to 1"]
    machine.answer = 0
    assert machine.listens(9) == []
    machine.finish()
    assert machine.later(3) == ["insert port to 1"]


def test_the_filter_of_a_port_lingers_when_its_listener_is_gone() -> None:
    """Row 34. A server that restarts listens again."""
    machine = serving()
    machine.hears(SocketGone(machine.now_ns, 9))
    assert machine.later(9) == []
    assert machine.later(4) == ["delete port"]


def test_it_stays_as_long_as_a_connection_comes_by_it() -> None:
    """Row 34."""
    machine = serving()
    machine.uses(1, 1)
    machine.hears(SocketGone(machine.now_ns, 9))
    assert machine.later(100) == []
    machine.closes(1)
    assert machine.later(3) == ["delete port"]


def test_connections_keep_their_queue_when_the_filter_of_their_port_goes() -> None:
    """Row 34. Each gets one of its own first."""
    machine = serving()
    machine.uses(1, 1)
    machine.later(2)
    for tid in (1, 2):
        machine.hears(ThreadReads(machine.now_ns, key(tid), 101, thread(tid), 1))
    assert machine.begun == ["insert port to 1", "insert 1 to 1", "delete port"]


def test_a_port_that_listens_again_revokes_the_delete() -> None:
    """Row 35."""
    machine = serving()
    machine.hears(SocketGone(machine.now_ns, 9))
    machine.answer = None
    assert machine.later(13) == ["delete port"]
    assert machine.listens(10) == ["rewrite port to 1"]
    machine.answer = 0
    machine.finish()
    assert machine.state(PORT) is FlowState.STEERED


def test_a_connection_that_crosses_a_write_is_told_to_the_moves() -> None:
    """Row 36."""
    machine = Machine(policy(STRICT))
    machine.answer = None
    assert machine.listens(9) == ["insert port to 1"]
    machine.hears(Accepted(machine.now_ns, 1, key(1), 103), on=None)
    assert TellMoves("nic", Established(PORT, None)) in machine.commands


def test_a_port_whose_connections_fall_under_several_rules_has_no_filter() -> None:
    """Row 37."""
    rules = {**STRICT, "match": {"remote": "10.1.0.0/24"}}, {"placement": "leave"}
    machine = Machine(policy(*rules))
    machine.listens(9)
    assert machine.later(3) == []


def test_another_policy_takes_the_filter_of_a_port() -> None:
    """Row 37."""
    machine = serving()
    machine.reloads(policy({"placement": "leave"}))
    assert machine.later(3) == ["delete port"]


def test_the_filter_of_a_port_follows_the_thread_that_uses_its_connections() -> None:
    """Row 30. It goes to the queue that this thread owns."""
    machine = serving()
    machine.uses(5, 2, by=5, key=key(5)._replace(local_port=80))
    machine.uses(1, 2, by=5)
    assert machine.later(3) == ["rewrite port to 2"]


def test_the_filter_of_a_port_does_not_follow_a_thread_that_wanders() -> None:
    """Row 30."""
    machine = serving()
    machine.uses(1, 2, by=5, home=Distance.MACHINE, pinned=False)
    assert machine.later(3) == []


def test_a_second_listener_takes_the_filter_of_a_port_away() -> None:
    """Row 30."""
    machine = serving()
    assert machine.listens(10, by=2) == ["delete port"]


def test_a_listener_that_is_pinned_has_the_queue_of_its_cpu() -> None:
    """Row 32. Though another thread owns that."""
    machine = Machine(policy(STRICT))
    machine.uses(5, 1, by=5, key=key(5)._replace(local_port=80))
    assert machine.listens(9, cpu=1, pinned=True) == ["insert port to 1"]


def test_a_connection_that_its_port_leads_right_has_no_filter_and_no_row() -> None:
    """Row 30."""
    machine = serving()
    assert machine.uses(1, 1) == []
    assert (machine.queue(1), machine.state(1)) == (1, None)


def test_lost_births_leave_no_move_proven() -> None:
    """Row 29."""
    machine = serving()
    machine.tell(told.BirthsLost())
    assert TellMoves(None, EvidenceLost()) in machine.commands


def test_a_nic_that_is_not_armed_has_no_filter_at_a_birth() -> None:
    """Rows 26 and 30."""
    machine = far(Machine(policy(STRICT), armed=False), 1)
    assert machine.connects(1, 1) + machine.listens(9) + machine.later(3) == []


def test_a_full_cpu_has_no_filters_of_connects_and_ports() -> None:
    """Row 22."""
    machine = far(Machine(policy(STRICT)), 1)
    for _ in range(3):
        machine.tell(told.LoadRead({0: 0, 1: 100, 2: 0, 3: 0}))
        machine.later(2)
    assert machine.connects(1, 1) == []
    machine.closes(1)
    assert machine.listens(9, cpu=1, pinned=True) == []
    assert machine.connects(2, 2) == []


def test_the_filter_of_a_port_leaves_a_full_cpu_and_moves_no_connection() -> None:
    """Rows 22 and 34."""
    machine = serving()
    machine.uses(1, 1, rx_cpu=3)
    for _ in range(4):
        machine.tell(told.LoadRead({0: 0, 1: 100, 2: 0, 3: 0}))
        machine.later(2)
    assert machine.begun == ["insert port to 1", "insert 1 to 1", "delete port", "delete 1"]
