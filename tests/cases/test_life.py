# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a NIC, orders of an operator, and another policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from atfnd.engine import event as told
from atfnd.engine.command import Expect, Forget
from atfnd.model import FlowState
from tests.cases.given import STRICT, nic, policy
from tests.cases.machine import Machine

OTHERS = {
    "priv:flow-director-atr": "on", **{f"rps-cpus:{queue}": "0-3" for queue in range(4)},
    **{f"queue-cpu:{queue}": str(queue) for queue in range(4)},
    **{f"xps-cpus:{queue}": "" for queue in range(4)},
}  # fmt: skip


def test_arming_leaves_one_owner_and_each_queue_on_a_cpu() -> None:
    """Row 56."""
    queues = (replace(nic().queues[0], cpu=2), *nic().queues[1:])
    machine = Machine(policy(), nic(settings={**OTHERS, "queue-cpu:0": "0-3"}, queues=queues))
    assert machine.begun[:5] == [
        "priv:flow-director-atr = off",
        *(f"rps-cpus:{q} = " for q in range(4)),
    ]
    assert "queue 0 to CPU 0" in machine.begun
    assert sorted(machine.begun)[-4:] == [f"xps-cpus:{queue} = {queue}" for queue in range(4)]


def test_arming_changes_nothing_that_is_right_or_anothers() -> None:
    """Row 56, and 59."""
    machine = Machine(policy(), nic(settings=OTHERS, manual=frozenset(OTHERS)))
    assert machine.begun == []


def test_a_nic_that_is_not_armed_shows_what_would_be_written() -> None:
    """Row 57."""
    machine = Machine(armed=False)
    assert machine.uses(1, 1) == []
    assert machine.state(1) is FlowState.OBSERVED
    assert machine.tell(told.Armed("nic"), *machine.met()) == ["insert 1 to 1"]


def test_disarming_leaves_filters_in_place() -> None:
    """Row 57."""
    machine = Machine()
    machine.uses(1, 1)
    machine.later(1)
    machine.tell(told.Disarmed("nic"))
    assert machine.uses(1, 2) + machine.closes(1) + machine.later(5) == []
    assert len(machine.nics["nic"].filters) == 1


def test_a_pause_takes_all_out_and_resume_brings_it_back() -> None:
    """Row 57."""
    machine = Machine(policy(STRICT))
    for number in (1, 2):
        machine.uses(number, number, by=number)
    machine.later(1)
    machine.uses(1, 3, by=1)
    assert sorted(machine.pauses()) == ["delete 1", "delete 2"]
    assert machine.state(1) is FlowState.OBSERVED
    assert machine.cpu(1) == 1
    assert machine.uses(1, 2, by=1) + machine.later(5) == []
    assert sorted(machine.resumes()) == ["insert 1 to 2", "insert 2 to 2"]


def test_a_nic_that_was_not_armed_is_not_armed_by_resume() -> None:
    """Row 57. Nor one that was disarmed in the pause; one that is to be armed after it, is."""
    machine = Machine(armed=False)
    machine.uses(1, 1)
    machine.pauses()
    assert machine.resumes() == []
    machine.pauses()
    machine.tell(told.ArmedAfterPause("nic", True))
    assert machine.resumes() == ["insert 1 to 1"]


def test_a_policy_that_leaves_a_flow_alone_takes_its_filter() -> None:
    """Row 58. In the order that it was steered with."""
    machine = Machine(policy(STRICT))
    for number in (1, 2):
        machine.uses(number, number, by=number)
    machine.later(1)
    leaves = {"match": {"remote": "10.1.0.1"}, "placement": "leave"}
    assert machine.reloads(policy(leaves, STRICT)) == ["delete 1"]
    assert machine.state(1) is None
    assert machine.state(2) is FlowState.STEERED


def test_a_policy_that_steers_it_again_revokes_that() -> None:
    """Row 58, and 35."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 1)
    machine.later(1)
    machine.answer = None
    assert machine.reloads(policy({"placement": "leave"})) == ["delete 1"]
    assert machine.reloads(policy(STRICT)) == ["rewrite 1 to 1"]
    machine.answer = 0
    machine.finish()
    assert (machine.state(1), machine.queue(1)) == (FlowState.STEERED, 1)


def test_a_flow_takes_the_terms_of_another_rule() -> None:
    """Row 58."""
    machine = Machine()
    machine.uses(1, 1)
    machine.later(1)
    assert machine.reloads(policy({"placement": {"near": "llc"}})) == ["rewrite 1 to 0"]
    assert "near llc" in machine.why(1)


def test_a_nic_that_is_gone_takes_its_flows_and_no_others() -> None:
    """Row 60."""
    machine = Machine(policy(), nic(), nic("two"))
    machine.uses(1, 1)
    machine.uses(2, 1, by=2, on="two")
    machine.tell(told.NicLost("two"))
    assert Forget(frozenset({2})) in machine.commands
    assert [machine.state(number) for number in (1, 2)] == [FlowState.STEERED, None]
    assert machine.tell(told.Paused("two"), told.TakenUp("two")) == []


def test_a_nic_with_another_name_begins_anew() -> None:
    """Row 60. Its sockets are reported again, and its filters taken over."""
    machine = Machine()
    machine.uses(1, 1)
    machine.tell(told.NicRenamed("nic", "new"))
    assert machine.state(1) is None
    assert Forget(frozenset({1})) in machine.commands
    assert machine.attach(nic("new")) == []
    assert [*machine.engine.views] == ["new"]


def test_another_life_of_a_nic_is_prepared_again() -> None:
    """Row 60. It came up with values of its own."""
    machine = Machine(policy(), nic(settings={"rps-cpus:0": ""}))
    machine.reads(settings={"rps-cpus:0": "0-3"})
    assert machine.tell(told.SettingsDue("nic")) == ["rps-cpus:0 = "]


def test_a_rule_that_asks_for_age_or_bytes_gets_the_flow_later() -> None:
    """Row 68."""
    for asks in ({"min_bytes": "1200KiB"}, {"min_age": "11s"}):
        machine = Machine(policy({"match": {"protocol": "tcp", **asks}}, {"placement": "leave"}))
        assert machine.uses(1, 1) == []
        assert machine.state(1) is None
        assert machine.later(5) == ["insert 1 to 1"]


def test_a_flow_that_was_fast_once_stays_under_the_rule_for_fast_ones() -> None:
    """Row 68."""
    fast = {"match": {"protocol": "tcp", "min_rate": "80Mbit"}}
    machine = Machine(policy(fast, {"placement": "leave"}))
    assert machine.uses(1, 1, rate=1_000_000) + machine.later(10) == []
    machine.sockets[1].rate = 11_000_000
    assert machine.later(5) == ["insert 1 to 1"]
    machine.sockets[1].rate = 1
    assert machine.uses(1, 2) + machine.later(5) == ["rewrite 1 to 2"]


def test_an_observer_that_sees_no_arrival_says_where_rss_delivers() -> None:
    """Row 69. It predicts: there is nothing to do where that is right."""
    machine = Machine()
    assert machine.uses(1, 2, napi_id=None, rx_cpu=None, rss_cpu=2) == []
    assert machine.state(1) is None
    assert machine.uses(1, 2, napi_id=None, rx_cpu=None, rss_cpu=3) == ["insert 1 to 2"]


def test_the_observer_hears_where_a_flow_belongs() -> None:
    """Row 69. It is not used there, and must not be reported for that."""
    machine = Machine(policy({"placement": {"near": "llc"}}))
    machine.uses(1, 1)
    assert Expect(1, 0, machine.now_ns) in machine.commands
    machine.later(1)
    machine.resumes()
    assert Expect(1, 0, machine.now_ns) in machine.commands


@pytest.mark.parametrize(("order", "armed"), [(told.Armed, True), (told.Disarmed, False)])
def test_an_order_ends_a_pause(order: Callable[[str], told.Event], armed: bool) -> None:
    """Row 57."""
    machine = Machine(armed=not armed)
    machine.pauses()
    machine.tell(order("nic"))
    machine.resumes()
    assert machine.uses(1, 1) == ["insert 1 to 1"] * armed
