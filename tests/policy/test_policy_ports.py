# SPDX-License-Identifier: GPL-2.0-or-later
"""The one rule of a policy for all connections to a port, if there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.model import (
    Direction,
    Facts,
    FlowRule,
    Mode,
    Network,
    Placement,
    Policy,
    Process,
    Protocol,
)
from atfnd.policy.match.match import Matcher
from tests.values import RULE, key

PORT = key(0)._replace(remote=bytes(4), remote_port=0)
UNBOUND = PORT._replace(local=bytes(4))
TEN = (Network(4, b"\x0a\0\0\0", 8),)
LEAVE = replace(RULE, name="left", placement=Placement.LEAVE)


PROCESS = Process("app --serve", 33, "/system.slice/app.service")


def of_port(*rules: FlowRule, bound: bool = True) -> FlowRule | None:
    matcher = Matcher(Policy((), rules, "auto", 1, 0, ()))
    key = PORT if bound else UNBOUND
    return matcher.of_port(Facts(key, "app", PROCESS, "eth0", Direction.ACCEPTED))


@pytest.mark.parametrize(
    ("first", "bound", "one"),
    [
        ({}, True, False),  # it leaves all of them
        ({"ports": ((22, 22),)}, True, True),
        ({"ports": ((400, 500),)}, True, False),
        ({"protocols": frozenset({Protocol.UDP})}, True, True),
        ({"remote": TEN}, True, False),
        ({"min_bytes": 1}, True, False),
        ({"min_age_ns": 1}, True, False),
        ({"local": (Network(4, b"\x0b\0\0\0", 8),)}, True, True),
        ({"local": TEN}, False, False),  # some of them come to such an address
        ({"processes": ("other",)}, True, True),
        ({"processes": ("app",)}, True, False),
        ({"commands": ("*--client",)}, True, True),
        ({"commands": ("*--serve",)}, True, False),
        ({"users": frozenset({0})}, True, True),
        ({"users": frozenset({33})}, True, False),
        ({"cgroups": ("/user.slice/*",)}, True, True),
        ({"units": ("app.service",)}, True, False),
        ({"interfaces": ("eth1",)}, True, True),
        ({"interfaces": ("eth*",)}, True, False),
        ({"direction": Direction.CONNECTED}, True, True),
        ({"direction": Direction.ACCEPTED}, True, False),
        ({"min_rate_bit_s": 1}, True, False),
    ],
    ids=str,
)
def test_a_rule_that_leaves_some_of_them_is_in_the_way(
    first: dict[str, Any], bound: bool, one: bool
) -> None:
    found = of_port(replace(LEAVE, **first), RULE, bound=bound)
    assert (found is RULE) == one
    assert one or found is None or found.placement is Placement.LEAVE


def test_rules_that_treat_them_alike_are_not() -> None:
    assert of_port(replace(RULE, min_bytes=1), RULE) is RULE
    assert of_port(replace(RULE, min_bytes=1, order=Mode.BOUNDED), RULE) is None
    assert of_port(replace(RULE, min_bytes=1)) is None
    assert of_port() is None


def test_a_rule_for_connections_from_here_is_none_for_a_port() -> None:
    assert of_port(replace(RULE, direction=Direction.CONNECTED)) is None
    assert of_port(rule := replace(RULE, direction=Direction.ACCEPTED)) is rule
    assert of_port(replace(RULE, min_rate_bit_s=1)) is None
