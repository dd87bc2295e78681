# SPDX-License-Identifier: GPL-2.0-or-later
"""TCP streams into a bed's host, as the first paper has them: two servers, one a core; and the
connections of the host, by the flows it receives (sock_diag(7))."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.netlink.inet_diag import Namespace, flows
from atfnd.kernel.system.netns import path_of
from atfnd.model import FlowKey, Protocol
from bench.bed import Bed
from bench.children import Child
from bench.traffic import messages

__all__ = ["PORTS", "Connection", "connections", "streams"]

PORTS = (5001, 6001)
CHUNK_BYTES = 2 * 1448  # two segments of a 1500-byte MTU


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
def streams(program: Path, bed: Bed, count: int, bytes_per_s: int) -> Iterator[tuple[Child, ...]]:
    """The two servers, with `count` streams in all running into them, at this rate together.
    `program`: as traffic.messages has built it."""
    with ExitStack() as stack:
        servers = []
        for port, cpu in zip(PORTS, bed.cpus, strict=False):
            server = messages.serving(
                program, bed.host, bed.address, port, CHUNK_BYTES, "copy", [cpu]
            )
            servers.append(stack.enter_context(server))
        for port in PORTS:
            each = count // len(PORTS), bytes_per_s / len(PORTS)
            stack.enter_context(
                messages.sending(program, bed.peer, bed.address, port, CHUNK_BYTES, *each)
            )
        yield tuple(servers)
