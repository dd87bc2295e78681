# SPDX-License-Identifier: GPL-2.0-or-later
"""Packets that are forwarded by interfaces that stand upon others: they count for those below."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.observe.forwards import ForwardingNet, forwarding_net, pairs_of, warmed

__all__: list[str] = []

BOND = """
    link add over type bond mode active-backup
    link set f0 down
    link set f0 master over
    link set over up
"""
# By name, what is done where packets come from, and where they are forwarded.
STACKS = {
    "vlan": (
        """
        link add link g0 name near type vlan id 5
        link set near up
        """,
        """
        link add link f0 name top type vlan id 5
        link set top up
        """,
    ),
    "bond": ("link set g0 name near", f"{BOND}\nlink set over name top"),
    "vlan upon a bond": (
        """
        link add link g0 name near type vlan id 5
        link set near up
        """,
        f"""{BOND}
        link add link over name top type vlan id 5
        link set top up
        """,
    ),
}


@pytest.fixture
def bed() -> Iterator[ForwardingNet]:
    with forwarding_net() as made:
        yield made


def do(bed: ForwardingNet, where: str, commands: str) -> None:
    for command in filter(None, map(str.strip, commands.splitlines())):
        bed.ip(where, command)


@pytest.mark.parametrize("stack", STACKS)
def test_what_comes_by_this_is_of_the_nic_below(bed: ForwardingNet, stack: str) -> None:
    far, near = STACKS[stack]
    bed.ip("gen", "addr flush dev g0")
    bed.ip("forwards", "addr flush dev f0")
    do(bed, "gen", far)
    do(bed, "forwards", near)
    bed.ip("gen", "addr add 10.78.0.2/24 dev near")
    bed.ip("forwards", "addr add 10.78.0.1/24 dev top")
    bed.ip("gen", "route replace default via 10.78.0.1")
    sender, _ = warmed(bed)
    assert pairs_of(bed, sender) == {(("f0",), "f1")}


def test_what_a_vrf_forwards_came_by_one_of_the_nics_below(bed: ForwardingNet) -> None:
    do(
        bed,
        "forwards",
        """
        link add red type vrf table 10
        link set red up
        link set f0 master red
        link set f1 master red
        """,
    )
    sender, _ = warmed(bed)
    assert pairs_of(bed, sender) == {(("f0", "f1"), "f1")}
