# SPDX-License-Identifier: GPL-2.0-or-later
"""One rule for the flows of a remote prefix or a local address: nobody else's, and nobody moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd.decide import aggregate, budget
from atfnd.decide.memory import Memory, Settling
from atfnd.decide.table import FlowTable
from atfnd.decide.wide import bits, covers
from atfnd.model import (
    Action,
    ActionKind,
    Facts,
    FlowKey,
    FlowRule,
    FlowState,
    Listening,
    Match,
    Mode,
    Network,
    Placement,
    Plan,
    Policy,
    Protocol,
    Rule,
    Shape,
    Thread,
)
from atfnd.move.plan import in_order
from atfnd.nic.location import choose, is_wide
from atfnd.policy.many import of_many
from atfnd.policy.match import Matcher
from bench.simulated import SECOND_NS, Load, Simulated
from tests.test_ports import EXACT_WINS, OTHER
from tests.values import RULE, THREAD

TCP, UDP = Protocol.TCP, Protocol.UDP
HERE, THERE = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
CPU = {THREAD.tid: 1, OTHER.tid: 2}
RATE = 1_000_000
SHAPES = frozenset(
    Shape(4, protocol, *address, *ports)
    for protocol in (TCP, UDP)
    for address in ((True, False), (False, True), (False, False))
    for ports in ((True, False), (False, True), (False, False))
)
ORDERED = replace(RULE, order=Mode.STRICT)
FAR = (Network(4, bytes([10, 9, 0, 0]), 16),)
LEFT = replace(ORDERED, name="left", placement=Placement.LEAVE)


def network(text: str, prefix: int) -> Network:
    return Network(4, bytes(map(int, text.split("."))), prefix)


class Bed(Simulated):
    """A table of so many filters, as two kinds of NIC classify by it: the lowest location wins, or
    the filter that names most. Fails where they differ, and when a write moves a flow that it is
    not for."""

    def __init__(self, loads: list[Load], rules: tuple[FlowRule, ...], slots: int, room: int,
                 served: tuple[Listening, ...] = ()) -> None:  # fmt: skip
        caps = replace(EXACT_WINS.caps, shapes=SHAPES, rule_slots=slots)
        orders = {each.name: each.order for each in rules if each.placement is Placement.CORE}
        known = Memory(FlowTable(1000), Settling(100, 1 << 60, order_by_policy=orders))
        nic = replace(EXACT_WINS, caps=caps, budget=room, foreign=0)
        super().__init__(nic, ORDERED, known, loads, slots=slots, served=served, spanned=True)
        self.rules, self._matcher = rules, Matcher(_policy(rules))

    def rule_for(self, key: FlowKey) -> FlowRule | None:
        return self._matcher.first_match(Facts(key, interface="nic"))

    def rule_of(self, wide: FlowKey) -> FlowRule | None:
        if wide.listens:
            rule = self._matcher.of_port(Facts(wide, interface="nic"))
        else:
            rule = of_many(self.rules, wide, "nic")
        return None if rule is None or rule.placement is Placement.LEAVE else rule

    def location_for(self, key: FlowKey) -> int | None:
        slots = self.slots or 0
        free = sum(1 << at for at in range(slots) if at not in self.held)
        return choose(free, slots, is_wide(Match.of(key)), lambda at: self.held[at][0].wide)

    def queue_of(self, key: FlowKey) -> int:
        catching = [(at, *held) for at, held in self.held.items() if covers(held[0], key)]
        if not catching:
            return self._rss[key]
        lowest = min(catching)
        narrowest = max(catching, key=lambda each: (not each[1].wide, bits(each[1]), -each[0]))
        assert lowest[2] == narrowest[2], "NICs would differ"
        return lowest[2]

    def carry_out(self, plan: Plan) -> None:
        for action in in_order(plan):
            before = {load.key: self.queue_of(load.key) for load in self.loads}
            may = self.may_move(action)
            super().carry_out((action,))
            moved = {key for key in before if self.queue_of(key) != before[key]}
            assert moved <= may, f"{action} moved {moved - may}"

    def may_move(self, action: Action) -> set[FlowKey]:
        """Its flow; of a rule for many those that wait for just this; none, where a rule is said to
        be needless."""
        if action.key is None:
            return set()
        if not action.key.wide:
            return set() if "leads it there too" in action.why else {action.key}
        if action.kind is not ActionKind.INSERT:
            return set()
        flows = [each for each in self.memory.table if budget.waits(each)]
        at = {each.key: aggregate.belongs(each, self.nic, self.memory) for each in flows}
        return {key for key, queue in at.items() if queue == action.new}

    def spans(self) -> set[FlowKey]:
        return {held for held, _ in self.held.values() if held.wide and not held.listens}

    def check(self) -> None:
        """Every flow is delivered as it would be with a rule of its own, if it has to have one."""
        for load in self.loads:
            at, rule = self.queue_of(load.key), self.rule_for(load.key)
            flow = self.memory.table.get(load.key)
            if rule is None or rule.placement is Placement.LEAVE:
                assert at == load.rss_queue, f"{load.key} is to be left alone"
            elif flow is not None and flow.state in (FlowState.STEERED, FlowState.PORT):
                assert at == flow.target_queue
                assert flow.policy == rule.name
            wide = self.memory.table.covering(load.key)
            if wide is not None:
                assert rule is not None
                assert wide.policy == rule.name


def _policy(rules: tuple[FlowRule, ...]) -> Policy:
    return Policy((), rules, "auto", 1000, 0, ())


def load(
    remote: str, remote_port: int, thread: Thread = THREAD, *, rss: int = 3, local_port: int = 0,
    local: bytes = HERE, protocol: Protocol = TCP, rate: int = RATE, number: int = 0,
) -> Load:  # fmt: skip
    port = local_port or 40_000 + number
    there = bytes(map(int, remote.split(".")))
    key = FlowKey(protocol, local, port, there, remote_port)
    return Load(key, CPU[thread.tid], rate, rss, thread)


def clients(count: int, thread: Thread = THREAD, net: str = "10.1.0", **more: object) -> list[Load]:
    return [
        load(f"{net}.{1 + number}", 443, thread, number=number, **more)  # type: ignore[arg-type]
        for number in range(count)
    ]


def bed(loads: list[Load], *rules: FlowRule, room: int = 4, looks: int = 8) -> Bed:
    made = Bed(loads, rules or (ORDERED,), slots=64, room=room)
    made.start()
    for _ in range(looks):
        made.look()
        made.check()
    return made


def span(prefix: str, bits: int, remote_port: int = 0, **fields: object) -> FlowKey:
    key = FlowKey(TCP, HERE, 0, bytes(map(int, prefix.split("."))), remote_port, bits)
    return key._replace(**fields)  # type: ignore[arg-type]


def test_clients_of_one_network_come_by_one_rule() -> None:
    made = bed(clients(9))
    assert {held for held, _ in made.held.values()} == made.spans() == {span("10.1.0.0", 24, 443)}
    assert made.placed() == 1
    states = {flow.state for flow in made.memory.table if not flow.key.wide}
    assert states == {FlowState.PORT}


def test_udp_flows_of_one_port_come_by_one_rule() -> None:
    made = bed([load(f"10.1.{n}.7", 5000 + n, local_port=53, protocol=UDP) for n in range(9)])
    assert made.spans() == {span("10.1.0.0", 16, protocol=UDP, local_port=53)}
    assert made.placed() == 1


def test_flows_to_one_local_address_come_by_one_rule() -> None:
    everywhere = [
        load(f"{20 + n}.0.0.1", 5000 + n, local_port=80 + n, local=THERE) for n in range(9)
    ]
    made = bed(everywhere)
    assert made.spans() == {FlowKey(TCP, THERE, 0, bytes(4), 0)}
    assert made.placed() == 1


def test_where_flows_diverge_prefixes_are_narrower() -> None:
    made = bed([*clients(5, THREAD, "10.1.0"), *clients(5, OTHER, "10.1.1")])
    assert made.spans() == {span("10.1.0.0", 24, 443), span("10.1.1.0", 24, 443)}
    assert made.placed() == 1


def test_a_flow_that_goes_elsewhere_later_gets_its_own_rule() -> None:
    made = bed(clients(9))
    other = load("10.1.0.77", 443, OTHER, number=77)
    made.arrive([other])
    for _ in range(3):
        made.look()
        made.check()
    assert {held for held, _ in made.held.values()} == {span("10.1.0.0", 24, 443), other.key}
    assert made.placed() == 1


@pytest.mark.parametrize(
    "rule",
    [
        replace(LEFT, remote=(network("10.1.0.128", 25),)),
        replace(ORDERED, name="another", remote=(network("10.1.0.128", 25),)),
        replace(LEFT, processes=("secret",)),
        replace(LEFT, min_bytes=0, ports=((443, 443),), remote=(network("10.1.0.200", 32),)),
    ],
)
def test_no_rule_takes_what_another_rule_of_the_policy_may_have(rule: FlowRule) -> None:
    """Not even where no such flow is there yet."""
    made = Bed(clients(9), (rule, ORDERED), slots=64, room=4)
    wide = span("10.1.0.0", 24, 443)
    assert made.rule_of(wide) is None
    assert bed(clients(9), rule, ORDERED).spans() & {wide} == set()


def test_a_socket_that_has_no_rule_and_is_elsewhere_is_not_moved() -> None:
    """RSS delivers it where it is used, so that nobody ever told of it."""
    right = load("10.1.0.99", 443, OTHER, rss=2, number=99)
    made = bed([*clients(9), right])
    assert made.queue_of(right.key) == 2
    assert made.spans()
    assert not any(covers(each, right.key) for each in made.spans())


def test_a_filter_of_somebody_else_is_not_overruled() -> None:
    made = Bed(clients(9), (ORDERED,), slots=64, room=4)
    theirs = Match(4, TCP, bytes([10, 1, 0, 0]), 24, None, 0, None, None)
    made.nic = replace(made.nic, theirs=(Rule(0, theirs, 3),))
    made.start()
    for _ in range(5):
        made.look()
    assert made.spans() == set()


def test_only_filters_that_the_nic_was_shown_to_take() -> None:
    made = Bed(clients(9), (ORDERED,), slots=64, room=4)
    address = Shape(4, TCP, False, False, False, False)
    made.nic = replace(made.nic, caps=replace(made.nic.caps, shapes=frozenset({address})))
    made.start()
    for _ in range(8):
        made.look()
        made.check()
    assert made.spans() == {FlowKey(TCP, HERE, 0, bytes(4), 0)}


def test_a_rule_that_was_put_off_is_tried_later_and_takes_no_filter_meanwhile() -> None:
    made = Bed(clients(9), (ORDERED,), slots=64, room=4)
    tried: list[int] = []

    def defers(action: Action) -> bool:
        wide = action.key is not None and action.key.wide
        tried.extend([made.now_ns] if wide else [])
        return wide

    made.defers = defers
    made.start()
    for _ in range(40):
        made.look()
        made.check()
    assert made.spans() == set()
    assert len(made.held) >= 3
    by_second = sorted({at // SECOND_NS for at in tried})
    assert len(by_second) < 16
    made.defers = lambda action: False
    for _ in range(80):
        made.look()
    assert made.spans()


def test_a_span_that_nobody_comes_by_goes() -> None:
    made = bed(clients(9))
    assert made.spans()
    made.loads = [load("99.0.0.1", 80, OTHER)]
    made._rss[made.loads[0].key], made._cookies[made.loads[0].key] = 3, 99
    for _ in range(10):
        made.look()
    assert made.spans() == set()
    assert not made.memory.table.spans("nic")


def flows() -> st.SearchStrategy[list[Load]]:
    remotes = st.sampled_from(["10.1.0", "10.1.1", "10.1.128", "10.9.1"])
    return st.lists(
        st.builds(
            lambda net, host, port, remote_port, local, protocol, thread, rss, rate: load(
                f"{net}.{host}",
                remote_port if port > 1024 else 50_000 + host,  # from no service to a service
                thread,
                local_port=port,
                local=local,
                protocol=protocol,
                rss=rss,
                rate=rate,
            ),
            remotes,
            st.integers(1, 6),
            st.sampled_from([80, 443, 40_001, 40_002, 40_003, 40_004]),
            st.sampled_from([443, 8443, 50_001, 50_002, 50_003]),
            st.sampled_from([HERE, THERE]),
            st.sampled_from([TCP, UDP]),
            st.sampled_from([THREAD, OTHER]),
            st.integers(0, 3),
            st.integers(0, 10**8),
        ),
        max_size=16,
        unique_by=lambda each: each.key,
    )


def policies() -> st.SearchStrategy[tuple[FlowRule, ...]]:
    ends: list[dict[str, object]] = [
        {"remote": FAR},
        {"remote": (network("10.1.1.0", 24),)},
        {"remote": (network("10.1.0.4", 30),)},
        {"local": (network("10.0.0.2", 32),)},
        {"protocols": frozenset({UDP})},
        {"ports": ((443, 443),)},
        {"ports": ((80, 80),), "remote": FAR},
    ]
    rule = st.builds(
        lambda number, asks, left: replace(  # type: ignore[misc]
            LEFT if left else ORDERED, name=f"r{number}", **asks
        ),
        st.integers(0, 999),
        st.sampled_from(ends),
        st.booleans(),
    )
    some = st.lists(rule, max_size=3, unique_by=lambda each: each.name)
    return some.map(lambda rules: (*rules, ORDERED))


def listeners(loads: list[Load]) -> Iterator[Listening]:
    for number, port in enumerate((80, 443)):
        key = FlowKey(TCP, HERE, port, bytes(4), 0)
        yield Listening(0, 10_000 + number, key, 1)


@settings(deadline=None)
@given(
    first=flows(),
    then=flows(),
    rules=policies(),
    slots=st.sampled_from([16, 32, 48]),
    room=st.integers(0, 12),
    served=st.booleans(),
    puts_off=st.lists(st.booleans(), max_size=30),
)
def test_classified_as_with_one_rule_a_flow(
    first: list[Load], then: list[Load], rules: tuple[FlowRule, ...], slots: int, room: int,
    served: bool, puts_off: list[bool],
) -> None:  # fmt: skip
    who = tuple(listeners(first)) if served else ()
    made = Bed(first, rules, slots, min(room, slots), who)
    made.defers = lambda action: puts_off.pop() if puts_off else False
    made.start()
    for number in range(14):
        if number == 7:
            known = {each.key for each in made.loads}
            made.arrive(each for each in then if each.key not in known)
        made.look()
        made.check()
        assert len(made.held) <= room
