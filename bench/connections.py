# SPDX-License-Identifier: GPL-2.0-or-later
"""TCP streams into a bed's host, as the first paper has them: two servers, one a core; and the
connections of the host, by the flows it receives (sock_diag(7))."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from atfnd.kernel.netlink.inet_diag import Namespace, flows
from atfnd.kernel.system.netns import path_of
from atfnd.model import FlowKey, Protocol
from bench.bed import Bed
from bench.children import Child, child, program

__all__ = ["PORTS", "Connection", "connections", "streams"]

PORTS = (5001, 6001)


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


@contextmanager
def streams(bed: Bed, count: int, bytes_per_s: int) -> Iterator[tuple[Child, ...]]:
    """The two servers, with `count` streams in all running into them, at this rate together."""
    with ExitStack() as stack:
        servers = []
        for port, cpu in zip(PORTS, bed.cpus, strict=False):
            command = program("streams", "receive", bed.address, port)
            servers.append(stack.enter_context(child(*command, netns=bed.host, cpus=[cpu])))
            servers[-1].said("ready")
        for port in PORTS:
            each = count // len(PORTS), "--rate", bytes_per_s // count
            command = program("streams", "send", bed.address, port, "--streams", *each)
            stack.enter_context(child(*command, netns=bed.peer)).said("connected")
        yield tuple(servers)
