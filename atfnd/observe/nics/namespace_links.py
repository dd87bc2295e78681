# SPDX-License-Identifier: GPL-2.0-or-later
"""Links, addresses and routes of a network namespace, which all NICs in it share.

Reads rtnetlink. All links and addresses are listed once; from then on each notification changes
what is known, so no event costs a list of all. Routes are asked for one by one, and only where
there is a tunnel.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from typing import ClassVar

from atfnd.kernel.netlink.requests import Changes, Netlink
from atfnd.kernel.netlink.rtnl import (
    Address,
    AddressNews,
    Link,
    LinkNews,
    addresses,
    link_news,
    links,
    route,
    route_changes,
)
from atfnd.kernel.netlink.tunnels import Tunnel, addresses_behind, under
from atfnd.kernel.system.netns import identity

__all__ = ["NamespaceLinks"]

_ROUTES = 4096  # that are remembered


class NamespaceLinks:
    """One for each namespace (`of`); the last `close` of it closes its sockets. It may raise what a
    dump raises: FileNotFoundError when the namespace has gone, InterruptedError."""

    _open: ClassVar[dict[tuple[int, int], NamespaceLinks]] = {}

    @classmethod
    def of(cls, netns: str | None) -> NamespaceLinks:
        """That of the namespace at this path (None: our own). FileNotFoundError: there is none."""
        name = identity(netns)
        if name not in cls._open:
            cls._open[name] = cls(netns, name)
        cls._open[name]._users += 1
        return cls._open[name]

    def __init__(self, netns: str | None, name: tuple[int, int]) -> None:
        self._netns, self._name, self._users = netns, name, 0
        self._news = link_news(netns)
        self._links: dict[int, Link] | None = None
        self._addresses: set[Address] = set()
        self._of_device: dict[int, set[bytes]] | None = None
        self._tunnels: dict[int, tuple[dict[int, Tunnel], dict[bytes, Tunnel]]] = {}  # by NIC
        self._routes: dict[tuple[bytes, bytes], int | None] = {}
        self._asking: tuple[Netlink, Changes[int]] | None = None  # for routes

    def close(self) -> None:
        """One user less."""
        self._users -= 1
        if self._users:
            return
        del self._open[self._name]
        self._news.close()
        if self._asking is not None:
            for each in self._asking:
                each.close()

    def look(self) -> None:
        """Take in what the kernel has reported."""
        if self._links is None:
            return
        heard = self._news.heard()
        if heard is None:  # some were lost
            self._links = None
            return
        for each in heard:
            if self._differs(self._links, each):
                self._of_device = None
                self._tunnels.clear()
                self._routes.clear()

    def _differs(self, known: dict[int, Link], news: LinkNews | AddressNews) -> bool:
        """Change what is known; False: it was known."""
        if isinstance(news, AddressNews):
            if (news.address in self._addresses) == news.there:
                return False
            (self._addresses.add if news.there else self._addresses.remove)(news.address)
        elif news.link is None:
            return known.pop(news.ifindex, None) is not None
        elif known.get(news.ifindex) == news.link:
            return False
        else:
            known[news.ifindex] = news.link
        return True

    def _known(self) -> dict[int, Link]:
        if self._links is None:
            self._news.heard()  # what is waiting is older than the lists
            self._addresses, found = addresses(self._netns), links(self._netns)
            self._links, self._of_device = found, None
            self._tunnels.clear()
            self._routes.clear()
        return self._links

    def addresses(self, ifindex: int) -> set[bytes]:
        """Those of a device, packed."""
        self._known()
        if self._of_device is None:
            grouped = defaultdict(set)
            for each in self._addresses:
                grouped[each.ifindex].add(each.packed)
            self._of_device = dict(grouped)
        return self._of_device.get(ifindex, set())

    def tunnel(self, nic: int, local: bytes, remote: bytes | None) -> Tunnel | None:
        """The tunnel by which packets between these addresses come to the NIC (its ifindex): the
        device that has the local address, or the one that answers go out by. None: no tunnel is
        known."""
        known = self._known()
        if nic not in self._tunnels:
            devices = under(known, nic)
            self._tunnels[nic] = devices, addresses_behind(devices, self._addresses)
        devices, behind = self._tunnels[nic]
        if not devices:
            return None
        if (found := behind.get(local)) is not None:
            return found
        out_by = None if remote is None else self._route(local, remote)
        return None if out_by is None else devices.get(out_by)

    def _route(self, local: bytes, remote: bytes) -> int | None:
        """The device by which answers go out."""
        if self._asking is None:
            self._asking = Netlink(socket.NETLINK_ROUTE, self._netns), route_changes(self._netns)
        asking, changes = self._asking
        if changes.heard() != [] or len(self._routes) >= _ROUTES:
            self._routes.clear()
        ends = local, remote
        if ends not in self._routes:
            self._routes[ends] = route(asking, local, remote)
        return self._routes[ends]
