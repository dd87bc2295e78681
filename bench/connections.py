# SPDX-License-Identifier: GPL-2.0-or-later
"""TCP connections of a bed's host, by the flows it receives (sock_diag(7))."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from atfnd.kernel.netlink.inet_diag import Namespace, flows
from atfnd.kernel.system.netns import path_of
from atfnd.model import FlowKey, Protocol
from bench.bed import Bed

__all__ = ["Connection", "connections"]


class Connection(NamedTuple):
    """One socket."""

    cookie: int
    bytes: int  # received and acknowledged since it was made


def connections(bed: Bed) -> dict[FlowKey, Connection]:
    """Those that are not listeners, in the order of their ports."""
    found = {}
    with closing(Namespace(path_of(bed.host) if bed.host else None)) as namespace:
        for dump in namespace.dumps:
            for cookie, key, count in flows(dump.dump()):
                if key.protocol == Protocol.TCP and key.remote_port:
                    found[key] = Connection(cookie, count)
    return dict(sorted(found.items()))
