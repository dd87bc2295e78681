# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads: how long they stay, whose flows move with them, and those that do not stay anywhere."""

from __future__ import annotations

import errno

from atfnd.engine.command import Expect
from atfnd.model import Distance, FlowState
from atfnd.model.reason import Code
from tests.cases.given import STRICT, nic, policy
from tests.cases.machine import Machine


def test_a_flow_follows_after_the_dwell_of_its_rule() -> None:
    """Row 1. The extra dwell of guests is gone."""
    machine = Machine(policy({"dwell": "50ms"}))
    assert machine.uses(1, cpu=1) == []
    assert machine.later(0.04) == []
    assert machine.later(0.02) == ["insert 1 to 1"]


def test_a_flow_moves_once_in_a_hold_down() -> None:
    """Row 1."""
    machine = Machine(policy(daemon={"settle": {"hold_down": "300ms"}}))
    assert machine.uses(1, cpu=1) == ["insert 1 to 1"]
    assert machine.uses(1, cpu=2) == []
    assert machine.later(0.29) == []
    assert machine.later(0.02) == ["rewrite 1 to 2"]


def test_a_thread_that_comes_back_within_the_hold_down_costs_no_move() -> None:
    """Row 1."""
    machine = Machine()
    for cpu in (1, 2, 1):
        machine.uses(1, cpu)
    assert machine.later(3) == []
    assert machine.queue(1) == 1


def test_a_thread_takes_its_flows_along() -> None:
    """Row 2. Those of other threads, and on other interfaces, stay."""
    machine = Machine(policy(), nic(), nic("two"))
    for number, by, on in ((1, 1, "nic"), (2, 1, "nic"), (3, 7, "nic"), (4, 1, "two")):
        machine.uses(number, 1, by, on)
    machine.later(1)
    assert machine.uses(1, cpu=2) == ["rewrite 1 to 2", "rewrite 2 to 2"]
    assert [machine.queue(number) for number in (1, 2, 3)] == [2, 2, 1]


def test_the_newest_report_of_a_thread_counts() -> None:
    """Row 2. One that was made before its thread moved moves nothing back."""
    machine = Machine()
    for number in (1, 2):
        machine.uses(number, 1, pinned=True)
    machine.later(1)
    before_ns = machine.now_ns
    machine.later(1)
    assert machine.uses(1, 2, pinned=True) == ["rewrite 1 to 2", "rewrite 2 to 2"]
    machine.later(1)
    assert machine.uses(2, 1, pinned=True, off_since_ns=before_ns) == []
    assert machine.later(5) == []
    assert machine.queue(2) == 2


def test_a_thread_that_may_leave_again_moves_each_filter_by_its_own_report() -> None:
    """Row 3. Its stay pays for one write at a time."""
    machine = Machine()
    for number in (1, 2):
        machine.uses(number, 1, pinned=False)
    machine.later(1)
    assert machine.uses(1, 2, pinned=False) == ["rewrite 1 to 2"]
    assert machine.later(5) == []
    assert machine.uses(2, 2, pinned=False) == ["rewrite 2 to 2"]


def test_the_flows_of_a_thread_that_has_ended_have_no_user() -> None:
    """Row 4. Its queue goes back to the CPU that it had."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 1)
    machine.later(1)
    assert machine.uses(1, 2) == ["queue 1 to CPU 2"]
    machine.look(ended=[1])
    assert machine.later(5) == ["queue 1 to CPU 1", "rewrite 1 to 2"]


def test_a_process_goes_on_owning_its_queue_without_that_thread() -> None:
    """Row 4."""
    machine = Machine(policy({**STRICT, "owner": "process"}))
    machine.uses(1, 1)
    machine.later(3)
    machine.uses(1, 2)
    machine.later(3)
    assert machine.cpu(1) == 2
    machine.look(ended=[1])
    assert machine.later(5) == []


def test_a_thread_that_wanders_has_no_filter() -> None:
    """Row 5."""
    machine = Machine()
    assert machine.uses(1, 1, home=Distance.MACHINE, pinned=False) == []
    assert machine.state(1) is FlowState.WANTED
    assert machine.why(1) == "its thread wanders over CPUs 0-3: left to RSS"


def test_a_thread_that_begins_to_wander_loses_its_filter() -> None:
    """Row 5."""
    machine = Machine()
    machine.uses(1, 1)
    machine.later(1)
    assert machine.uses(1, 2, home=Distance.MACHINE, pinned=False) == ["delete 1"]
    assert machine.uses(1, 2, pinned=False) == ["insert 1 to 2"]


def test_a_thread_that_wanders_under_a_cache_has_a_filter_into_it() -> None:
    """Row 5. RSS delivers under the other cache."""
    machine = Machine()
    assert machine.uses(1, 0, home=Distance.LLC, pinned=False) == ["insert 1 to 0"]
    assert "within the last-level cache of CPUs 0-1" in machine.why(1)
    machine.later(1)
    assert machine.uses(1, 1, home=Distance.LLC, pinned=False) == []
    assert machine.uses(1, 2, home=Distance.LLC, pinned=False) == ["rewrite 1 to 2"]


def test_the_queue_of_an_owner_that_begins_to_wander_goes_home_at_once() -> None:
    """Row 5. It would run away from its packets."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 1, pinned=False)
    machine.later(1)
    machine.uses(1, 2, pinned=False)
    machine.later(1)
    begun = machine.uses(1, 3, home=Distance.MACHINE, pinned=False)
    assert begun == ["delete 1", "queue 1 to CPU 1"]


def test_nothing_is_written_while_its_packets_arrive_anywhere_in_that_cache() -> None:
    """Row 5."""
    machine = Machine()
    assert machine.uses(1, 2, home=Distance.LLC, pinned=False) == []
    assert machine.state(1) is None


def test_a_filter_that_is_to_go_follows_its_thread_once_that_stays() -> None:
    """Row 5. The delete that waits is not done."""
    machine = Machine()
    machine.uses(1, 1, pinned=False)
    machine.later(1)
    machine.answer = None
    assert machine.uses(1, 2, home=Distance.MACHINE, pinned=False) == ["delete 1"]
    assert machine.uses(1, 2, pinned=False) == ["rewrite 1 to 2"]
    machine.answer = 0
    machine.finish()
    assert (machine.state(1), machine.queue(1)) == (FlowState.STEERED, 2)


def test_an_adopted_filter_stays_until_its_thread_has_stayed_somewhere() -> None:
    """Row 5, and 52. A daemon that has just begun knows of no thread that it stays."""
    machine = Machine()
    machine.uses(1, 3)
    machine.finds((1, 1))
    assert machine.uses(1, 2, home=Distance.MACHINE, pinned=False) + machine.later(3) == []
    assert machine.uses(1, 2, pinned=False) == ["rewrite 1 to 2"]
    machine.later(1)
    assert machine.uses(1, 2, home=Distance.MACHINE, pinned=False) == ["delete 1"]


def test_the_report_of_each_nic_takes_the_flows_of_a_pinned_thread_along() -> None:
    """Row 2."""
    machine = Machine(policy(), nic(), nic("two"))
    for number, on in ((1, "nic"), (2, "two"), (3, "two")):
        machine.uses(number, 1, 1, on, pinned=True)
    machine.later(1)
    assert machine.uses(1, 2, 1, pinned=True) == ["rewrite 1 to 2"]
    begun = machine.uses(2, 2, 1, "two", pinned=True)
    assert begun == ["rewrite 2 to 2 on two", "rewrite 3 to 2 on two"]


def test_the_delete_of_a_wanderers_filter_is_tried_again() -> None:
    """Row 5."""
    machine = Machine()
    machine.uses(1, 1)
    machine.later(1)
    machine.answer = Code.QUEUE_GONE(3)
    assert machine.uses(1, 2, home=Distance.MACHINE) == ["delete 1"]
    machine.answer = 0
    assert machine.later(1) == ["delete 1"]
    assert machine.why(1) == "its thread wanders over CPUs 0-3: left to RSS"
    assert machine.state(1) is FlowState.WANTED  # observed is for NICs that are not armed


def test_a_nic_that_refuses_that_delete_leaves_the_flow_steered() -> None:
    """Row 5."""
    machine = Machine()
    machine.uses(1, 1)
    machine.later(1)
    machine.answer = errno.EIO
    machine.uses(1, 2, home=Distance.MACHINE)
    assert (machine.state(1), machine.queue(1)) == (FlowState.STEERED, 1)


def test_a_flow_that_another_program_steers_stays_its_own_when_its_thread_wanders() -> None:
    """Rows 5 and 59."""
    machine = Machine()
    machine.uses(1, 1)
    machine.later(1)
    machine.nics["nic"].filters.clear()
    machine.lists()
    for home in (Distance.MACHINE, Distance.CPU):
        assert machine.uses(1, 2, home=home) == []
        assert machine.state(1) is FlowState.MANUAL


def test_a_placement_that_names_cpus_is_for_wanderers_too() -> None:
    """Rows 5 and 69. The observer hears where its packets belong once it stays."""
    machine = Machine(policy({"placement": {"cpus": [1]}}))
    assert machine.uses(1, 0, home=Distance.LLC) == ["insert 1 to 1"]
    assert "wanders" not in machine.why(1)
    machine.uses(2, 2, by=2, home=Distance.MACHINE)
    assert Expect(2, 1, machine.now_ns) in machine.commands
