# SPDX-License-Identifier: GPL-2.0-or-later
"""The flows that a network namespace forwards and translates (NAT), and where they come in.

Reads conntrack (kernel/netlink/conntrack.py) and routes. Conntrack does not say by which interface
packets come: it is taken to be the one that leads back to their source, or what is below that.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

from atfnd.kernel.netlink.conntrack import Conntrack
from atfnd.kernel.netlink.requests import Netlink
from atfnd.kernel.netlink.rtnl import links, route
from atfnd.model import FlowKey, TranslatedFlow
from atfnd.observe.nics.stacked import lowest

__all__ = ["NamespaceTranslations"]


class NamespaceTranslations:
    """Of the namespace at `netns` (None: our own). OSError: there is none, or no conntrack."""

    def __init__(self, netns: str | None) -> None:
        self._netns = netns
        self._lowest = lowest(links(netns))
        with ExitStack() as undo:
            self._conntrack = undo.enter_context(closing(Conntrack(netns)))
            self._routes = undo.enter_context(closing(Netlink(socket.NETLINK_ROUTE, netns)))
            undo.pop_all()

    def close(self) -> None:
        self._conntrack.close()
        self._routes.close()

    def read(self, least_bytes: int) -> Iterator[list[TranslatedFlow]]:
        """As `Conntrack.translated`: some at a time, those that have had `least_bytes`."""
        with closing(Conntrack(self._netns)) as conntrack:
            yield from conntrack.translated(least_bytes)

    def find(self, key: FlowKey) -> TranslatedFlow | None:
        """As `Conntrack.find`."""
        return self._conntrack.find(key)

    def ingress(self, key: FlowKey) -> int | None:
        """The interface (ifindex) that packets of a direction come in by. None: not known, or it is
        one of those that a bond is made of."""
        back_by = route(self._routes, None, key.remote)
        if back_by is None or back_by not in self._lowest:
            return back_by
        below = self._lowest[back_by]
        return next(iter(below)) if len(below) == 1 else None
