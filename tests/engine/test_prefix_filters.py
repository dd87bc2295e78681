# SPDX-License-Identifier: GPL-2.0-or-later
"""One rule for the flows of a remote prefix or a local address: nobody else's, and nobody moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine.table.wide_key import covers
from atfnd.model import Action, Filter, FlowKey, FlowRule, FlowState, Match, Shape, Thread
from bench.simulated import SECOND_NS, Load
from tests.engine.test_port_filters import OTHER
from tests.prefixed import HERE, LEFT, ORDERED, TCP, THERE, UDP, Bed, load, network
from tests.values import THREAD

__all__: list[str] = []


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


def prefix_key(prefix: str, bits: int, remote_port: int = 0, **fields: object) -> FlowKey:
    key = FlowKey(TCP, HERE, 0, bytes(map(int, prefix.split("."))), remote_port, bits)
    return key._replace(**fields)  # type: ignore[arg-type]


def test_clients_of_one_network_come_by_one_rule() -> None:
    made = bed(clients(9))
    assert (
        {held for held, _ in made.held.values()}
        == made.prefix_filters()
        == {prefix_key("10.1.0.0", 24, 443)}
    )
    assert made.placed() == 1
    states = {flow.state for flow in made.memory.table if not flow.key.wide}
    assert states == {FlowState.PORT}


def test_udp_flows_of_one_port_come_by_one_rule() -> None:
    made = bed([load(f"10.1.{n}.7", 5000 + n, local_port=53, protocol=UDP) for n in range(9)])
    assert made.prefix_filters() == {prefix_key("10.1.0.0", 16, protocol=UDP, local_port=53)}
    assert made.placed() == 1


def test_flows_to_one_local_address_come_by_one_rule() -> None:
    everywhere = [
        load(f"{20 + n}.0.0.1", 5000 + n, local_port=80 + n, local=THERE) for n in range(9)
    ]
    made = bed(everywhere)
    assert made.prefix_filters() == {FlowKey(TCP, THERE, 0, bytes(4), 0)}
    assert made.placed() == 1


def test_where_flows_diverge_prefixes_are_narrower() -> None:
    made = bed([*clients(5, THREAD, "10.1.0"), *clients(5, OTHER, "10.1.1")])
    assert made.prefix_filters() == {
        prefix_key("10.1.0.0", 24, 443),
        prefix_key("10.1.1.0", 24, 443),
    }
    assert made.placed() == 1


def test_a_flow_that_goes_elsewhere_later_gets_its_own_rule() -> None:
    made = bed(clients(9))
    other = load("10.1.0.77", 443, OTHER, number=77)
    made.arrive([other])
    for _ in range(3):
        made.look()
        made.check()
    assert {held for held, _ in made.held.values()} == {prefix_key("10.1.0.0", 24, 443), other.key}
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
    wide = prefix_key("10.1.0.0", 24, 443)
    assert made.rule_of(wide) is None
    assert bed(clients(9), rule, ORDERED).prefix_filters() & {wide} == set()


def test_a_socket_that_has_no_rule_and_is_elsewhere_is_not_moved() -> None:
    """RSS delivers it where it is used, so that it was never reported."""
    right = load("10.1.0.99", 443, OTHER, rss=2, number=99)
    made = bed([*clients(9), right])
    assert made.queue_of(right.key) == 2
    assert made.prefix_filters()
    assert not any(covers(each, right.key) for each in made.prefix_filters())


def test_a_filter_of_somebody_else_is_not_overruled() -> None:
    made = Bed(clients(9), (ORDERED,), slots=64, room=4)
    theirs = Match(4, TCP, bytes([10, 1, 0, 0]), 24, None, 0, None, None)
    made.nic = replace(made.nic, theirs=(Filter(0, theirs, 3),))
    made.start()
    for _ in range(5):
        made.look()
    assert made.prefix_filters() == set()


def test_only_filters_that_the_nic_was_shown_to_take() -> None:
    made = Bed(clients(9), (ORDERED,), slots=64, room=4)
    address = Shape(4, TCP, False, False, False, False)
    made.nic = replace(made.nic, caps=replace(made.nic.caps, shapes=frozenset({address})))
    made.start()
    for _ in range(8):
        made.look()
        made.check()
    assert made.prefix_filters() == {FlowKey(TCP, HERE, 0, bytes(4), 0)}


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
    assert made.prefix_filters() == set()
    assert len(made.held) >= 3
    by_second = sorted({at // SECOND_NS for at in tried})
    assert len(by_second) < 16
    made.defers = lambda action: False
    for _ in range(80):
        made.look()
    assert made.prefix_filters()


def test_a_prefix_rule_that_serves_no_flow_goes() -> None:
    made = bed(clients(9))
    assert made.prefix_filters()
    made.loads = [load("99.0.0.1", 80, OTHER)]
    made._rss[made.loads[0].key], made._cookies[made.loads[0].key] = 3, 99
    for _ in range(10):
        made.look()
    assert made.prefix_filters() == set()
    assert not made.memory.table.prefix_filters("nic")
