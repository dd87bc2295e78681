# SPDX-License-Identifier: GPL-2.0-or-later
"""`filters: { max }` of a flow rule: its flows and ports have no more filters, and those that wait
say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from atfnd.engine.filters import budget
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import Action, ActionKind, Flow, FlowKey, FlowRule, FlowState, Thread
from atfnd.model.reason import Code
from tests.engine.simulated import Load, Simulated
from tests.engine.test_port_filters import OTHER, PORT, SECOND_NS, Server, connection
from tests.engine.test_shares import Idle, connects, of, policy, settled
from tests.values import NIC, RULE, THREAD, flow, key, memory_of

__all__: list[str] = []

MAX = 4
BULK = replace(RULE, name="bulk", filters_max=MAX, t_delete_ns=1 << 60)
REST = replace(RULE, name="rest", t_delete_ns=1 << 60)
MEGABYTE = 1_000_000
FULL = f"its rule has its share of the filters, {MAX}: delivered by RSS"


def in_force(*rules: FlowRule) -> RulesInForce:
    made = RulesInForce.of(replace(policy(), flows=rules))
    return replace(made, t_delete_ns=1 << 60, move_every_ns={})


class Bed(Simulated):
    """Flows on CPU 1 that RSS delivers on CPU 3. Those of `bulk` fall under that rule, the others
    under `rest`."""

    def __init__(
        self, rates: Sequence[int], room: int | None, bulk: range,
        threads: Sequence[Thread] = (), defers: Callable[[Action], bool] = lambda action: False,
    ) -> None:  # fmt: skip
        self.bulk = bulk
        users = [*threads, *[None] * (len(rates) - len(threads))]
        loads = [Load(key(n), 1, rate, 3, users[n]) for n, rate in enumerate(rates)]
        known = memory_of(FlowTable(1000), in_force(BULK, REST))
        super().__init__(replace(NIC, budget=room), REST, known, loads, defers)
        self.start()

    def rule_for(self, key: FlowKey) -> FlowRule | None:
        return BULK if int.from_bytes(key.remote[2:]) in self.bulk else REST

    def filtered(self) -> set[int]:
        """The numbers of the flows that have a filter."""
        return {int.from_bytes(held.remote[2:]) for held, _ in self.held.values()}

    def under(self) -> Counter[str]:
        """Filters by rule."""
        return Counter(each.rule_name for each in self.memory.table.steered("nic"))

    def looks(self, times: int = 5) -> None:
        for _ in range(times):
            self.look()

    def flow(self, number: int) -> Flow:
        found = self.memory.table.get(key(number))
        assert found is not None
        return found


@pytest.mark.parametrize("room", [100, MAX + 2])  # in the latter the NIC is full, too
def test_the_flow_of_most_worth_takes_the_filter_of_another_one_of_its_rule(room: int) -> None:
    rates = [9 * MEGABYTE, MEGABYTE, 9 * MEGABYTE, 9 * MEGABYTE, 50 * MEGABYTE, 0, 0]
    bed = Bed(rates, room, bulk=range(5))
    assert bed.filtered() == {0, 1, 2, 3, 5, 6}
    bed.looks()
    assert bed.filtered() == {0, 2, 3, 4, 5, 6}  # those of the other rule are worth nothing
    assert bed.deleted == 1


def test_flows_that_wait_for_their_rule_keep_no_filter_from_others() -> None:
    """However much they are worth: neither a free slot, nor that of a flow of less worth."""
    bulk = [60 * MEGABYTE] * MAX + [50 * MEGABYTE] * 20
    bed = Bed([*bulk, 20_000, MEGABYTE], room=MAX + 1, bulk=range(24))
    assert bed.filtered() == {0, 1, 2, 3, 24}
    bed.looks()
    assert bed.filtered() == {0, 1, 2, 3, 25}
    assert bed.deleted == 1
    assert f"goes to {key(25)}" in str(bed.flow(24).why)
    bed.nic = replace(bed.nic, budget=MAX + 2)
    bed.look()
    assert bed.filtered() == {0, 1, 2, 3, 24, 25}


def test_under_one_rule_users_have_equal_shares_at_once() -> None:
    attacker, victim = of(1000), of(1001)
    threads = [attacker] * 10 + [victim] * 10
    bed = Bed([MEGABYTE] * 20, 100, bulk=range(20), threads=threads)
    assert settled(bed) == {1000: MAX // 2, 1001: MAX // 2}


def test_a_user_takes_no_filter_that_its_rule_does_not_let_it_have() -> None:
    rich, poor = of(1000), of(1001)
    bed = Bed([MEGABYTE] * 21, 100, range(16, 21), threads=[rich] * 16 + [poor] * 5)
    bed.looks()
    assert bed.under() == {"rest": 16, "bulk": MAX}
    assert bed.deleted == 0


def test_ports_count_as_flows_do() -> None:
    idle = Idle()
    idle.memory.in_force = in_force(replace(RULE, filters_max=3))
    idle.listen(of(1), 5)
    idle.look()
    assert idle.filters().total() == 3
    assert {*map(str, idle.listeners.why_not.values())} == {FULL.replace("4", "3")}
    waits = idle.uses(50, of(1))
    assert (waits.state, str(waits.why)) == (FlowState.OVERFLOW, FULL.replace("4", "3"))


def test_the_connections_of_a_port_that_goes_get_no_more_than_its_rule_may_have() -> None:
    """The port's filter stays as long as they could not keep their queue."""
    server = Server()
    server.memory.in_force = in_force(replace(RULE, filters_max=2))
    server.done(server.look())
    for thread in (THREAD, OTHER):  # several read from it: its filter is to go
        server.reads(thread, SECOND_NS)
    some = server.look(connection(1, 2), connection(2, 2), now_ns=2 * SECOND_NS)
    assert [(each.action.kind, each.action.key) for each in some] == [(ActionKind.INSERT, key(1))]
    server.done(some)
    (last,) = server.look(connection(1, 2), now_ns=3 * SECOND_NS)
    assert (last.action.kind, last.action.key) == (ActionKind.DELETE, PORT)


def test_a_connection_is_placed_at_its_birth_as_long_as_its_rule_has_filters() -> None:
    memory = memory_of(FlowTable(100), in_force(replace(RULE, filters_max=3)))
    assert sum(connects(memory, n, of(1), room=100) for n in range(10)) == 3


def test_filters_that_come_under_a_rule_count_and_those_above_its_share_go() -> None:
    """As when flows have carried enough for another rule."""
    bed = Bed([MEGABYTE] * 8, 100, bulk=range(0))
    assert bed.under() == {"rest": 8}
    bed.looks(2)
    bed.bulk = range(8)
    for load in bed.loads:
        bed.report(load)
    assert bed.under() == {"bulk": 8}
    bed.look()
    assert bed.filtered() == {0, 1, 2, 3}  # nothing waited: what they are worth is not known
    assert bed.flow(7).state is FlowState.OVERFLOW
    assert str(bed.flow(7).why) == f"its rule has more than its share of the filters, {MAX}"
    bed.looks()
    assert bed.under() == {"bulk": MAX}


def test_another_policy_takes_the_filters_of_least_worth() -> None:
    bed = Bed([2 * MEGABYTE, MEGABYTE, 9 * MEGABYTE, 9 * MEGABYTE, 10], 100, bulk=range(5))
    bed.looks(2)
    assert bed.filtered() == {0, 1, 2, 3}
    bed.memory.in_force = in_force(replace(BULK, filters_max=2), REST)
    for _ in range(5):
        bed.look()
        assert bed.filtered() == {2, 3}


def test_a_filter_that_cannot_be_taken_stays() -> None:
    bed = Bed([MEGABYTE] * 6, 100, range(0), (), lambda action: action.kind is ActionKind.DELETE)
    bed.bulk = range(6)
    for load in bed.loads:
        bed.report(load)
    bed.looks(20)
    assert bed.under() == {"bulk": 6}


RULED = replace(RULE, filters_max=2)


def steered(number: int) -> Flow:
    return flow(number, state=FlowState.STEERED, location=number, target_queue=1, app_cpu=1)


def waiting(number: int) -> Flow:
    return flow(number, state=FlowState.OVERFLOW, app_cpu=1)


def known(*flows: Flow) -> Memory:
    made = memory_of(FlowTable(100), in_force(RULED))
    for each in flows:
        made.table.put(each)
    return made


def has_room(memory: Memory, number: int) -> bool:
    return budget.no_room(replace(NIC, budget=100), memory, key(number)) is None


def test_what_is_to_come_counts_and_not_against_itself() -> None:
    memory = known(steered(1), waiting(2), waiting(3))
    assert has_room(memory, 2)
    assert budget.full_rules(NIC, memory) == frozenset()
    insert = Action(ActionKind.INSERT, "nic", key(2), None, None, 1, Code.UNSAID(), "rest")
    budget.ask(insert, memory)
    assert (has_room(memory, 2), has_room(memory, 3)) == (True, False)
    assert budget.full_rules(NIC, memory) == {"rest"}
    memory = known(steered(1), waiting(2), waiting(3))
    memory.table.promise(key(2), True)
    assert (has_room(memory, 2), has_room(memory, 3)) == (True, False)


def test_one_that_comes_in_the_place_of_another_waits_until_that_has_gone() -> None:
    memory = known(steered(1), steered(2), waiting(3), waiting(4))
    memory.table.gives(key(1), (key(3),))
    assert (has_room(memory, 3), has_room(memory, 4)) == (False, False)
    memory = known(waiting(1), steered(2), waiting(3), waiting(4))
    memory.table.promise(key(3), True)
    assert (has_room(memory, 3), has_room(memory, 4)) == (True, False)


def test_nothing_is_taken_on_a_nic_that_is_not_armed() -> None:
    memory = known(steered(1), steered(2), steered(3))
    assert budget.surplus(replace(NIC, armed=False), memory, 0) == ()
    (taken,) = budget.surplus(NIC, memory, 0)
    assert (taken.kind, taken.key) == (ActionKind.DELETE, key(3))
    assert budget.surplus(NIC, memory, 0) == ()  # it is under way
