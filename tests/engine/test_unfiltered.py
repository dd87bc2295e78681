# SPDX-License-Identifier: GPL-2.0-or-later
"""Which flows a filter for many would catch: none is overlooked, and none of another NIC counts."""

from __future__ import annotations

from typing import Any

from atfnd.engine.filters.unfiltered import Unfiltered
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import RulesInForce
from atfnd.model import Flow, FlowKey, FlowState, Protocol, SocketUse
from tests.engine.test_birth import owning
from tests.values import NIC, THREAD, flow, key, memory_of

__all__: list[str] = []

NET = key(0)._replace(remote=bytes([10, 1, 0, 0]), remote_port=0, remote_prefix=24)
LOCAL = key(0)._replace(remote=bytes(4), remote_port=0)
ANY = key(1)._replace(protocol=Protocol.UDP, remote=bytes(4), remote_port=0)
UDP_NET = NET._replace(protocol=Protocol.UDP)


def caught(
    wide: FlowKey, *flows: Flow, uses: tuple[SocketUse, ...] = ()
) -> dict[FlowKey, tuple[int | None, str | None]]:
    """Where each should go, and by which policy."""
    memory = memory_of(FlowTable(100), RulesInForce(100, 10**12))
    memory.nics["nic"].owned = owning({1: THREAD})
    for each in flows:
        memory.table.put(each)
    found = Unfiltered(NIC, uses, memory).overlapping(wide)
    return {each.key: (each.queue, each.policy) for each in found}


def use(of: FlowKey, napi_id: int | None = 102) -> SocketUse:
    return SocketUse(77, of, None, napi_id, None, 0)


def waiting(number: int, **changes: Any) -> Flow:
    return flow(number, state=FlowState.OVERFLOW, **changes)


def test_one_that_waits_should_go_to_its_owners_queue_and_another_stays_where_it_arrives() -> None:
    assert caught(NET, waiting(1), uses=(use(key(1)),)) == {key(1): (1, "rest")}
    assert caught(NET, flow(1), uses=(use(key(1)),)) == {key(1): (2, "rest")}
    assert caught(NET, uses=(use(key(1)),)) == {key(1): (2, None)}
    assert caught(NET, uses=(use(key(1), None),)) == {key(1): (None, None)}


def test_a_flow_with_a_rule_of_its_own_is_not_caught_unless_that_leaves_the_remote_open() -> None:
    steered = flow(1, location=5, target_queue=3, state=FlowState.STEERED)
    assert caught(NET, steered) == {}
    assert caught(UDP_NET, steered._replace(key=ANY)) == {ANY: (3, "rest")}


def test_a_socket_that_is_open_to_any_remote_is_caught_by_every_prefix() -> None:
    assert caught(UDP_NET, uses=(use(ANY),)) == {ANY: (2, None)}
    other_port = ANY._replace(local_port=80)
    assert caught(UDP_NET, uses=(use(other_port),)) == {}


def test_flows_of_another_nic_and_rules_for_many_are_no_flows_of_it() -> None:
    there = waiting(2, nic="other")
    many = flow(0, key=NET._replace(remote_prefix=28, remote_port=1000))
    assert caught(NET, waiting(1), there, many) == {key(1): (1, "rest")}


def test_of_a_network_only_flows_to_the_named_port_are_caught() -> None:
    other = key(2)._replace(local_port=80)
    assert caught(NET, waiting(1), waiting(2, key=other)) == {key(1): (1, "rest")}
    outside = key(256)
    assert caught(NET, waiting(3, key=outside)) == {}
