# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy of a slot at rest: what is left alone, and on which interface."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.compare.policies import AT_REST, at_rest
from atfnd.model import Device, Facts, InterfaceRule, Policy
from atfnd.policy.match.match import Matcher, interface_rule, under_policy
from tests.values import NIC, RULE, key

RFS = InterfaceRule("*", "f:1", True, None, 0, unowned="rfs", driver="igb")
POLICY = Policy((RFS,), (RULE,), "auto", 16, 0, ())
OTHERS = ("a", "aeth0", "eth0", "!eth1", "[!]eth0", "eth*")


@pytest.mark.parametrize("name", ["eth0", "!eth0", "eth*", "[!]eth1", "lab:a"])
def test_the_flows_of_one_interface_are_left_alone_whatever_its_name(name: str) -> None:
    matcher = Matcher(at_rest(POLICY, name))

    def rule_on(interface: str) -> str | None:
        rule = matcher.first_match(Facts(key(1), interface=interface))
        return None if rule is None else rule.name

    assert rule_on(name) == AT_REST
    assert {rule_on(each) for each in OTHERS if each != name} == {RULE.name}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("name", ["eth0", "!eth0"])
def test_rfs_that_the_policy_asks_for_is_off_there(name: str, *, alone: bool) -> None:
    nic = replace(NIC, name=name, device=Device(driver="igb"))
    rests = at_rest(POLICY, None if alone else name, interface_rule(POLICY.interfaces, nic))
    view = under_policy(nic, rests.interfaces, rests.flows)
    assert (view.unowned_rfs, view.keeps_rfs) == (False, True)
    other = under_policy(replace(nic, name="ens1"), rests.interfaces, rests.flows)
    assert other.unowned_rfs == (not alone)
