# SPDX-License-Identifier: GPL-2.0-or-later
"""How far away a remote is: the shortest time that a handshake with it took. Pure; bounded.

A prediction, not a bound: a path may become shorter. It says whether a filter can be in time;
whether the filter was in time is observed afterwards.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Distances"]


class Distances:
    """By remote address; the one that has been quiet for longest is dropped."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._least_ns: OrderedDict[bytes, int] = OrderedDict()

    def learn(self, remote: bytes, handshake_ns: int) -> None:
        """A connect was answered after this time."""
        self._least_ns[remote] = min(handshake_ns, self._least_ns.get(remote, handshake_ns))
        self._least_ns.move_to_end(remote)
        if len(self._least_ns) > self._capacity:
            self._least_ns.popitem(last=False)

    def least_ns(self, remote: bytes) -> int | None:
        """None: no handshake with it is known."""
        return self._least_ns.get(remote)

    def __len__(self) -> int:
        return len(self._least_ns)
