# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule matches all that a later one matches: what is said so is so, and what should be is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import (
    Device,
    Direction,
    Facts,
    FlowRule,
    InterfaceRule,
    Network,
    NicView,
    Placement,
    Protocol,
)
from atfnd.policy.file.schema import network
from atfnd.policy.match.covers import covers, covers_interfaces
from atfnd.policy.match.match import CONDITIONS, Matcher, interface_rule
from tests.policy.test_policy_compile import FEW, SEEN, THRESHOLDS, flows, policy, rules, some
from tests.values import NIC, RULE

ALL = frozenset(Protocol)
TCP, UDP, SCTP = (frozenset({each}) for each in Protocol)
ACCEPTED = Direction.ACCEPTED


def nets(*written: str) -> tuple[Network, ...]:
    return tuple(map(network, written))


# What the earlier rule asks for, and what a later one does of which it has all, or not all.
COVERED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"ports": ((443, 443),)}),
    ({"protocols": ALL}, {"ports": ((443, 443),)}),
    ({"protocols": TCP | SCTP}, {"direction": ACCEPTED}),  # UDP has none
    ({"direction": ACCEPTED}, {"direction": ACCEPTED}),
    ({"ports": ((1, 9),)}, {"ports": ((2, 3), (9, 9))}),
    ({"ports": ((5, 9), (1, 4))}, {"ports": ((3, 7),)}),  # together
    ({"ports": ((1, 9), (2, 3), (10, 12))}, {"ports": ((5, 11),)}),
    ({"local": nets("10.0.0.0/9", "10.128.0.0/9")}, {"local": nets("10.0.0.0/8")}),
    ({"remote": nets("2001:db8::/32")}, {"remote": nets("2001:db8::1")}),
    ({"users": frozenset({1, 2})}, {"users": frozenset({2})}),
    ({"processes": ("a", "nginx*")}, {"processes": ("nginx-1", "a")}),
    ({"commands": ("*",)}, {"commands": ("[ab]",)}),
    ({"units": ("a*.service",)}, {"units": ("ab?.service",)}),
    ({"units": ("!a.service",)}, {"units": ("b.service", "!a*")}),
    ({"units": ("*.slice", "!a*")}, {"units": ("b.slice", "!a*")}),
    ({"processes": ("!a",)}, {"processes": ("b", "c")}),
    ({"cgroups": ("/a/*", "!/a/b")}, {"cgroups": ("/a/c",)}),
    ({"interfaces": ("eth?",)}, {"interfaces": ("eth0",)}),
    ({}, {"min_rate_bit_s": 1}),
]
NOT_COVERED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"protocols": TCP}, {"protocols": TCP | UDP}),
    ({"ports": ((6, 9), (1, 4))}, {"ports": ((3, 7),)}),
    ({"local": nets("10.1.0.0/16")}, {"local": nets("10.0.0.0/8")}),
    ({"users": frozenset({2})}, {"users": frozenset({1, 2})}),
    ({"units": ("*",)}, {"units": ("!a.service",)}),  # a process in no unit
    ({"units": ("!a.service",)}, {"units": ("b.service",)}),  # it may be in both
    ({"remote": nets("0.0.0.0/0")}, {"remote": nets("::/96")}),
    ({"remote": nets("0.0.0.0/0", "::/0")}, {}),  # what is not bound is in no network
    ({"processes": ("*",)}, {}),  # a name that is not known
    ({"cgroups": ("/a/*", "!/a/b")}, {"cgroups": ("/a/c", "/a/b")}),
    ({"interfaces": ("*b*",)}, {"interfaces": ("[ab]",)}),  # its text has a b, `a` has none
    ({"interfaces": ("[*]",)}, {"interfaces": ("*",)}),
    ({"min_age_ns": 1}, {"min_bytes": 5}),
]
PAIRS = [*((*each, True) for each in COVERED), *((*each, False) for each in NOT_COVERED)]


@pytest.mark.parametrize(("asked", "by_later", "all_of_it"), PAIRS, ids=str)
def test_what_one_rule_has_of_another(
    asked: dict[str, Any], by_later: dict[str, Any], all_of_it: bool
) -> None:
    for placement in (Placement.CORE, Placement.LEAVE):
        rule = replace(RULE, placement=placement, **asked)
        later = replace(RULE, placement=placement, **by_later)
        assert covers(rule, later) == all_of_it
    assert covers(replace(rule, placement=Placement.LEAVE), replace(RULE, **by_later)) == all_of_it


def test_a_rule_that_leaves_also_has_flows_of_which_little_is_known() -> None:
    nginx, left = replace(RULE, processes=("nginx",)), Placement.LEAVE
    assert not covers(nginx, replace(nginx, placement=left))
    assert covers(replace(RULE, ports=((1, 9),)), replace(nginx, ports=((2, 2),), placement=left))


@pytest.mark.parametrize("key", CONDITIONS)
def test_no_condition_is_overlooked(key: str) -> None:
    asks: dict[str, Any] = {
        "protocols": TCP, "ports": ((1, 2),), "direction": ACCEPTED, "local": nets("10.0.0.0/8"),
        "remote": nets("10.0.0.0/8"), "users": frozenset({1}),
    }  # fmt: skip
    rule = replace(RULE, **{key: asks.get(key, ("a",))})
    assert covers(rule, rule)
    assert not covers(rule, RULE)


GLOBS = st.text("ab*?[]", min_size=1, max_size=4)
SIGNED_GLOBS = st.builds(str.__add__, st.sampled_from(["", "", "!"]), GLOBS)
SEVERAL_GLOBS = st.lists(SIGNED_GLOBS, min_size=1, max_size=3).map("|".join)
NAMES = st.text("ab", max_size=4)
ASKED = {
    **SEEN, **THRESHOLDS, "processes": some(SIGNED_GLOBS), "users": some(FEW, as_set=True),
}  # fmt: skip
RULES = rules(Placement.CORE, **ASKED) | rules(Placement.LEAVE, **ASKED)
FACTS = st.builds(lambda facts, comm: facts._replace(comm=comm), flows(), st.none() | NAMES)


@given(RULES, RULES, st.sets(st.sampled_from(list(CONDITIONS))), st.lists(FACTS, max_size=20))
def test_no_flow_falls_under_a_rule_that_another_one_covers(
    rule: FlowRule, drawn: FlowRule, shared: set[str], seen: list[Facts]
) -> None:
    for later in (drawn, replace(drawn, **{key: getattr(rule, key) for key in shared})):
        if covers(rule, later):
            matcher = Matcher(policy([rule, later]))
            matched = (matcher.first_match(each) for each in seen)
            assert all(found is None or found.name != "1" for found in matched)


def for_driver(driver: str | None, *, armed: bool, name: str = "*") -> InterfaceRule:
    return InterfaceRule(name, f"f:{driver}", armed, None, 0, driver=driver)


INTERFACE_RULES = st.builds(
    for_driver, st.none() | SEVERAL_GLOBS, armed=st.booleans(), name=st.just("*") | SEVERAL_GLOBS
)
NICS = st.builds(
    lambda name, driver: replace(NIC, name=name, device=Device(driver=driver)),
    NAMES | st.text("ab*?[]", max_size=4),
    st.none() | NAMES,
)


@given(INTERFACE_RULES, INTERFACE_RULES, st.lists(NICS, max_size=20))
def test_no_interface_falls_under_a_rule_that_another_one_covers(
    rule: InterfaceRule, other: InterfaceRule, nics: list[NicView]
) -> None:
    later = replace(other, source="later")
    if covers_interfaces(rule, later):
        assert all(interface_rule([rule, later], nic) != later for nic in nics)


@pytest.mark.parametrize(
    ("name", "driver", "later", "later_driver"),
    [
        ("*", None, "*", "igb"),
        ("*", "ig*", "*", "igb"),
        ("*", "!ice", "*", "igb"),
        ("eth*|!eth0", None, "eth1", None),
        ("eth*|!eth0", None, "eth*|!eth?", None),
        ("!eth0", None, "eth1|ens1", None),
        ("*", None, "!eth0", None),
        ("!eth0", None, "!eth0|!eth1", None),
        ("ens* | eth*", None, "eth0 | ens1", None),
    ],
)
def test_an_interface_rule_has_all_of_another(
    name: str, driver: str | None, later: str, later_driver: str | None
) -> None:
    rule, other = (
        for_driver(of, armed=True, name=names)
        for names, of in ((name, driver), (later, later_driver))
    )
    assert covers_interfaces(rule, other)
    assert covers_interfaces(replace(rule, armed=False), replace(other, armed=False))
    # A driver that is not known falls under the later one.
    assert covers_interfaces(rule, replace(other, armed=False)) is (driver is None)


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("eth*|!eth0", "eth1*"),  # nothing is said of what is not certain
        ("eth*", "!eth0"),
        ("!eth0", "eth0|ens1"),
        ("!eth0|!eth1", "!eth0"),
    ],
)
def test_an_interface_rule_has_not_all_of_another(name: str, later: str) -> None:
    rule, other = (for_driver(None, armed=True, name=each) for each in (name, later))
    assert not covers_interfaces(rule, other)
