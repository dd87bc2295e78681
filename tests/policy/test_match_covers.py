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
    FlowKey,
    FlowRule,
    InterfaceRule,
    Network,
    NicView,
    Placement,
    Policy,
    Process,
    Protocol,
)
from atfnd.policy.file.schema import network
from atfnd.policy.match.covers import covers, covers_interfaces
from atfnd.policy.match.match import CONDITIONS, Matcher, interface_rule
from tests.values import NIC, RULE

__all__: list[str] = []

ALL = frozenset(Protocol)
TCP, UDP, SCTP = (frozenset({each}) for each in Protocol)
ACCEPTED = Direction.ACCEPTED


def nets(*written: str) -> tuple[Network, ...]:
    return tuple(map(network, written))


# What the earlier rule asks for, what the later one asks for, and whether the earlier one has all.
PAIRS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({}, {}, True),
    ({}, {"ports": ((443, 443),)}, True),
    ({"ports": ((443, 443),)}, {}, False),
    ({"protocols": ALL}, {"ports": ((443, 443),)}, True),
    ({"protocols": TCP}, {"protocols": TCP | UDP}, False),
    ({"protocols": TCP | SCTP}, {}, False),
    ({"protocols": TCP | SCTP}, {"direction": ACCEPTED}, True),  # UDP has none
    ({"direction": ACCEPTED}, {"direction": ACCEPTED}, True),
    ({"direction": ACCEPTED}, {"direction": Direction.CONNECTED}, False),
    ({"direction": ACCEPTED}, {}, False),
    ({"ports": ((1, 9),)}, {"ports": ((2, 3), (9, 9))}, True),
    ({"ports": ((1, 9),)}, {"ports": ((9, 10),)}, False),
    ({"ports": ((2, 9),)}, {"ports": ((1, 2),)}, False),
    ({"ports": ((5, 9), (1, 4))}, {"ports": ((3, 7),)}, True),  # together
    ({"ports": ((6, 9), (1, 4))}, {"ports": ((3, 7),)}, False),
    ({"ports": ((1, 9), (2, 3), (10, 12))}, {"ports": ((5, 11),)}, True),
    ({"local": nets("10.0.0.0/8")}, {"local": nets("10.1.0.0/16")}, True),
    ({"local": nets("10.1.0.0/16")}, {"local": nets("10.0.0.0/8")}, False),
    ({"local": nets("10.0.0.0/9", "10.128.0.0/9")}, {"local": nets("10.0.0.0/8")}, True),
    ({"local": nets("10.0.0.0/8")}, {"remote": nets("10.1.0.0/16")}, False),
    ({"remote": nets("2001:db8::/32")}, {"remote": nets("2001:db8::1")}, True),
    ({"remote": nets("0.0.0.0/0")}, {"remote": nets("::/96")}, False),
    ({"remote": nets("0.0.0.0/0", "::/0")}, {}, False),  # what is not bound is in no network
    ({"users": frozenset({1, 2})}, {"users": frozenset({2})}, True),
    ({"users": frozenset({2})}, {"users": frozenset({1, 2})}, False),
    ({"processes": ("a", "nginx*")}, {"processes": ("nginx-1", "a")}, True),
    ({"processes": ("nginx*",)}, {"processes": ("nginx-1", "a")}, False),
    ({"processes": ("*",)}, {}, False),  # a name that is not known
    ({"commands": ("*",)}, {"commands": ("[ab]",)}, True),
    ({"cgroups": ("/a/*",)}, {"cgroups": ("/a/b/*",)}, True),
    ({"units": ("a*.service",)}, {"units": ("ab?.service",)}, True),
    ({"units": ("*",)}, {"units": ("!a.service",)}, False),  # a process in no unit
    ({"units": ("!a.service",)}, {"units": ("b.service",)}, False),  # it may be in both
    ({"units": ("!a.service",)}, {"units": ("b.service", "!a*")}, True),
    ({"units": ("*.slice", "!a*")}, {"units": ("b.slice", "!a*")}, True),
    ({"units": ("*.slice", "!a*")}, {"units": ("*", "!a*")}, False),
    ({"processes": ("!a",)}, {"processes": ("b", "c")}, True),
    ({"cgroups": ("/a/*", "!/a/b")}, {"cgroups": ("/a/c",)}, True),
    ({"cgroups": ("/a/*", "!/a/b")}, {"cgroups": ("/a/c", "/a/b")}, False),
    ({"interfaces": ("eth?",)}, {"interfaces": ("eth0",)}, True),
    ({"interfaces": ("eth?",)}, {"interfaces": ("eth*",)}, False),
    ({"interfaces": ("*b*",)}, {"interfaces": ("[ab]",)}, False),  # its text has a b, `a` has none
    ({"interfaces": ("[*]",)}, {"interfaces": ("*",)}, False),
    ({"min_bytes": 6}, {"min_bytes": 5}, False),
    ({"min_age_ns": 1}, {"min_bytes": 5}, False),
    ({"min_rate_bit_s": 1}, {}, False),
    ({}, {"min_rate_bit_s": 1}, True),
]


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
RANGES = st.tuples(st.integers(1, 4), st.integers(0, 2)).map(lambda each: (each[0], sum(each)))
NETWORKS = st.sampled_from(nets("10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "10.0.0.1", "::/0"))
ADDRESSES = st.sampled_from([bytes(4), b"\x0a\0\0\1", b"\x0a\xff\0\1", bytes(15) + b"\1"])


UNITS = "a.slice", "b.slice", "a.service", "b.service"
SIGNED_UNITS = st.builds(
    str.__add__, st.sampled_from(["", "!"]), st.sampled_from([*UNITS, "*", "*.slice", "b*"])
)
CGROUPS = st.lists(st.sampled_from(UNITS), max_size=3).map(lambda units: "/" + "/".join(units))


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(values, min_size=1, max_size=3).map(tuple)


RULES = st.builds(
    replace,
    st.just(RULE),
    placement=st.sampled_from([Placement.CORE, Placement.LEAVE]),
    protocols=st.none() | st.sets(st.sampled_from(Protocol), min_size=1).map(frozenset),
    ports=some(RANGES),
    local=some(NETWORKS),
    processes=some(SIGNED_GLOBS),
    units=some(SIGNED_UNITS),
    users=st.none() | st.frozensets(st.integers(0, 2), min_size=1),
    direction=st.none() | st.sampled_from(Direction),
    min_bytes=st.integers(0, 1),
    min_rate_bit_s=st.integers(0, 1),
)
FACTS = st.builds(
    lambda protocol, local, ports, **known: Facts(
        FlowKey(protocol, local, ports[0], b"\x0a\0\0\2", ports[1]), **known
    ),
    protocol=st.sampled_from(Protocol),
    local=ADDRESSES,
    ports=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    comm=st.none() | NAMES,
    process=st.builds(Process, uid=st.none() | st.integers(0, 2), cgroup=st.none() | CGROUPS),
    direction=st.none() | st.sampled_from(Direction),
    bytes=st.integers(0, 1),
    rate_bit_s=st.integers(0, 1),
)


@given(RULES, RULES, st.sets(st.sampled_from(list(CONDITIONS))), st.lists(FACTS, max_size=20))
def test_no_flow_falls_under_a_rule_that_another_one_covers(
    rule: FlowRule, drawn: FlowRule, shared: set[str], flows: list[Facts]
) -> None:
    for later in (drawn, replace(drawn, **{key: getattr(rule, key) for key in shared})):
        if covers(rule, later):
            matcher = Matcher(Policy((), (rule, later), "auto", 1, 0, ()))
            assert all(matcher.first_match(each) is not later for each in flows)


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
    ("driver", "armed", "later", "later_armed", "all_of_it"),
    [
        (None, True, "igb", True, True),
        ("ig*", True, "igb", True, True),
        ("igb", True, "ig*", True, False),
        ("igb", True, None, True, False),
        ("igb", False, None, False, False),
        ("igb", True, "igb", False, False),  # a driver that is not known falls under the later one
        ("igb", False, "igb", False, True),
        ("igb", False, "igb", True, True),
        ("!ice", True, "igb", True, True),
    ],
)
def test_the_drivers_of_an_interface_rule(
    driver: str | None, armed: bool, later: str | None, later_armed: bool, all_of_it: bool
) -> None:
    rules = for_driver(driver, armed=armed), for_driver(later, armed=later_armed)
    assert covers_interfaces(*rules) == all_of_it


@pytest.mark.parametrize(
    ("name", "later", "all_of_it"),
    [
        ("eth*|!eth0", "eth1", True),
        ("eth*|!eth0", "eth1*", False),  # nothing is said of what is not certain
        ("eth*|!eth0", "eth*", False),
        ("eth*|!eth0", "eth*|!eth?", True),
        ("eth*|!eth?", "eth*|!eth0", False),
        ("eth*", "eth*|!eth0", True),
        ("!eth0", "eth1|ens1", True),
        ("!eth0", "eth0|ens1", False),
        ("*", "!eth0", True),
        ("eth*", "!eth0", False),
        ("!eth0", "!eth0|!eth1", True),
        ("!eth0|!eth1", "!eth0", False),
        ("eth*", "eth0|eth1*", True),
        ("eth*", "eth0|ens1", False),
        ("ens* | eth*", "eth0 | ens1", True),
        ("eth0", "eth*", False),
    ],
)
def test_the_names_of_an_interface_rule(name: str, later: str, all_of_it: bool) -> None:
    rules = [InterfaceRule(each, "f:1", True, None, 0) for each in (name, later)]
    assert covers_interfaces(*rules) == all_of_it
