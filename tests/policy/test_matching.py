# SPDX-License-Identifier: GPL-2.0-or-later
"""Under which rule flows fall over time: as they are seen, and looked at again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import (
    Connecting,
    Direction,
    FlowKey,
    FlowRule,
    Placement,
    Policy,
    Process,
    Protocol,
    SocketSeen,
    SocketUse,
)
from atfnd.observe.processes.process import Processes
from atfnd.policy.match.matching import Matching, Sources
from tests.observe.test_process import tree
from tests.values import NIC, RULE, THREAD, flow, key, seen

SECOND_NS = 10**9
MBIT = 10**6
FAST = replace(RULE, name="fast", min_rate_bit_s=100 * MBIT)
REST = replace(RULE, name="rest")
LEFT = replace(RULE, name="left", placement=Placement.LEAVE)


def policy(*rules: FlowRule, most: int = 16) -> Policy:
    return Policy((), rules, "auto", most, 0, ())


def name(rule: FlowRule | None) -> str | None:
    return None if rule is None else rule.name


def use(event: SocketSeen, carried: int, **changes: Any) -> SocketUse:
    plain = SocketUse(event.cookie, event.key, None, event.napi_id, None, carried)
    return plain._replace(**changes)


def test_a_flow_becomes_fast() -> None:
    matching, table = Matching(policy(FAST, REST)), FlowTable(16)
    event = seen(1, 0, bytes=0)
    assert name(matching.seen(event, NIC, 0)) == "rest"
    assert matching.waiting()
    # No rate is given for less than a second.
    assert matching.again([use(event, 10**9)], table.get, SECOND_NS - 1) == []
    slow, fast = 20 * 10**6, 20 * 10**6 + 25 * 10**6
    assert matching.again([use(event, slow)], table.get, 2 * SECOND_NS) == []  # 80 Mbit/s
    [again] = matching.again([use(event, fast)], table.get, 4 * SECOND_NS)  # 100 Mbit/s
    assert again == event._replace(bytes=fast)
    assert name(matching.seen(again, NIC, 4 * SECOND_NS)) == "fast"
    # It pauses, then its thread moves: it is what it was.
    assert matching.again([use(event, fast)], table.get, 60 * SECOND_NS) == []
    later = event._replace(app_cpu=1, bytes=fast)
    assert name(matching.seen(later, NIC, 61 * SECOND_NS)) == "fast"


@pytest.mark.parametrize(
    "later", [{"min_bytes": 1000}, {"min_age_ns": 5 * SECOND_NS}, {"min_rate_bit_s": 100}], ids=str
)
def test_every_threshold_is_looked_at_again(later: dict[str, Any]) -> None:
    """Also of a flow that no rule has matched, as RSS delivers it."""
    matching, table = Matching(policy(replace(RULE, **later))), FlowTable(16)
    event = seen(1, 0, bytes=10)
    assert matching.seen(event, NIC, 1) is None
    assert matching.again([use(event, 20)], table.get, 2 * SECOND_NS) == []
    [again] = matching.again([use(event, 2000)], table.get, 5 * SECOND_NS)
    assert name(matching.seen(again, NIC, 5 * SECOND_NS)) == "rest"


def test_it_is_where_the_table_has_it_by_now() -> None:
    matching, table = Matching(policy(FAST, REST)), FlowTable(16)
    event = seen(1, 0, bytes=0)
    matching.seen(event, NIC, 0)
    table.put(flow(1, app_cpu=2))  # its thread took it along
    [again] = matching.again([use(event, 10**9, rx_cpu=1)], table.get, SECOND_NS)
    assert again.at_ns == event.at_ns  # what is answered to it answers that report
    assert (again.app_cpu, again.rx_cpu) == (2, 1)


def test_what_cannot_change_is_not_looked_at_and_what_is_gone_is_forgotten() -> None:
    matching = Matching(policy(REST, FAST))
    assert name(matching.seen(seen(1, 0), NIC, 0)) == "rest"
    assert not matching.waiting()
    matching = Matching(policy(FAST))
    matching.seen(seen(1, 0), NIC, 0)
    assert matching.waiting()
    matching.again([], FlowTable(16).get, SECOND_NS)
    assert not matching.waiting()


def test_no_more_are_remembered_than_the_table_holds() -> None:
    matching, table = Matching(policy(FAST, most=2)), FlowTable(16)
    events = [seen(number, 0, bytes=0) for number in range(3)]
    for event in events:
        matching.seen(event, NIC, 0)
    found = matching.again([use(event, 10**9) for event in events], table.get, SECOND_NS)
    assert [event.key for event in found] == [key(0), key(1)]


def test_a_process_is_read_when_a_rule_asks(tmp_path: Path) -> None:
    tree(tmp_path, "0::/system.slice/a.service\n")
    ours = replace(RULE, name="unit", units=("a.service",))
    event = seen(1, 0, thread=replace(THREAD, pid=7))
    matching = Matching(policy(ours, REST), Sources(Processes(str(tmp_path)).of))
    assert name(matching.seen(event, NIC, 0)) == "unit"
    assert name(matching.seen(seen(2, 0, thread=replace(THREAD, pid=8)), NIC, 0)) == "rest"
    assert name(matching.seen(seen(3, 0, thread=None), NIC, 0)) == "rest"
    born = Connecting(0, 1, key(1), 0, replace(THREAD, pid=7), 0)
    assert name(matching.connecting(born, "nic", 0)) == "unit"
    port = key(1)._replace(remote=bytes(4), remote_port=0)
    assert name(matching.of_port(port, replace(THREAD, pid=7), "nic", 0)) == "unit"


def test_the_nic_and_the_direction() -> None:
    here = replace(RULE, name="here", interfaces=("nic",))
    there = replace(RULE, name="there", interfaces=("eth*",))
    assert name(Matching(policy(there, here)).seen(seen(1, 0), NIC, 0)) == "here"
    out = replace(RULE, name="out", direction=Direction.CONNECTED)
    matching = Matching(policy(out, REST))
    connected = seen(1, 0, direction=Direction.CONNECTED)
    assert name(matching.seen(connected, NIC, 0)) == "out"
    born = Connecting(0, 1, key(1), 0, THREAD, 0)
    assert name(matching.connecting(born, "nic", 0)) == "out"
    udp = connected._replace(key=key(1)._replace(protocol=Protocol.UDP))
    assert name(matching.seen(udp, NIC, 0)) == "rest"


def test_who_leaves_a_flow_is_named_only_if_its_key_tells() -> None:
    plain = replace(LEFT, min_bytes=1, min_age_ns=1, min_rate_bit_s=1)
    assert Matching(policy(plain)).left_by(key(1)) == "`left` (test:1)"
    for asked in (
        {"processes": ("a",)}, {"commands": ("a",)}, {"users": frozenset({0})}, {"units": ("a",)},
        {"cgroups": ("/",)}, {"interfaces": ("nic",)}, {"direction": Direction.ACCEPTED},
    ):  # fmt: skip
        assert Matching(policy(replace(LEFT, **asked))).left_by(key(1)) is None
    assert Matching(policy(REST, LEFT)).left_by(key(1)) is None


def test_another_policy_finds_a_flow_by_what_is_known_of_it() -> None:
    matching, table = Matching(policy(FAST, REST)), FlowTable(16)
    event = seen(1, 0, bytes=0, direction=Direction.CONNECTED)
    matching.seen(event, NIC, 0)
    matching.again([use(event, 10**9)], table.get, SECOND_NS)
    out = replace(RULE, name="out", direction=Direction.CONNECTED, min_rate_bit_s=MBIT)
    matching.renew(policy(out, REST), Sources())
    assert name(matching.of_flow(flow(1, bytes=10**9), NIC, 2 * SECOND_NS)) == "out"
    unseen = flow(2, direction=Direction.CONNECTED)
    assert name(matching.of_flow(unseen, NIC, 2 * SECOND_NS)) == "rest"
    assert matching.waiting()
    matching.renew(policy(replace(RULE, name="big", min_bytes=2 * 10**9), REST), Sources())
    for carried, rule in ((10**9, "rest"), (2 * 10**9, "big")):
        assert name(matching.of_flow(flow(1, bytes=carried), NIC, 2 * SECOND_NS)) == rule


def unread(*asked: object) -> Any:
    raise AssertionError(f"read without need: {asked}")


def test_nothing_is_read_that_no_rule_asks_for() -> None:
    matching = Matching(policy(replace(RULE, processes=("a",)), REST), Sources(unread, unread))
    assert name(matching.seen(seen(1, 0), NIC, 0)) == "rest"
    thread = replace(THREAD, cgroup=5)
    process = Process(cgroup="/app")
    of_user = replace(RULE, users=frozenset({1}))
    asking = Matching(policy(of_user), Sources(lambda pid, now_ns: process))
    assert asking.groups(thread, 0) is None
    asking.renew(policy(of_user, replace(RULE, cgroups=("/app",))), Sources(lambda pid, _: process))
    assert asking.groups(thread, 0) == (5, "/app", 1)


def test_who_listens_where_a_flow_ends_has_accepted_it() -> None:
    asked = []

    def serves(netns: str | None, key: FlowKey, now_ns: int, born_ns: int | None) -> bool:
        asked.append((netns, key, born_ns))
        return key.local_port == 443

    accepted = replace(RULE, name="in", direction=Direction.ACCEPTED)
    matching = Matching(policy(accepted, REST), Sources(serves=serves))
    assert name(matching.seen(seen(1, 0, born_ns=3), NIC, 5)) == "in"
    elsewhere = key(1)._replace(local_port=9)
    assert name(matching.seen(seen(1, 0, key=elsewhere, born_ns=3), NIC, 5)) == "rest"
    assert asked == [(NIC.netns, key(1), 3), (NIC.netns, elsewhere, 3)]
    matching.seen(seen(1, 0, key=key(1)._replace(protocol=Protocol.UDP)), NIC, 5)
    matching.seen(seen(1, 0, direction=Direction.CONNECTED), NIC, 5)
    assert len(asked) == 2
    port = key(1)._replace(remote=bytes(4), remote_port=0)
    assert name(matching.of_port(port, None, "nic", 0)) == "in"
