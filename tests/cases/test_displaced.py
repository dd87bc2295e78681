# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that the kernel or irqbalance took from their CPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import event as told
from tests.cases.given import CPUS, nic, policy
from tests.cases.machine import Machine

QUEUES = tuple(replace(queue, irq=40 + queue.index) for queue in nic().queues)


def machine(*rules: dict[str, object], left_alone: str = "", armed: bool = True) -> Machine:
    manual = frozenset({left_alone} if left_alone else ())
    return Machine(policy(*rules), nic(queues=QUEUES, manual=manual), armed=armed)


def test_a_queue_returns_to_its_first_cpu_however_often_it_had_to_leave() -> None:
    """Row 12."""
    host = machine()
    assert host.plug(3, online=False) == ["queue 3 to CPU 2"]
    assert sorted(host.plug(2, online=False)) == ["queue 2 to CPU 0", "queue 3 to CPU 1"]
    assert host.plug(3, online=True) == ["queue 3 to CPU 3"]
    assert host.plug(2, online=True) == ["queue 2 to CPU 2"]
    assert host.later(5) == []


def test_it_does_not_stop_elsewhere_on_its_way_back() -> None:
    """Row 12. The CPU that it went to goes offline as its own comes back."""
    host = machine()
    host.plug(3, online=False)
    host.cpus = (*CPUS[:2], replace(CPUS[2], online=False), CPUS[3])
    host.tell(told.CpusRead(host.topology))
    begun = host.tell(told.CpusChanged("nic"))
    assert [each for each in begun if each.startswith("queue 3")] == ["queue 3 to CPU 3"]


def test_no_queue_goes_to_a_dedicated_cpu_while_there_are_others() -> None:
    """Row 12."""
    apart: dict[str, object] = {"match": {"ports": [80]}, "placement": {"dedicated": [0]}}
    assert machine(apart, {}).plug(1, online=False) == ["queue 1 to CPU 2"]


def test_where_the_kernel_refuses_it_returns_nevertheless() -> None:
    """Row 12."""
    host = machine()
    host.answer = 5
    assert host.plug(3, online=False) == ["queue 3 to CPU 2"]
    host.answer = 0
    host.reads(queues=(*QUEUES[:3], replace(QUEUES[3], cpu=None)))
    assert host.plug(3, online=True) == ["queue 3 to CPU 3"]


def test_what_a_link_flap_or_irqbalance_moved_goes_back_but_for_what_another_placed() -> None:
    """Rows 12, 13 and 59. No program meant it."""
    host = machine(left_alone="queue-cpu:3")
    assert host.plug(3, online=False) == []
    loosened = told.QueuesLoosened("nic", {3: 3, 1: 1, 9: 1})
    assert host.tell(loosened) == ["queue 1 to CPU 1"]
    moved = {"queue-cpu:1": "1", "queue-cpu:2": "0-3", "queue-cpu:0": "0", "xps-cpus:1": "1"}
    spared = told.InterruptsSpared("nic", frozenset({41, 42, 43}), moved)
    assert host.tell(spared) == ["queue 1 to CPU 1"]


def test_a_queue_that_a_pause_put_back_is_not_moved_when_its_cpu_returns() -> None:
    """Rows 12 and 57. Where it came from before is history."""
    host = machine()
    host.plug(3, online=False)
    host.pauses()
    host.resumes()
    assert host.plug(3, online=True) == []


def test_a_nic_that_is_not_armed_is_left_alone() -> None:
    """Rows 12 and 13."""
    host = machine(armed=False)
    spared = told.InterruptsSpared("nic", frozenset({41}), {"queue-cpu:1": "1"})
    assert host.plug(3, online=False) == []
    assert host.tell(told.QueuesLoosened("nic", {1: 1}), spared) == []


@pytest.mark.parametrize(("attached", "moved"), [(True, ["queue 3 to CPU 3 on new"]), (False, [])])
def test_a_nic_that_is_renamed_takes_along_where_its_queues_were(
    attached: bool, moved: list[str]
) -> None:
    """Rows 12 and 60."""
    host = machine()
    host.plug(3, online=False)
    host.tell(told.NicRenamed("nic", "new"))
    facts = replace(host.nics.pop("nic").facts, name="new")
    if attached:
        host.attach(facts)
    else:
        host.tell(told.NicLost("new"))
    assert host.plug(3, online=True) == moved


def test_a_nic_that_is_gone_leaves_nothing_behind() -> None:
    """Rows 12 and 60."""
    host = machine()
    host.plug(3, online=False)
    host.tell(told.NicLost("nic"))
    host.attach(host.nics.pop("nic").facts)
    assert host.plug(3, online=True) == []
