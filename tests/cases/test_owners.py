# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that follow their owners: owners gain and lose one, it moves, and goes home."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.model import Distance
from atfnd.model.reason import Code
from tests.cases.given import STRICT, nic, policy, thread
from tests.cases.machine import Machine
from tests.values import NIC, key


def owning(*flows: tuple[int, int], rate: int = 100_000) -> Machine:
    """Threads 1, 2, ... use a flow each, (number, CPU), under a rule that keeps the order."""
    machine = Machine(policy(STRICT))
    for number, cpu in flows:
        machine.uses(number, cpu, by=number, rate=rate)
    machine.later(3)
    return machine


def test_the_queue_of_a_thread_follows_it_in_one_write() -> None:
    """Row 2, and 16: no flow is written, and each is where its thread is."""
    machine = owning()
    for number in (1, 2, 3):
        machine.uses(number, 1)
    machine.later(1)
    assert machine.uses(2, 2) == ["queue 1 to CPU 2"]
    assert machine.later(10) == []
    assert [machine.cpu(machine.queue(number)) for number in (1, 2, 3)] == [2, 2, 2]
    assert "owns queue 1, which follows it" in machine.why(2)


def test_an_owner_that_is_away_for_two_seconds_loses_its_queue() -> None:
    """Row 6, and 11: it goes back to the CPU that it had."""
    machine = owning((1, 1))
    machine.uses(1, 2)
    machine.sockets[1].rate = 0
    assert machine.later(1.5) == []
    assert machine.later(8) == ["queue 1 to CPU 1"]


def test_a_newcomer_takes_the_queue_of_an_owner_that_rests() -> None:
    """Row 6. All queues have owners, and one has not used its for more than a second."""
    machine = owning((1, 0), (2, 1), (3, 2), (4, 2), (5, 1))
    machine.sockets[2].rate = 0
    machine.later(3)
    machine.uses(1, 3, by=1)
    machine.later(4)
    assert "owns queue" in machine.why(4)


def test_a_newcomer_that_is_a_quarter_busier_takes_a_queue() -> None:
    """Row 6."""
    machine = owning((1, 0), (2, 1), (3, 2), (4, 2), rate=1_000_000)
    machine.uses(9, 3, by=9, rx_cpu=0, rate=1_200_000)
    machine.later(10)
    assert "owns queue" not in machine.why(9)
    machine.sockets[9].rate = 2_000_000
    machine.later(10)
    assert "owns queue" in machine.why(9)


def test_no_queue_follows_where_too_many_would_own_one() -> None:
    """Row 7. Each is served without that; when most are gone, a queue follows again."""
    machine = owning(*((number, number % 3) for number in range(1, 17)), rate=1_000_000)
    machine.later(20)
    assert machine.uses(1, 2, by=1) == ["rewrite 1 to 2"]
    for number in range(4, 17):
        machine.closes(number)
    machine.later(20)
    assert machine.uses(1, 1, by=1) == ["queue 1 to CPU 1"]


def test_a_thread_that_may_leave_loses_a_queue_that_others_use() -> None:
    """Row 8. It would take their packets along."""
    machine = Machine(policy(STRICT))
    for number in (1, 2):
        machine.uses(number, 1, by=number, pinned=False)
        machine.later(3)
    assert "owns queue 0" in machine.why(2)
    assert machine.uses(3, 1, by=3, pinned=False) == ["insert 3 to 0"]
    assert machine.later(3) == ["queue 0 to CPU 0", "rewrite 2 to 1", "rewrite 3 to 1"]


def test_a_thread_that_may_leave_gets_no_queue_that_others_use() -> None:
    """Row 8. Packets of others come there by the filter of their port, or by RSS."""
    machine = Machine(policy(STRICT))
    machine.listens(9, cpu=1, by=5, pinned=True)
    machine.uses(1, 1, by=1, key=key(1)._replace(local_port=80), pinned=False)
    assert machine.later(3) + machine.uses(1, 2, by=1, pinned=False) == ["queue 0 to CPU 2"]
    machine = Machine(policy(STRICT))
    machine.uses(5, 0, by=5, home=Distance.MACHINE, pinned=False)
    machine.uses(1, 3, by=1, rx_cpu=0, pinned=False)
    assert machine.later(3) + machine.uses(1, 2, by=1, pinned=False) == ["queue 1 to CPU 2"]


def test_a_cpu_has_room_for_so_many_queues() -> None:
    """Row 9. Two, if each of four CPUs is home to one. The third owner is a guest there."""
    machine = owning((1, 0), (2, 1), (4, 2))
    assert machine.uses(1, 3, by=1) == ["queue 0 to CPU 3"]
    machine.later(1)
    assert machine.uses(2, 3, by=2) == ["rewrite 2 to 3"]
    assert "owns" not in machine.why(2)


def test_a_queue_rests_between_two_moves() -> None:
    """Row 10."""
    machine = owning((1, 1))
    assert machine.uses(1, 2) == ["queue 1 to CPU 2"]
    assert machine.uses(1, 0) == []
    assert machine.later(0.09) == []
    assert machine.later(0.02) == ["queue 1 to CPU 0"]


def test_a_queue_that_cannot_move_is_tried_less_and_less_and_then_given_up() -> None:
    """Row 10. After five times its owner is moved as a guest."""
    machine = owning((1, 1))
    machine.answer = Code.QUEUE_GONE(3)
    machine.uses(1, 2)
    tried = [machine.later(1).count("queue 1 to CPU 2") for _ in range(6)]
    assert (sum(tried), tried[-1]) == (4, 0)
    assert machine.begun[-1] == "rewrite 1 to 2"


def test_queues_that_have_exchanged_their_places_stay() -> None:
    """Row 11. Each CPU has as many as at home."""
    machine = owning((1, 1), (2, 2))
    assert machine.uses(1, 2, by=1) == ["queue 1 to CPU 2"]
    assert machine.uses(2, 1, by=2) == ["queue 2 to CPU 1"]
    machine.later(1)
    for number in (1, 2):
        machine.closes(number)
    assert machine.later(30) == []


def test_the_queue_of_adopted_flows_stays_where_it_was_found() -> None:
    """Row 14. Who owned it is not known; without them it goes home."""
    queues = tuple(
        replace(queue, cpu=2 if queue.index == 1 else queue.index) for queue in NIC.queues
    )
    machine = Machine(policy(STRICT), nic(queues=queues))
    machine.uses(1, 2, rx_cpu=2)
    assert machine.finds((1, 1)) == []
    machine.tell(*machine.met(originals={"queue-cpu:1": "1"}))
    assert machine.later(20) == []
    assert machine.closes(1) == ["delete 1"]
    assert machine.later(10) == ["queue 1 to CPU 1"]


def test_the_queue_of_a_cgroup_follows_its_busiest_thread() -> None:
    """Row 14. At looks, for one report says nothing of the others."""
    machine = Machine(policy({**STRICT, "owner": "cgroup"}))
    one, other = thread(1, cgroup=7), thread(2, cgroup=7)
    machine.uses(1, 1, by=one, rate=1_000_000)
    assert machine.uses(2, 2, by=other, rate=10_000) == ["insert 2 to 1"]
    machine.later(4)
    assert machine.uses(1, 2, by=one) == []
    assert machine.later(4) == ["queue 1 to CPU 2"]


@pytest.mark.parametrize("rule", [{}, {**STRICT, "placement": {"near": "llc"}}])
def test_a_flow_moves_by_itself_where_its_queue_may_not_follow(rule: dict[str, object]) -> None:
    """Row 15. Its rule has no order, or another place than its core."""
    machine = Machine(policy(rule))
    machine.uses(1, 0)
    machine.later(1)
    assert machine.uses(1, 3)[0].startswith("rewrite 1 to")
    assert "owns" not in machine.why(1)


@pytest.mark.parametrize("now_on", [1, 0], ids=["it came back", "it went on"])
def test_a_move_that_waits_is_not_done_once_its_thread_has_moved(now_on: int) -> None:
    """Row 16."""
    machine = Machine()
    machine.uses(1, 1)
    machine.later(1)
    machine.answer = None
    assert machine.uses(1, 2) == ["rewrite 1 to 2"]
    machine.uses(1, now_on)
    machine.answer = 0
    machine.finish()
    assert machine.later(1) == []
    assert machine.queue(1) == now_on


def test_a_filter_leads_to_a_queue_that_has_come_home_to_its_thread() -> None:
    """Row 11. Until then no queue is delivered there, and the filter stays where it leads."""
    machine = owning((1, 1))
    machine.uses(1, 2)
    machine.reloads(policy({**STRICT, "placement": {"dedicated": [0]}}))
    machine.uses(1, 1)
    assert machine.queue(1) == 0
    machine.reloads(policy({**STRICT, "order": "immediate"}))
    assert machine.later(10) == ["queue 1 to CPU 1", "rewrite 1 to 1"]
