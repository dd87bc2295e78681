# SPDX-License-Identifier: GPL-2.0-or-later
"""The rule for many flows at once, against the rule for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import Direction, Facts, FlowKey, FlowRule, Mode, Network, Placement, Protocol
from atfnd.policy.match.match import Matcher, RulesOfMany
from tests.netns import packed
from tests.policy.test_policy_compile import (
    ADDRESSES,
    LEAVE,
    SEEN,
    THRESHOLDS,
    UNSEEN,
    flows,
    networks,
    policy,
    rules,
)
from tests.values import RULE, key

NOBODYS = 40_000  # a port that no rule asks for
PORTS = st.integers(1, 2)
ANY = rules(Placement.LEAVE, **SEEN, **THRESHOLDS, **UNSEEN) | rules(
    Placement.CORE, **SEEN, **THRESHOLDS, **UNSEEN
)
ORDERS = st.sampled_from([Mode.STRICT, Mode.IMMEDIATE])
RULES = st.lists(st.builds(lambda rule, order: replace(rule, order=order), ANY, ORDERS), max_size=5)
LISTENER = key(0)._replace(remote=bytes(4), remote_port=0)


@st.composite
def some_of(draw: st.DrawFn, wide: FlowKey) -> FlowKey:
    """A flow that a wide key stands for."""
    family = wide.family
    if wide.listens and family == 6 and not any(wide.local):
        family = draw(st.sampled_from([4, 6]))
    ends = [packed(text) for text in ADDRESSES[family]]
    bound = [each for each in ends if any(each)]
    local = wide.local if any(wide.local) else draw(st.sampled_from(bound))
    remote = wide.remote if any(wide.remote) else draw(st.sampled_from(bound))
    if wide.remote_prefix:
        open_bits = len(remote) * 8 - wide.remote_prefix
        number = int.from_bytes(remote) + draw(st.sampled_from([0, (1 << open_bits) - 1]))
        remote = number.to_bytes(len(remote))
    port = NOBODYS if wide.local_port or wide.remote_port else draw(PORTS)
    return FlowKey(
        wide.protocol, local, wide.local_port or port, remote, wide.remote_port or NOBODYS
    )


@st.composite
def prefix_keys(draw: st.DrawFn) -> FlowKey:
    """Of a remote prefix, or of a local address; with or without a port."""
    family = draw(st.sampled_from([4, 6]))
    network = draw(networks().filter(lambda each: each.family == family and any(each.address)))
    local = draw(st.sampled_from([packed(text) for text in ADDRESSES[family]]))
    near, far = draw(st.sampled_from([(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]))
    protocol = draw(st.sampled_from(Protocol))
    if any(local) and draw(st.booleans()):
        return FlowKey(protocol, local, 0, bytes(len(local)), far)
    return FlowKey(protocol, local, near, network.address, far, network.prefix)


@st.composite
def listeners(draw: st.DrawFn) -> FlowKey:
    local = packed(draw(st.sampled_from([*ADDRESSES[4], *ADDRESSES[6]])))
    return FlowKey(Protocol.TCP, local, draw(PORTS), bytes(len(local)), 0)


@given(RULES, prefix_keys(), flows(), st.data())
def test_every_flow_of_many_falls_under_their_rule(
    rules: list[FlowRule], wide: FlowKey, facts: Facts, data: st.DataObject
) -> None:
    nic, made = facts.interface or "nic", policy(rules)
    rule = RulesOfMany()({each.name: each for each in made.flows}, nic, wide)
    direction = None if wide.protocol == Protocol.UDP else facts.direction
    one = facts._replace(key=data.draw(some_of(wide)), direction=direction, interface=nic)
    if rule is not None:
        assert Matcher(made).first_match(one) == rule


@given(RULES, listeners(), flows(), st.booleans(), st.data())
def test_every_connection_of_a_port_is_treated_as_its_rule_says(
    rules: list[FlowRule], wide: FlowKey, facts: Facts, known: bool, data: st.DataObject
) -> None:
    """Whatever is found out of its application later."""
    matcher = Matcher(policy(rules))
    of_port = facts if known else Facts(wide, interface=facts.interface)
    rule = matcher.of_port(of_port._replace(key=wide, direction=Direction.ACCEPTED))
    key = data.draw(some_of(wide))
    one = matcher.first_match(facts._replace(key=key, direction=Direction.ACCEPTED))
    if rule is not None:
        assert one is not None
        assert (one.placement, one.order) == (rule.placement, rule.order)


TEN = (Network(4, bytes([10, 0, 0, 0]), 8),)
DOCS = (Network(6, bytes.fromhex("20010db8") + bytes(12), 32),)
NET = FlowKey(Protocol.TCP, bytes(4), 0, bytes([10, 1, 0, 0]), 0, 16)


@pytest.mark.parametrize(
    ("asks", "wide", "takes"),
    [
        ({"ports": ((443, 443),)}, NET, "some"),
        ({"ports": ((443, 443),)}, NET._replace(local_port=443), "all"),
        ({"ports": ((443, 443),)}, NET._replace(remote_port=80), "none"),
        ({"ports": ((0, 9),)}, NET._replace(remote_port=80), "none"),  # the open one is nobody's
        ({"remote": TEN}, NET, "all"),
        ({"remote": TEN}, NET._replace(remote=bytes(4), remote_prefix=0), "some"),
        ({"remote": TEN}, NET._replace(remote=bytes([8, 0, 0, 0]), remote_prefix=6), "some"),
        ({"remote": TEN}, NET._replace(remote=bytes([11, 0, 0, 0]), remote_prefix=8), "none"),
        ({"remote": DOCS}, NET, "none"),
        ({"local": TEN}, NET, "some"),
        ({"local": TEN}, NET._replace(local=bytes([10, 9, 9, 9])), "all"),
        ({"local": (Network(4, bytes(4), 0),)}, NET, "all"),  # every address is in it
        ({"remote": (Network(4, bytes(4), 0), *DOCS)}, LISTENER, "all"),
        ({"remote": (Network(6, bytes(16), 0),)},
         LISTENER._replace(local=bytes(16), remote=bytes(16)), "some"),  # IPv4 comes there too
        ({"interfaces": ("nic",)}, NET, "all"),
        ({"interfaces": ("eth*",)}, NET, "none"),
        ({"direction": Direction.ACCEPTED}, NET, "some"),
        ({"direction": Direction.ACCEPTED}, NET._replace(protocol=Protocol.UDP), "none"),
        ({"processes": ("a",)}, NET, "some"),
        ({"min_rate_bit_s": 1}, NET, "some"),
    ],
    ids=str,
)  # fmt: skip
def test_how_many_a_rule_takes(asks: dict[str, Any], wide: FlowKey, takes: str) -> None:
    asked = {"0": replace(RULE, **asks, name="0"), "1": replace(LEAVE, name="1")}
    found = RulesOfMany()(asked, "nic", wide)
    assert takes == {"0": "all", "1": "none"}.get(found.name if found else "", "some")
