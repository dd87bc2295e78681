# SPDX-License-Identifier: GPL-2.0-or-later
"""What a user, a control group or a rule may have of a NIC's filters: nobody takes all,
in whatever order they come, and those that are worth most have them in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd.model import FlowState, Thread
from tests.cases.given import PORT, STRICT, nic, policy, thread
from tests.cases.machine import Machine
from tests.values import key

ATTACKER, VICTIM = 1000, 1001
MEGABYTE = 1_000_000
FULL = "its rule has its share of the filters, {}: delivered by RSS"


def of(uid: int, tid: int | None = None, cgroup: int | None = None) -> Thread:
    return thread(uid if tid is None else tid, uid=uid, cgroup=cgroup)


def use(machine: Machine, numbers: Iterable[int], by: Thread, rate: int = 100_000) -> None:
    """Flows of a thread on CPU 1, which RSS delivers on CPU 3."""
    for number in numbers:
        machine.uses(number, 1, by=by, rate=rate)
        machine.later(0.01)


def steered(machine: Machine) -> set[int]:
    """The numbers of the flows that have a filter."""
    filters = {flow for flow, _ in machine.nics["nic"].filters.values()}
    return {number for number, each in machine.sockets.items() if each.key in filters}


def users(machine: Machine) -> Counter[int | None]:
    """How many filters each has."""
    return Counter(machine.sockets[number].thread.uid for number in steered(machine))


def ports(machine: Machine) -> Counter[int]:
    """How many ports of each thread have a filter."""
    filters = {flow for flow, _ in machine.nics["nic"].filters.values()}
    listen = (each for each in machine.listeners.values() if each.key in filters)
    return Counter(each.thread.tid for each in listen if each.thread)


def listen(machine: Machine, by: int, *numbers: int) -> None:
    for number in numbers:
        machine.listens(number, thread=of(by), key=PORT._replace(local_port=number))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 16), st.data())
def test_filters_are_shared_equally_in_whatever_order_users_come(
    wanted: list[int], room: int, data: st.DataObject
) -> None:
    """Row 41."""
    order = data.draw(st.permutations([u for u, count in enumerate(wanted) for _ in range(count)]))
    machine = Machine(policy(), nic(slots=room))
    for number, uid in enumerate(order):
        use(machine, [number], of(uid))
    machine.later(30)
    held = users(machine)
    assert held.total() == min(room, sum(wanted))
    for uid, count in enumerate(wanted):  # one with fewer than another wants no more
        assert held[uid] >= min(count, max(held.values(), default=0) - 1)


@pytest.mark.parametrize("many", ["users", "groups"])
def test_who_has_many_users_or_many_groups_is_one_all_the_same(many: str) -> None:
    """Row 41."""
    machine = Machine(policy(), nic(slots=10))
    for number in range(40):
        attacker = (number, 7) if many == "users" else (ATTACKER, number)
        use(machine, [number], of(attacker[0], tid=2000 + number, cgroup=attacker[1]))
    use(machine, range(100, 120), of(VICTIM, cgroup=1))
    machine.later(20)
    assert users(machine)[VICTIM] == 5


def test_a_user_that_has_its_share_takes_no_filter_from_others() -> None:
    """Row 42. However much its flow is worth: it would wait for its share even then."""
    shares = {"shares": {"user": {"filters": 20}}}
    machine = Machine(policy(daemon=shares), nic(slots=10))
    for uid in (2001, 2002, 2003, 2004):
        use(machine, (uid, uid + 10), of(uid, cgroup=7))
    use(machine, range(3), of(ATTACKER, cgroup=1), rate=100 * MEGABYTE)
    machine.later(20)
    assert users(machine) == dict.fromkeys((ATTACKER, 2001, 2002, 2003, 2004), 2)
    assert not [each for each in machine.begun if each.startswith("delete")]


def test_in_a_full_table_a_newcomer_takes_the_place_of_who_has_most() -> None:
    """Row 47."""
    machine = Machine(policy(daemon={"table": {"max": 20}}), nic(slots=10))
    use(machine, range(20), of(ATTACKER))
    use(machine, range(30, 35), of(VICTIM))
    machine.later(10)
    assert users(machine) == {ATTACKER: 5, VICTIM: 5}
    use(machine, [40], of(ATTACKER))
    assert machine.state(40) is FlowState.OVERFLOW


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), st.integers(1, 5))
def test_elephants_have_the_filters_in_the_end_and_keep_them(rates: list[int], room: int) -> None:
    """Row 43."""
    machine = Machine(policy({"t_delete": "1h"}), nic(slots=room))
    for number, rate in enumerate(rates):
        use(machine, [number], of(1), rate)
    machine.later(40)
    had = steered(machine)
    least = min(rates[number] for number in had)
    for number in {*range(len(rates))} - had:
        assert len(had) == room
        assert rates[number] <= 2.001 * least or rates[number] < 10_001
    assert machine.later(10) == []


BULK = {"match": {"remote": "10.1.0.0/25"}, "filters": {"max": 4}}  # flows 0 to 127


@pytest.mark.parametrize("slots", [100, 6])  # in the latter the NIC is full, too
def test_the_flow_of_most_worth_takes_the_filter_of_another_one_of_its_rule(slots: int) -> None:
    """Rows 42 and 43. Those of the other rule are worth nothing, and stay."""
    machine = Machine(policy(BULK, {}), nic(slots=slots))
    for number, rate in enumerate((9, 1, 9, 9, 50)):
        use(machine, [number], of(1), rate * MEGABYTE)
    use(machine, [200, 201], of(1), 0)
    assert steered(machine) == {0, 1, 2, 3, 200, 201}
    machine.later(20)
    assert steered(machine) == {0, 2, 3, 4, 200, 201}


def test_flows_that_wait_for_their_rule_keep_no_filter_from_others() -> None:
    """Row 42. However much they are worth: neither a free slot, nor that of one of less worth."""
    machine = Machine(policy(BULK, {}), nic(slots=5))
    use(machine, range(4), of(1), 60 * MEGABYTE)
    use(machine, range(4, 12), of(1), 50 * MEGABYTE)
    use(machine, [200], of(1), 20_000)
    use(machine, [201], of(1), MEGABYTE)
    assert steered(machine) == {0, 1, 2, 3, 200}
    machine.later(20)
    assert steered(machine) == {0, 1, 2, 3, 201}


def test_under_one_rule_users_have_equal_shares() -> None:
    """Rows 41 and 42."""
    machine = Machine(policy(BULK, {}))
    use(machine, range(10), of(ATTACKER))
    use(machine, range(10, 20), of(VICTIM))
    machine.later(20)
    assert users(machine) == {ATTACKER: 2, VICTIM: 2}


def test_filters_above_the_share_of_a_rule_go() -> None:
    """Row 42. As when flows have carried enough for another rule."""
    fast = {"match": {"protocol": "tcp", "min_rate": "80Mbit"}, "filters": {"max": 2}}
    machine = Machine(policy(fast, {}))
    use(machine, range(4), of(1))
    assert steered(machine) == {0, 1, 2, 3}
    for number in range(4):
        machine.sockets[number].rate = (11 + number) * MEGABYTE
    machine.later(20)
    for number in range(4):
        machine.uses(number, 1, by=of(1))
    machine.later(20)
    assert steered(machine) == {0, 1}
    assert machine.why(3) == FULL.format(2)


def test_who_only_listens_has_half_of_the_filters_at_most() -> None:
    """Row 41."""
    machine = Machine(policy(STRICT), nic(slots=10))
    listen(machine, 1, *range(2000, 2010))
    machine.later(6)
    assert ports(machine) == {1: 5}
    use(machine, range(3), of(VICTIM))
    assert users(machine) == {VICTIM: 3}


def test_a_newcomer_gets_the_filters_of_idle_ports_and_not_of_those_that_deliver() -> None:
    """Rows 41 and 44. To delete the latter would move their connections."""
    machine = Machine(policy(STRICT), nic(slots=4))
    for by in (1, 2):
        listen(machine, by, 2000 + 10 * by, 2001 + 10 * by)
    machine.later(4)
    assert ports(machine) == {1: 2, 2: 2}
    machine.uses(1, 1, by=1, key=key(1)._replace(local_port=2010))
    machine.later(4)
    use(machine, (50, 51, 52), of(VICTIM))
    machine.later(20)
    assert users(machine)[VICTIM] >= 1
    assert machine.state(PORT._replace(local_port=2010)) is FlowState.STEERED


def test_ports_and_connects_count_for_their_rule() -> None:
    """Rows 26 and 42."""
    machine = Machine(policy({**STRICT, "filters": {"max": 3}}))
    listen(machine, 1, *range(2000, 2005))
    machine.later(4)
    assert ports(machine) == {1: 3}
    use(machine, [50], of(1))
    assert (machine.state(50), machine.why(50)) == (FlowState.OVERFLOW, FULL.format(3))
