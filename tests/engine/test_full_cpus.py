# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs that are full while others are not: packets are not brought to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.engine import Engine
from atfnd.engine.event import LoadRead, NicAttached
from atfnd.engine.filters import budget
from atfnd.engine.filters.listeners import Asked
from atfnd.engine.placement import steer
from atfnd.engine.placement.load import FullCpus, FullTerms
from atfnd.model import Action, ActionKind, Cpu, FlowRule, FlowState, Mode, Placement
from atfnd.model.reason import Code, Why
from tests.engine.test_port_filters import PORT, SECOND_NS, Server, connection
from tests.engine.test_steer_placements import LLC, Machine
from tests.values import NIC, RULE, THREAD, flow, key

__all__: list[str] = []

LOOK_NS = 2 * SECOND_NS
CPUS = {i: Cpu(i, True, i // 2, 0, i, (i,), (i & 2, (i & 2) + 1)) for i in range(4)}
WHY = Code.LEFT_FULL(0)
STRICT = replace(RULE, order=Mode.STRICT)
FULL, CALM, BUSY = {0: 100, 1: 10}, {0: 10, 1: 10}, {0: 70, 1: 10}


class Looks:
    """Readings of the load, one every two seconds."""

    def __init__(self) -> None:
        self.full, self.now_ns = FullCpus(), 0
        self.look({0: 0, 1: 0, 2: 0, 3: 0})

    def look(self, busy: dict[int, int], times: int = 1) -> set[int]:
        for _ in range(times):
            self.full.look(busy, CPUS, self.now_ns)
            self.now_ns += LOOK_NS
        return set(self.full.cpus)

    def until_not_full(self, busy: dict[int, int], most: int = 1000) -> int:
        """How many looks it takes."""
        return next(n for n in range(1, most) if not self.look(busy))


def test_a_cpu_is_full_where_another_under_its_cache_has_room() -> None:
    assert Looks().look({0: 95, 1: 90, 2: 0, 3: 0}) == {0}
    assert Looks().look({0: 94, 1: 90}) == set()
    assert Looks().look({0: 100, 1: 91, 2: 0, 3: 0}) == set()  # that one is under another cache
    assert Looks().look({0: 100}) == set()  # CPU 1 is offline
    assert Looks().look({0: 100, 1: 0, 9: 100}) == {0}  # nothing is known of CPU 9


def test_what_lasts_only_for_a_moment_does_not_count() -> None:
    """Looks may come more often than usual."""
    looks = Looks()
    for _ in range(14):
        looks.now_ns += SECOND_NS // 10 - LOOK_NS
        assert looks.look(FULL) == set()
    looks.now_ns += SECOND_NS // 10 - LOOK_NS
    looks.look(CALM)
    looks.now_ns += SECOND_NS // 10 - LOOK_NS
    assert looks.look(FULL) == set()


def test_it_is_full_until_it_has_had_slack_for_long() -> None:
    looks = Looks()
    assert looks.look(FULL) == {0}
    assert looks.look(BUSY, 100) == {0}  # it could not take its packets back
    assert looks.look({0: 100, 1: 100}, 100) == {0}  # RSS has its packets, and stays as good
    assert looks.look(CALM, 4) == {0}
    assert looks.look(BUSY) == {0}
    assert looks.until_not_full(CALM) == 5
    assert looks.look(BUSY, 100) == set()


def test_each_time_that_it_is_full_soon_again_it_stays_so_for_twice_as_long() -> None:
    looks = Looks()
    found = []
    for _ in range(9):
        looks.look(FULL)
        found.append(looks.until_not_full(CALM))
    assert found == [5, 10, 20, 40, 80, 160, 320, 320, 320]
    looks.look(CALM, 640)
    looks.look(FULL)
    assert looks.until_not_full(CALM) == 5


def test_soon_again_counts_from_when_it_was_full_no_longer() -> None:
    looks = Looks()
    looks.look(FULL)
    looks.look(BUSY, 1000)
    assert looks.until_not_full(CALM) == 5
    looks.look(FULL)
    assert looks.until_not_full(CALM) == 10


def test_a_cpu_that_goes_offline_and_a_load_that_is_not_known_any_more() -> None:
    looks = Looks()
    looks.look(FULL)
    assert looks.look({1: 10}) == set()
    looks.look(FULL)
    assert looks.look({}) == set()
    assert looks.look(FULL) == set()  # for how long is not known
    assert looks.look(FULL) == {0}


@given(st.lists(st.dictionaries(st.integers(0, 4), st.integers(0, 100)), max_size=60))
def test_whatever_is_read(busy: list[dict[int, int]]) -> None:
    looks = Looks()
    changes, before = 0, set[int]()
    for each in busy:
        now = looks.look(each)
        changes, before = changes + len(now - before), now
        assert now <= each.keys() & CPUS.keys()
    assert looks.full.times.keys() <= CPUS.keys()
    assert max((times for times, _ in looks.full.times.values()), default=0) <= FullTerms().doubled


class Host(Machine):
    """The engine's own memory, and readings of the load."""

    def __init__(self, rule: FlowRule = STRICT) -> None:
        super().__init__(rule)
        self.engine = Engine(self.memory)
        self.engine.handle(NicAttached(NIC, armed=True), self.now_ns)
        self.nic = self.memory.nics["nic"].view
        self.reads(CALM)

    def reads(self, busy: dict[int, int], times: int = 1) -> list[ActionKind]:
        """What the readings lead to, which is carried out."""
        done = list[ActionKind]()
        for _ in range(times):
            self.now_ns += LOOK_NS
            self.memory.full.look(busy, self.memory.cpus, self.now_ns)
            plan = steer.relieve({"nic": self.nic}, self.memory, self.now_ns)
            self.carry_out(plan)
            done += [each.kind for each in plan if each.key is not None]
        return done


def test_a_thread_that_goes_to_another_cpu_takes_its_flow_along() -> None:
    host = Host()
    host.reads(FULL)
    host.uses(0)
    found = {(each.kind, each.new) for each in host.uses(1)}
    assert found == {(ActionKind.INSERT, 1)}
    host.memory.table.put(host.flow()._replace(app_cpu=0))  # and back, as another flow says
    assert host.reads(FULL) == [ActionKind.DELETE]


@pytest.mark.parametrize(
    "rule", [replace(RULE, full_core="stay"), LLC, replace(RULE, placement=Placement.AUTO)],
    ids=["stays", "goes elsewhere anyway", "is measured"],
)  # fmt: skip
def test_other_rules_do_not_depend_on_it(rule: FlowRule) -> None:
    host = Host(rule)
    host.uses(0)
    where = host.flow().location
    assert host.reads(FULL, 3) == []
    assert where is not None
    assert (host.flow().left, host.flow().location) == (None, where)


def test_what_another_program_steers_is_left_alone() -> None:
    host = Host()
    host.memory.table.put(flow(1, state=FlowState.MANUAL, app_cpu=0, thread=THREAD))
    assert host.reads(FULL) == []
    assert host.flow().left is None


def test_a_flow_is_steered_again_only_when_its_filter_has_gone() -> None:
    host = Host()
    host.uses(0)
    before = host.flow().location
    host.now_ns += LOOK_NS
    host.memory.full.look(FULL, host.memory.cpus, host.now_ns)
    steer.relieve({"nic": host.nic}, host.memory, host.now_ns)  # and the delete takes its time
    assert host.reads(CALM, 6) == []
    assert (host.flow().left, host.memory.full.unfinished) == (WHY, True)
    host.memory.table.put(host.flow()._replace(location=None))
    assert before is not None
    assert host.reads(CALM) == [ActionKind.INSERT]
    assert not host.memory.full.unfinished


def test_a_load_of_cpus_without_flows_is_not_worth_a_word() -> None:
    host = Host()
    assert host.engine.handle(LoadRead(FULL), host.now_ns + LOOK_NS) == []
    assert host.memory.full.cpus == {0}


def filled(server: Server, cpu: int) -> None:
    server.memory.know_cpus(CPUS.values())
    server.memory.in_force = replace(server.memory.in_force, by_name={"rest": STRICT})
    for at_ns in (LOOK_NS, 2 * LOOK_NS):
        busy = dict.fromkeys(CPUS, 0) | {cpu: 100}
        server.memory.full.look(busy, server.memory.cpus, at_ns)


def used(server: Server, *cpus: int) -> None:
    """Connections of its port, on these CPUs."""
    for number, cpu in enumerate(cpus, start=1):
        connected = flow(number, thread=THREAD, app_cpu=cpu, rx_queue=2, target_queue=2)
        server.memory.table.put(connected)


def test_a_ports_filter_goes_after_each_connection_has_one_of_its_own_and_these_go_then() -> None:
    server = Server()
    server.done(server.look())
    used(server, 2)
    filled(server, 2)
    own, gone = server.look(connection(1, 2), now_ns=3 * LOOK_NS)
    assert (own.action.kind, own.action.key, own.action.new) == (ActionKind.INSERT, key(1), 2)
    assert gone.action.kind is ActionKind.DELETE
    assert server.why == str(Code.LEFT_FULL(2))
    server.done((own,))
    nics = {"nic": server.nic}
    assert steer.relieve(nics, server.memory, 4 * LOOK_NS) == ()  # the port's filter is still there
    server.done((gone,))
    kinds = [each.kind for each in steer.relieve(nics, server.memory, 5 * LOOK_NS)]
    assert kinds == [ActionKind.DELETE]


@pytest.mark.parametrize("left", [None, Code.LEFT_WANDERS("it wanders")])
def test_a_ports_filter_waits_for_moves_that_were_planned_with_it(left: Why | None) -> None:
    """A driver that deletes and inserts to rewrite delivers by the port's filter in between."""
    server = Server()
    server.done(server.look())
    known = flow(1, thread=THREAD, app_cpu=2, rx_queue=2, target_queue=1, location=5, left=left)
    server.memory.table.put(known)
    filled(server, 2)
    action = Action(
        ActionKind.REWRITE, "nic", key(1), 5, 1, 2, Code.KERNEL("its thread moved"), "rest"
    )
    if left is None:
        budget.ask(action, server.memory)
    assert server.look(connection(1, 1), now_ns=3 * LOOK_NS) == ()
    budget.ended(action, server.memory)
    server.memory.table.put(known._replace(left=None))
    (gone,) = server.look(connection(1, 1), now_ns=4 * LOOK_NS)
    assert gone.action.kind is ActionKind.DELETE


def test_a_delete_that_was_put_off_is_not_waited_for_by_the_moves_that_it_waits_for() -> None:
    server = Server()
    server.done(server.look())
    known = flow(
        1, thread=THREAD, app_cpu=2, rx_queue=2, target_queue=1, location=5, left=Code.LEFT_GROUP()
    )
    server.memory.table.put(known)
    filled(server, 2)
    server.listeners.asked[PORT] = Asked(3 * LOOK_NS, 2)
    for at_ns, asked in ((3 * LOOK_NS + SECOND_NS, True), (6 * LOOK_NS, False)):
        assert server.look(connection(1, 1), now_ns=at_ns) == ()
        assert (PORT in server.listeners.asked) is asked


@pytest.mark.parametrize("cpus", [(2, 3), (3, 2)])
def test_a_port_that_threads_of_other_cpus_serve_too_keeps_its_filter(cpus: tuple[int]) -> None:
    server = Server()
    server.done(server.look())
    used(server, *cpus)
    filled(server, 2)
    looked = server.look(connection(1, 2), connection(2, 2), now_ns=3 * LOOK_NS)
    assert ActionKind.DELETE not in [each.action.kind for each in looked]
