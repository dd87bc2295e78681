# SPDX-License-Identifier: GPL-2.0-or-later
"""The rule for all connections of a port, against the rule for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import (
    Direction,
    Facts,
    FlowKey,
    FlowRule,
    Mode,
    Network,
    Placement,
    Policy,
    Process,
    Protocol,
)
from atfnd.policy.match.match import Matcher
from tests.kernel.netns import packed
from tests.policy.test_policy_compile import (
    ADDRESSES,
    LEAVE,
    SEEN,
    THRESHOLDS,
    UNSEEN,
    flows,
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
def some_of(draw: st.DrawFn, port: FlowKey) -> FlowKey:
    """A connection of a port."""
    family = port.family
    if family == 6 and not any(port.local):
        family = draw(st.sampled_from([4, 6]))
    bound = [end for end in map(packed, ADDRESSES[family]) if any(end)]
    local = port.local if any(port.local) else draw(st.sampled_from(bound))
    remote = draw(st.sampled_from(bound))
    return FlowKey(port.protocol, local, port.local_port, remote, NOBODYS)


@st.composite
def listeners(draw: st.DrawFn) -> FlowKey:
    local = packed(draw(st.sampled_from([*ADDRESSES[4], *ADDRESSES[6]])))
    return FlowKey(Protocol.TCP, local, draw(PORTS), bytes(len(local)), 0)


@given(RULES, listeners(), flows(), st.booleans(), st.data())
def test_every_connection_of_a_port_is_treated_as_its_rule_says(
    rules: list[FlowRule], port: FlowKey, facts: Facts, known: bool, data: st.DataObject
) -> None:
    """Whatever is found out of its application later."""
    matcher = Matcher(policy(rules))
    of_port = facts if known else Facts(port, interface=facts.interface)
    rule = matcher.of_port(of_port._replace(key=port, direction=Direction.ACCEPTED))
    key = data.draw(some_of(port))
    one = matcher.first_match(facts._replace(key=key, direction=Direction.ACCEPTED))
    if rule is not None:
        assert one is not None
        assert (one.placement, one.order) == (rule.placement, rule.order)


TEN = (Network(4, bytes([10, 0, 0, 0]), 8),)
ELEVEN = (Network(4, bytes([11, 0, 0, 0]), 8),)
DOCS = (Network(6, bytes.fromhex("20010db8") + bytes(12), 32),)
ALL_IPV4 = Network(4, bytes(4), 0)
EVERYWHERE = LISTENER._replace(local=bytes(4))
IPV6 = LISTENER._replace(local=bytes(16), remote=bytes(16))
PROCESS = Process("app --serve", 33, "/system.slice/app.service")


def of_port(*rules: FlowRule, port: FlowKey = LISTENER, known: bool = True) -> FlowRule | None:
    facts = Facts(port, interface="eth0", direction=Direction.ACCEPTED)
    facts = facts._replace(comm="app", process=PROCESS) if known else facts
    return Matcher(Policy((), rules, "auto", 1, 0, ())).of_port(facts)


@pytest.mark.parametrize(
    ("asks", "port", "takes"),
    [
        ({}, LISTENER, "all"),
        ({"ports": ((22, 22),)}, LISTENER, "none"),  # the remote port is nobody's
        ({"protocols": frozenset({Protocol.UDP})}, LISTENER, "none"),
        ({"remote": TEN}, LISTENER, "some"),
        ({"remote": DOCS}, LISTENER, "none"),
        ({"remote": (ALL_IPV4, *DOCS)}, LISTENER, "all"),
        ({"remote": (Network(6, bytes(16), 0),)}, IPV6, "some"),  # IPv4 comes there too
        ({"local": TEN}, LISTENER, "all"),
        ({"local": TEN}, EVERYWHERE, "some"),
        ({"local": ELEVEN}, LISTENER, "none"),
        ({"local": (ALL_IPV4,)}, EVERYWHERE, "all"),  # every address is in it
        ({"processes": ("other",)}, LISTENER, "none"),
        ({"commands": ("*--serve",)}, LISTENER, "all"),
        ({"users": frozenset({33})}, LISTENER, "all"),
        ({"cgroups": ("/user.slice/*",)}, LISTENER, "none"),
        ({"units": ("app.service",)}, LISTENER, "all"),
        ({"interfaces": ("eth*",)}, LISTENER, "all"),
        ({"direction": Direction.CONNECTED}, LISTENER, "none"),
        ({"min_bytes": 1}, LISTENER, "some"),
    ],
    ids=str,
)
def test_how_many_a_rule_takes(asks: dict[str, Any], port: FlowKey, takes: str) -> None:
    """If it takes some of them, they have no one rule."""
    for one, other in ((RULE, LEAVE), (LEAVE, RULE)):
        found = of_port(replace(one, **asks), other, port=port)
        assert found is None or found.placement is not one.placement or takes == "all"
        assert (found is other, found is None) == (takes == "none", takes == "some")


def test_what_is_not_known_of_the_application_is_not_guessed() -> None:
    assert of_port(replace(LEAVE, processes=("a",)), RULE, known=False) is None


def test_rules_that_treat_them_alike_are_one() -> None:
    assert of_port(replace(RULE, min_bytes=1), RULE) is RULE
    assert of_port(replace(RULE, min_bytes=1, order=Mode.BOUNDED), RULE) is None
    assert of_port(replace(RULE, min_bytes=1)) is None
    assert of_port() is None
    assert of_port(replace(RULE, direction=Direction.CONNECTED)) is None
