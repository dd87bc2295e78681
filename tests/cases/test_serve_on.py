# SPDX-License-Identifier: GPL-2.0-or-later
"""`serve_on` of an interface: to which CPUs its queues may be delivered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import event as told
from atfnd.model import Policy, ServeOn
from tests.cases.given import CPUS, STRICT, nic, policy
from tests.cases.machine import Machine

ANY, NOT_0, LOW, HIGH = None, "!0", "0-1", ServeOn(frozenset({2, 3}), others=False)
ALONE, EVERY = ("0", "1", "2", "3"), ("0-3",) * 4


def rules(serve_on: str | ServeOn | None) -> Policy:
    asks = {} if serve_on is None else {"serve_on": serve_on if isinstance(serve_on, str) else "0"}
    made = policy(STRICT, interfaces=[{"match": {"name": "*"}, **asks}])
    if not isinstance(serve_on, ServeOn):
        return made
    first, *rest = made.interfaces
    return replace(made, interfaces=(replace(first, serve_on=serve_on), *rest))


def machine(
    serve_on: str | ServeOn | None, found: tuple[str, ...] = ALONE, isolated: int | None = None,
    left_alone: frozenset[str] = frozenset(),
) -> Machine:  # fmt: skip
    """A NIC whose queues were found on these CPUs."""
    cpus = [int(each) if each.isdecimal() else None for each in found]
    queues = tuple(replace(q, irq=40, cpu=cpus[q.index]) for q in nic().queues)
    settings = {f"queue-cpu:{queue}": cpu for queue, cpu in enumerate(found)}
    made = Machine(rules(serve_on), armed=False)
    made.cpus = tuple(replace(cpu, isolated=cpu.index == isolated) for cpu in CPUS)
    made.attach(nic(queues=queues, settings=settings, manual=left_alone))
    return made


def on(made: Machine) -> list[int | None]:
    return [made.cpu(queue) for queue in range(4)]


@pytest.mark.parametrize(
    ("serve_on", "found", "isolated", "there"),
    [
        (ANY, ALONE, None, [0, 1, 2, 3]),
        (NOT_0, ALONE, None, [1, 1, 2, 3]),  # only the one that is astray moves
        (NOT_0, EVERY, None, [1, 2, 3, 1]),
        (LOW, ALONE, None, [0, 1, 0, 1]),
        (LOW, EVERY, None, [0, 1, 0, 1]),
        (NOT_0, EVERY, 1, [2, 3, 2, 3]),  # an isolated one is not named
        (HIGH, EVERY, 2, [2, 3, 2, 3]),  # or it is
    ],
)
def test_arming_puts_queues_where_they_may_be(
    serve_on: str | ServeOn | None, found: tuple[str, ...], isolated: int | None,
    there: list[int],
) -> None:  # fmt: skip
    """Rows 9 and 56."""
    made = machine(serve_on, found, isolated)
    assert on(made) == there
    assert made.tell(told.SettingsDue("nic")) + made.later(9) == []


def test_a_queue_that_is_not_ours_stays() -> None:
    """Row 59."""
    assert on(machine(LOW, left_alone=frozenset({"queue-cpu:2"})))[2] == 2


def test_where_no_cpu_is_left_queues_stay() -> None:
    """Row 56."""
    assert on(machine(ServeOn(frozenset({99}), others=False))) == [0, 1, 2, 3]


def test_no_queue_follows_its_owner_out_of_there() -> None:
    """Row 15."""
    made = machine(LOW, ("0", "1", "0", "1"))
    made.uses(1, 0)
    made.later(1)
    assert made.uses(1, 1) == ["queue 0 to CPU 1"]
    made.later(1)
    assert made.uses(1, 3) + made.later(9) == ["queue 0 to CPU 0"]


def test_another_policy_moves_them_out_and_back() -> None:
    """Row 58."""
    made = machine(ANY)
    for serve_on, there in ((NOT_0, {1, 2, 3}), (LOW, {0, 1}), (ANY, {0, 1, 2, 3})):
        made.reloads(rules(serve_on))
        found = {f"queue-cpu:{queue}": str(queue) for queue in range(4)}
        made.tell(told.OriginalsRead("nic", found))
        made.later(20)
        assert {*on(made)} == there


def test_no_cpu_outside_stands_in_for_one_that_goes_offline() -> None:
    """Row 12."""
    made = machine(LOW, ("0", "1", "0", "1"))
    made.plug(1, online=False)
    assert on(made) == [0] * 4
    made.plug(0, online=False)
    assert not {0, 1} & {*on(made)}  # somewhere
