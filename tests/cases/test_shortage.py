# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters, entries of the table, moves and CPU time that do not suffice for all."""

from __future__ import annotations

from atfnd.engine import event as told
from atfnd.engine.command import Forget
from atfnd.model import Filter, FlowState, Match, Thread
from atfnd.model.reason import Code
from tests.cases.given import STRICT, nic, policy, thread
from tests.cases.machine import Machine
from tests.values import key

FEW = nic(slots=4)
ONE, OTHER = thread(1, uid=1), thread(2, uid=2)


def steered(machine: Machine, *numbers: int) -> list[int]:
    return [number for number in numbers if machine.state(number) is FlowState.STEERED]


def busy(machine: Machine, *numbers: int, by: Thread | int = 1, rate: int = 100_000) -> Machine:
    for number in numbers:
        machine.uses(number, 1, by=by, rate=rate)
        machine.later(0.01)
    return machine


def served(machine: Machine) -> Machine:
    """Six connections with a filter each, and then a listener whose filter would do for all."""
    machine = busy(machine, 1, 2, 3, 4, 5, 6)
    assert machine.listens(9) == ["insert port to 1"]
    return machine


def test_filters_that_the_one_of_their_port_makes_needless_go_where_few_are_left() -> None:
    """Row 39. Their flows stay on their queue, and later ones need none."""
    machine = served(Machine(policy(STRICT), nic(slots=8)))
    assert machine.later(10) == [f"delete {number}" for number in range(1, 7)]
    assert {machine.state(number) for number in range(1, 7)} == {FlowState.PORT}
    assert [machine.queue(number) for number in range(1, 7)] == [1] * 6
    assert machine.uses(7, 1) + machine.later(10) == []


def test_needless_filters_stay_while_there_is_room() -> None:
    """Row 39."""
    machine = served(Machine(policy(STRICT), nic(slots=20)))
    assert machine.later(20) == []


def test_where_filters_are_used_up_the_others_wait_and_say_so() -> None:
    """Row 40."""
    machine = busy(Machine(policy(), FEW), 1, 2, 3, 4, 5)
    assert steered(machine, 1, 2, 3, 4, 5) == [1, 2, 3, 4]
    assert machine.state(5) is FlowState.OVERFLOW
    assert machine.why(5) == "our 4 filters of this NIC are in use: delivered by RSS"
    assert machine.closes(1) == ["delete 1"]
    assert machine.later(3) == ["insert 5 to 1"]


def test_filters_of_others_and_the_reserve_and_the_most_bound_ours() -> None:
    """Row 40."""
    machine = Machine(policy(), FEW)
    theirs = tuple(Filter(at, Match.of(key(100 + at)), 0) for at in range(2))
    machine.tell(told.ForeignFound("nic", theirs))
    busy(machine, 1, 2, 3)
    assert steered(machine, 1, 2, 3) == [1, 2]
    assert machine.why(3).startswith("the NIC's filter table is full, 2 are others'")
    for filters, ours in (({"max": 1}, [1]), ({"reserve": 2}, [1, 2])):
        rules = policy(interfaces=[{"match": {"name": "*"}, "filters": filters}])
        assert steered(busy(Machine(rules, FEW), 1, 2, 3), 1, 2, 3) == ours


def test_a_user_with_none_takes_a_filter_of_one_that_has_two() -> None:
    """Row 41."""
    machine = busy(Machine(policy(), FEW), 1, 2, 3, 4, by=ONE)
    machine.later(6)
    assert machine.uses(9, 1, by=OTHER) == ["delete 1"]
    assert machine.later(6) == ["insert 9 to 1"]
    assert machine.uses(10, 1, by=OTHER) == ["delete 2"]
    machine.later(6)
    assert machine.uses(11, 1, by=OTHER) == []
    assert "none has two more" in machine.why(11)


def test_a_user_may_have_a_percentage_at_most() -> None:
    """Row 42."""
    shares = {"shares": {"user": {"filters": 50}}}
    machine = busy(Machine(policy(daemon=shares), FEW), 1, 2, 3, by=ONE)
    assert steered(machine, 1, 2, 3) == [1, 2]
    assert machine.why(3) == "its user has its share of the filters, 50 %: delivered by RSS"


def test_a_rule_may_have_so_many_filters() -> None:
    """Row 42. What another policy leaves it with more is deleted."""
    machine = busy(Machine(policy({"filters": {"max": 2}})), 1, 2, 3)
    assert steered(machine, 1, 2, 3) == [1, 2]
    assert machine.why(3) == "its rule has its share of the filters, 2: delivered by RSS"
    assert machine.reloads(policy({"filters": {"max": 1}})) == []
    assert machine.later(4) == ["delete 2"]


def test_a_flow_that_carries_twice_as_much_takes_a_filter() -> None:
    """Row 43."""
    machine = busy(Machine(policy(), FEW), 1, 2, 3, 4)
    busy(machine, 5, rate=190_000)
    assert machine.later(20) == []
    machine.sockets[5].rate = 1_000_000
    assert machine.later(20) == ["delete 1", "insert 5 to 1"]
    assert machine.state(1) is FlowState.OVERFLOW


def test_a_flow_of_little_worth_takes_none() -> None:
    """Row 43. A swap is two moves."""
    machine = busy(Machine(policy(), FEW), 1, 2, 3, 4, rate=1)
    busy(machine, 5, rate=4_000)
    assert machine.later(20) == []


def test_a_slot_that_was_cleared_is_kept_for_the_flow_it_was_cleared_for() -> None:
    """Row 44."""
    machine = busy(Machine(policy(), FEW), 1, 2, 3, 4, by=ONE)
    machine.later(6)
    machine.answer = None
    assert machine.uses(9, 1, by=OTHER) == ["delete 1"]
    assert "it waits for a filter of a user" in machine.why(9)
    machine.answer = 0
    machine.finish()
    assert machine.uses(10, 1, by=ONE) == []
    assert machine.later(0.1) == ["insert 9 to 1"]


def test_a_nic_that_says_it_is_full_is_asked_again_ever_later() -> None:
    """Row 45. It did not say how many it takes."""
    machine = Machine(policy(), nic(slots=None))
    machine.nics["nic"].slots = 2
    busy(machine, 1, 2, 3, 4)
    assert machine.begun == ["insert 1 to 1", "insert 2 to 1", "insert 3 to 1"]
    assert machine.why(4) == "the NIC's filter table is full: delivered by RSS"
    assert [len(machine.later(seconds)) for seconds in (9, 4, 17, 8)] == [0, 1, 0, 1]


def test_a_filter_that_cannot_go_is_asked_for_less_and_less() -> None:
    """Row 46. Nor does a flow take one that could not be moved."""
    machine = busy(Machine(policy(STRICT), FEW), 1, rate=1_000)
    busy(machine, 2, 3, 4, 5, rate=1_000_000)
    machine.answer = Code.QUEUE_GONE(3)
    assert [machine.later(10).count("delete 1") for _ in range(8)] == [3, 1, 1, 1, 0, 0, 1, 0]
    assert machine.why(1).endswith("not moved yet: queue 3 is gone")


def test_a_full_table_turns_flows_away_and_shows_them() -> None:
    """Row 47."""
    machine = busy(Machine(policy(daemon={"table": {"max": 2}})), 1, 2, 3)
    assert machine.state(3) is FlowState.OVERFLOW
    assert machine.why(3) == "the Flow-to-Core table is full"
    machine.closes(1)
    machine.later(3)
    assert Forget(frozenset({3})) in machine.commands  # then it is reported again
    assert machine.uses(3, 1) == ["insert 3 to 1"]


def test_an_entry_that_is_not_used_ends() -> None:
    """Row 48. One that is left to another program stays."""
    machine = busy(Machine(policy({"t_delete": "10s"})), 1, 2, rate=0)
    machine.nics["nic"].filters.popitem()
    machine.lists()
    assert machine.later(9) == []
    assert machine.later(6) == ["delete 1"]
    assert [machine.state(number) for number in (1, 2)] == [None, FlowState.MANUAL]


def test_what_a_nic_drops_later_is_tried_again_and_then_left() -> None:
    """Row 49."""
    machine = Machine(policy({"order": "bounded"}), nic(asynchronous=True))
    machine.uses(1, 1)
    for _ in range(200):
        machine.later(2)
        machine.nics["nic"].filters.clear()
        machine.lists()
    assert machine.begun == ["insert 1 to 1"] * 7
    assert machine.why(1) == "the NIC accepted its filter and dropped it 7 times: left to RSS"


def test_moves_of_one_user_have_their_share() -> None:
    """Row 54."""
    machine = Machine(policy(daemon={"settle": {"moves": 10}}))
    for number in range(40):
        machine.uses(number, 1, by=ONE)
    assert len(machine.begun) == 16
    assert machine.why(39).startswith("it waits for its turn")
    assert machine.uses(40, 1, by=OTHER) == ["insert 40 to 1"]
    assert machine.later(1) == [f"insert {number} to 1" for number in range(16, 20)]


def test_moves_wait_for_the_daemons_own_cpu_time() -> None:
    """Row 55. Those that are worth most come first."""
    machine = Machine()
    for second in range(20):
        machine.tell(told.CpuSpent(second * 500_000_000))
        machine.now_ns += 10**9
    assert machine.said[-1] == "over-budget"
    assert machine.uses(1, 1, bytes=1) + machine.uses(2, 1, by=2) == []
    assert machine.why(1).startswith("it waits for CPU time of atfnd itself")
    machine.now_ns += 10**9
    assert machine.tell(told.CpuSpent(19 * 500_000_000)) == ["insert 2 to 1"]
    for _ in range(10):
        machine.now_ns += 10**9
        machine.tell(told.CpuSpent(19 * 500_000_000))
    assert machine.begun == ["insert 2 to 1", "insert 1 to 1"]
    assert machine.said[-1] == "in-budget"
