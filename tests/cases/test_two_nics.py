# SPDX-License-Identifier: GPL-2.0-or-later
"""Two NICs with the same queue numbers and locations: what concerns one does nothing to the
other."""

from __future__ import annotations

import pytest

from atfnd.engine import event as told
from atfnd.model import Caps, FlowState
from tests.cases.given import STRICT, nic, policy
from tests.cases.machine import Machine


def two(*rules: dict[str, str], slots: int = 4096) -> Machine:
    return Machine(policy(*rules), nic(slots=slots), nic("two", slots))


def test_a_move_that_waits_on_a_nic_that_is_gone_is_none() -> None:
    """Rows 1 and 60."""
    machine = two()
    for cpu in (1, 2):
        machine.uses(1, cpu)
        machine.uses(2, cpu, 2, "two")
    machine.tell(told.NicLost("nic"))
    assert machine.later(1) == ["rewrite 2 to 2 on two"]


def test_each_nic_has_its_own_filters() -> None:
    """Row 40."""
    machine = two(slots=1)
    for number, on in enumerate(("nic", "two", "nic", "two")):
        machine.uses(number, 1, number, on)
    states = [machine.state(number) for number in range(4)]
    assert states == [FlowState.STEERED] * 2 + [FlowState.OVERFLOW] * 2
    machine.closes(0)
    assert machine.later(3) == ["insert 2 to 1"]


def test_a_thread_owns_a_queue_of_each_nic_that_it_uses() -> None:
    """Rows 2 and 6. Each follows by the reports of its own NIC."""
    machine = two(STRICT)
    machine.uses(1, 1)
    machine.uses(2, 1, 1, "two")
    machine.uses(3, 2, 3, "two")
    machine.later(3)
    assert machine.uses(1, 2) == ["queue 1 to CPU 2"]
    assert [machine.cpu(1, on) for on in ("nic", "two")] == [2, 1]
    assert machine.uses(2, 2, 1, "two") == ["queue 1 to CPU 2 on two"]


def test_a_connect_is_not_placed_where_another_flow_has_its_addresses() -> None:
    """Row 21."""
    machine = two({"order": "bounded"})
    machine.uses(1, 1, 1, "two")
    assert machine.connects(1, 1, cookie=99) == []
    assert machine.connects(2, 1) == ["insert 2 to 1"]


@pytest.mark.parametrize("why", ["disarmed", "another program", "its CPU cannot be set", "by RSS"])
def test_a_queue_that_is_not_ours_to_move_does_not_follow(why: str) -> None:
    """Row 59. Since its thread was placed, it is ours no more."""
    machine = Machine(policy(STRICT))
    machine.uses(1, 1)
    machine.later(1)
    caps: dict[str, Caps] = {
        "its CPU cannot be set": nic(queue_cpu=False).caps,
        "by RSS": nic(filters=False).caps,
    }
    if why == "disarmed":
        machine.tell(told.Disarmed("nic"))
    elif why == "another program":
        machine.tell(told.SettingsLeftAlone("nic", frozenset({"queue-cpu:1"})))
    else:
        machine.reads(caps=caps[why])
        machine.tell(told.MethodDue("nic"))
    machine.later(3)
    assert "queue 1 to CPU 2" not in machine.uses(1, 2) + machine.later(3)


def late(*, pinned: bool) -> list[str]:
    """What a report begins that was made before its thread moved."""
    machine = Machine(policy(STRICT))
    for number in (1, 2):
        machine.uses(number, 1, pinned=pinned)
    machine.later(1)
    before_ns = machine.now_ns
    machine.later(1)
    assert machine.uses(1, 2, pinned=pinned) == ["queue 1 to CPU 2"]
    machine.later(1)
    return machine.uses(2, 1, pinned=pinned, off_since_ns=before_ns) + machine.later(5)


def test_a_queue_does_not_go_back_for_a_report_that_comes_late() -> None:
    """Row 2."""
    assert late(pinned=True) == []


def test_a_queue_goes_back_for_a_late_report_of_a_thread_that_is_not_pinned() -> None:
    """Row 2. Today: the newest evidence should count here, too."""
    assert late(pinned=False) == ["queue 1 to CPU 1"]
