# SPDX-License-Identifier: GPL-2.0-or-later
"""Which TCP ports are listened on, by network namespace: who has such a local port was accepted.

Reads sock_diag(7), states LISTEN only. A socket that connects from a port that is listened on
(SO_REUSEADDR, SO_REUSEPORT, both bound) is taken for one that was accepted.
"""

from __future__ import annotations

import socket
from contextlib import closing, suppress

from atfnd.bpf import _bpf
from atfnd.kernel.inet_diag import flows
from atfnd.kernel.netns import open_netns
from atfnd.model import FlowKey, Protocol

__all__ = ["ListenedPorts"]

_LISTEN = 1 << 10  # include/net/tcp_states.h

_Ends = frozenset[tuple[bytes, int]]


class ListenedPorts:
    """Read when asked, once in `FRESH_NS` at most."""

    FRESH_NS = 1_000_000_000

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[int, _Ends]] = {}

    def serves(self, netns: str | None, key: FlowKey, now_ns: int) -> bool:
        """A socket of this namespace listens where this flow ends; none in one that is gone."""
        looked_ns, ends = self._known.get(netns, (None, frozenset()))
        if looked_ns is None or now_ns - looked_ns >= self.FRESH_NS:
            ends = _listened(netns)
            self._known[netns] = now_ns, ends
        return not ends.isdisjoint(
            {(key.local, key.local_port), (bytes(len(key.local)), key.local_port)}
        )


def _listened(netns: str | None) -> _Ends:
    ends = set()
    with suppress(FileNotFoundError), open_netns(netns) as descriptor:
        for family in (socket.AF_INET, socket.AF_INET6):
            with closing(_bpf.SockDiag(descriptor, family, Protocol.TCP, _LISTEN)) as dump:
                ends |= {(key.local, key.local_port) for _, key, _ in flows(dump.dump())}
    return frozenset(ends)
