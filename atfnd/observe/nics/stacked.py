# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces that stand upon others: where their packets come in and go out. Pure.

Not tunnels: their packets may come by any interface.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from atfnd.kernel.netlink.rtnl import Link

__all__ = ["lowest"]

_ON_ONE, _OF_PORTS = {"ipvlan", "macvlan", "vlan"}, {"bond", "bridge", "team", "vrf"}
_DEEPEST = 8  # MAX_NEST_DEV (include/linux/netdevice.h)


def lowest(links: Mapping[int, Link]) -> dict[int, frozenset[int]]:
    """What is at the bottom (ifindex) of each VLAN, macvlan, ipvlan, bond, team, bridge and VRF
    that stands upon others in the same namespace. Others are not in the answer."""
    below = defaultdict[int, set[int]](set)
    for ifindex, link in links.items():
        master = links.get(link.master or 0)
        if link.kind in _ON_ONE and link.lower is not None and link.lower in links:
            below[ifindex].add(link.lower)
        if link.master is not None and master is not None and master.kind in _OF_PORTS:
            below[link.master].add(ifindex)
    found = {upper: frozenset(under) for upper, under in below.items()}
    for _ in range(_DEEPEST):
        found = {
            upper: frozenset[int]().union(*(found.get(each, {each}) for each in under))
            for upper, under in found.items()
        }
    return found
