# SPDX-License-Identifier: GPL-2.0-or-later
"""Which TCP ports are listened on, by network namespace: a connection with such a local port was
accepted.

Reads sock_diag(7), states LISTEN only. A socket that connects from a port that is listened on
(SO_REUSEADDR, SO_REUSEPORT, both bound) counts as accepted.
"""

from __future__ import annotations

from contextlib import suppress

from atfnd.kernel.netlink.inet_diag import listeners
from atfnd.kernel.system.netns import open_netns
from atfnd.model import FlowKey

__all__ = ["ListenedPorts"]

_Ends = frozenset[tuple[bytes, int]]


class ListenedPorts:
    """Read when asked: once in `FRESH_NS` at most, or in `SOON_NS` for flows that are younger than
    what is known."""

    FRESH_NS, SOON_NS = 1_000_000_000, 20_000_000

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[int, _Ends]] = {}

    def serves(
        self, netns: str | None, key: FlowKey, now_ns: int, born_ns: int | None = None
    ) -> bool:
        """A socket of this namespace listens where this flow, first seen at `born_ns`, ends. False
        in a namespace that is gone."""
        looked_ns, ends = self._known.get(netns, (None, frozenset()))
        found = _ends_at(key, ends)
        younger = not found and born_ns is not None and born_ns > (looked_ns or 0)
        after_ns = self.SOON_NS if younger else self.FRESH_NS
        if looked_ns is None or now_ns - looked_ns >= after_ns:
            ends = _listened(netns)
            self._known[netns] = now_ns, ends
            return _ends_at(key, ends)
        return found


def _ends_at(key: FlowKey, ends: _Ends) -> bool:
    anyone = bytes(len(key.local))
    return (key.local, key.local_port) in ends or (anyone, key.local_port) in ends


def _listened(netns: str | None) -> _Ends:
    ends = set[tuple[bytes, int]]()
    with suppress(FileNotFoundError), open_netns(netns) as descriptor:
        ends = {(key.local, key.local_port) for _, key in listeners(descriptor)}
    return frozenset(ends)
