# SPDX-License-Identifier: GPL-2.0-or-later
"""Which packets are forwarded, from which interface to which TX queue
(atfnd/bpf/programs/pairs.bpf.c).

Every packet that the machine sends takes longer while it counts, so it counts only while somebody
waits for the result. OSError: the kernel refuses the program. Of interfaces that stand upon others
it says where their packets come in and go out; not of tunnels: these may come by any interface.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout
from atfnd.kernel.netlink.rtnl import Link, links
from atfnd.kernel.system.netns import identity, named
from atfnd.model import ForwardedCount

__all__ = ["ForwardedPackets", "InterfaceMap", "interfaces", "lowest", "namespace"]


class InterfaceMap(NamedTuple):
    """By inode number of the namespace, and ifindex; and the names of namespaces."""

    names: Mapping[tuple[int, int], str]
    below: Mapping[tuple[int, int], tuple[tuple[int, int], ...]]  # of each that stands upon others
    namespaces: Mapping[int, str] = MappingProxyType({})


def namespace(netns: str | None) -> int:
    """The inode number of the namespace at this path (None: our own), which BPF programs see.
    FileNotFoundError: there is none."""
    return identity(netns)[1]


def interfaces(namespaces: Iterable[str | None]) -> InterfaceMap:
    """Every interface in these namespaces, and what is at the bottom of those that stand upon
    others (`stacked`). Lists them by rtnetlink; a namespace that is gone has none."""
    names = dict[tuple[int, int], str]()
    below = dict[tuple[int, int], tuple[tuple[int, int], ...]]()
    for netns in namespaces:
        try:
            inode, every = namespace(netns), links(netns)
        except FileNotFoundError:
            continue
        names |= {(inode, ifindex): link.name for ifindex, link in every.items()}
        for upper, under in lowest(every).items():
            below[inode, upper] = tuple((inode, ifindex) for ifindex in sorted(under))
    return InterfaceMap(names, below, named())


class ForwardedPackets:
    """Counts what every namespace forwards, until `close`."""

    def __init__(self) -> None:
        self._counter = _bpf.PairsPrograms()
        self._map = self._counter.map()
        self._key, self._count = layout("pairs", "pair_key"), layout("pairs", "pair_count")

    def read(self) -> list[ForwardedCount]:
        """Since the beginning, one for each ingress, TX queue and CPU."""
        return [
            ForwardedCount(*self._key.codec.unpack(key), *self._count.codec.unpack(count))
            for key, count in dict(_bpf.map_items(self._map)).items()
        ]

    def missed(self) -> int:
        """Packets that found no room among 4096 of those."""
        return self._counter.missed()

    def close(self) -> None:
        """Detach; nothing is left in the kernel."""
        self._counter.close()


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
