# SPDX-License-Identifier: GPL-2.0-or-later
"""What a flow must be to fall under a rule, each condition by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.model import Facts, FlowRule, Network, Placement, Policy
from atfnd.policy.match.match import Matcher, meets, of_process
from tests.values import RULE, key

__all__: list[str] = []

TEN = (Network(4, bytes([10, 0, 0, 0]), 8),)
LISTENER = key(0)._replace(remote=bytes(4), remote_port=0)
ANYWHERE = LISTENER._replace(local=bytes(4))


def matcher(*rules: FlowRule) -> Matcher:
    return Matcher(Policy((), rules, "auto", 1, 0, ()))


def test_an_address_is_in_no_network_of_the_other_family() -> None:
    inside = matcher(replace(RULE, local=TEN))
    wide = bytes(12) + bytes([10, 0, 0, 1])  # ::10.0.0.1, whose last four bytes are in 10/8
    assert inside.first_match(Facts(key(1))) is not None
    assert inside.first_match(Facts(key(1)._replace(local=wide, remote=wide))) is None
    other = matcher(replace(RULE, local=(Network(6, bytes([0x20, 1]) + bytes(14), 16),)))
    assert other.first_match(Facts(key(1)._replace(local=bytes([0x20, 1, 0, 1])))) is None


@pytest.mark.parametrize(
    ("narrow", "listener"),
    [
        ({"remote": TEN}, LISTENER),
        ({"min_bytes": 1}, LISTENER),
        ({"min_age_ns": 1}, LISTENER),
        ({"min_rate_bit_s": 1}, LISTENER),
        ({"local": TEN}, ANYWHERE),
    ],
)
def test_a_port_is_of_the_rule_that_has_every_connection_to_it(
    narrow: dict[str, Any], listener: Any
) -> None:
    some, rest = replace(RULE, name="some", **narrow), replace(RULE, name="all")
    assert matcher(some, rest).of_port(Facts(listener)) == rest
    assert matcher(some).of_port(Facts(listener)) is None
    left = replace(some, placement=Placement.LEAVE)
    assert matcher(left, rest).of_port(Facts(listener)) is None  # treated otherwise


def test_a_port_of_one_address_is_of_the_rule_for_that_address() -> None:
    ours, rest = replace(RULE, name="ours", local=TEN), replace(RULE, name="all")
    assert matcher(ours, rest).of_port(Facts(LISTENER)) == ours
    there = LISTENER._replace(local=bytes([11, 0, 0, 1]))
    assert matcher(ours, rest).of_port(Facts(there)) == rest


@pytest.mark.parametrize("short", ["min_bytes", "min_age_ns", "min_rate_bit_s"])
def test_a_flow_is_below_a_rule_in_any_of_three_ways(short: str) -> None:
    asks: dict[str, Any] = {"min_bytes": 10, "min_age_ns": 20, "min_rate_bit_s": 30}
    rule = replace(RULE, **asks)
    assert meets(rule, 10, 20, 30)
    assert not meets(replace(rule, **{short: asks[short] + 1}), 10, 20, 30)


@pytest.mark.parametrize(
    "asks",
    [
        {"users": frozenset({5})},
        {"commands": ("*-s*",)},
        {"cgroups": ("/app",)},
        {"units": ("a.service",)},
    ],
)
def test_a_rule_asks_more_of_a_process_than_the_name_of_a_thread(asks: dict[str, Any]) -> None:
    assert of_process(replace(RULE, **asks))
    assert not of_process(replace(RULE, processes=("thr*",)))
