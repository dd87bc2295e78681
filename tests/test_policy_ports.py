# SPDX-License-Identifier: GPL-2.0-or-later
"""The one rule of a policy for all connections to a port, if there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.model import FlowRule, Mode, Network, Placement, Policy, Protocol
from atfnd.policy.match import Matcher
from tests.values import RULE, key

PORT = key(0)._replace(remote=bytes(4), remote_port=0)
UNBOUND = PORT._replace(local=bytes(4))
TEN = (Network(4, b"\x0a\0\0\0", 8),)
LEAVE = replace(RULE, name="left", placement=Placement.LEAVE)


def of_port(*rules: FlowRule, bound: bool = True, comm: str | None = "app") -> FlowRule | None:
    policy = Policy((), rules, "auto", 1, 0, ())
    return Matcher(policy).of_port(PORT if bound else UNBOUND, comm)


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
