# SPDX-License-Identifier: GPL-2.0-or-later
"""Packets that are forwarded by interfaces that stand upon others: they count for those below."""

from __future__ import annotations

from tests.observe.forwards import ForwardingNet, forwarding_net, pairs_of, warmed

VLAN = ("link add link g0 name near type vlan id 5", "link set near up")
VLAN_UPON_A_BOND = (
    "link add over type bond mode active-backup",
    "link set f0 down",
    "link set f0 master over",
    "link set over up",
    "link add link over name top type vlan id 5",
    "link set top up",
)
VRF = (
    "link add red type vrf table 10",
    "link set red up",
    "link set f0 master red",
    "link set f1 master red",
)


def do(bed: ForwardingNet, where: str, *commands: str) -> None:
    for command in commands:
        bed.ip(where, command)


def test_what_comes_by_a_vlan_upon_a_bond_is_of_the_nic_below() -> None:
    with forwarding_net() as bed:
        do(bed, "gen", "addr flush dev g0", *VLAN, "addr add 10.78.0.2/24 dev near")
        do(bed, "forwards", "addr flush dev f0", *VLAN_UPON_A_BOND)
        do(bed, "forwards", "addr add 10.78.0.1/24 dev top")
        do(bed, "gen", "route replace default via 10.78.0.1")
        sender, _ = warmed(bed)
        assert pairs_of(bed, sender) == {(("f0",), "f1")}


def test_what_a_vrf_forwards_came_by_one_of_the_nics_below() -> None:
    with forwarding_net() as bed:
        do(bed, "forwards", *VRF)
        sender, _ = warmed(bed)
        assert pairs_of(bed, sender) == {(("f0", "f1"), "f1")}
