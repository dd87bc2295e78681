# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy's clauses in the observer's BPF maps, and what control groups its groups hold.

One half of the map is in force. The other half is written, and then the number of the policy
(`generation`) puts it in force. No socket is judged by half of a policy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout
from atfnd.kernel.system.cgroup import open_root
from atfnd.model import Clause, Direction, Network, Protocol

__all__ = ["ClauseMaps", "encoded"]

_CLAUSE = layout("observer", "clause")
_GROUP = layout("observer", "group_key")
_HALF = 256  # CLAUSES, atfnd/bpf/shared/clause.h
_NO_GROUP = 0xFF
_PROTOCOLS = {Protocol.TCP: 1, Protocol.UDP: 2, Protocol.SCTP: 4}  # enum clause_protocol
_DIRECTIONS = {None: 0, Direction.ACCEPTED: 4, Direction.CONNECTED: 8}  # enum observer_flag


def encoded(clause: Clause) -> bytes:
    """As `struct clause`."""
    values = {
        "min_bytes": clause.min_bytes,
        "min_age_ns": clause.min_age_ns,
        **_network("local", clause.local),
        **_network("remote", clause.remote),
        "low_port": clause.ports[0],
        "high_port": clause.ports[1],
        "protocols": sum(_PROTOCOLS[each] for each in clause.protocols),
        "direction": _DIRECTIONS[clause.direction],
        "group": _NO_GROUP if clause.group is None else clause.group,
        "leaves": int(clause.leaves),
    }
    return _CLAUSE.codec.pack(*(values[field] for field in _CLAUSE.fields))


def _network(end: str, network: Network | None) -> dict[str, int | bytes]:
    """An IPv4 address is in the first four bytes; `pack` fills up with zeros."""
    if network is None:
        return {f"{end}_family": 0, end: b"", f"{end}_mask": b""}
    bits = len(network.address) * 8
    mask = (1 << bits) - (1 << bits - network.prefix)
    return {
        f"{end}_family": network.family,
        end: network.address,
        f"{end}_mask": mask.to_bytes(len(network.address)),
    }


class ClauseMaps:
    """The maps of one observer's programs."""

    def __init__(self, programs: _bpf.ObserverPrograms) -> None:
        self._clauses, self._groups = programs.map("clauses"), programs.map("groups")
        self.generation = 0
        self._known: set[int] = set()
        self._root: int | None = None

    def write(self, clauses: Sequence[Clause]) -> int:
        """Write a policy beside the one in force; returns its number, which puts it in force.
        OSError: the one in force stays as it was."""
        generation = self.generation + 1
        first = (generation & 1) * _HALF
        for at, clause in enumerate(clauses, first):
            _bpf.map_update(self._clauses, at.to_bytes(4, "little"), encoded(clause))
        self.generation, self._known = generation, set()
        return generation

    def learn(self, cgroup: int, path: str, groups: int) -> None:
        """As `observe.Observer.learn`. Looked up once, by the inode that its path has."""
        if cgroup in self._known or not self._is_at(cgroup, path):
            return
        key = _GROUP.codec.pack(cgroup, self.generation)
        _bpf.map_update(self._groups, key, groups.to_bytes(8, "little"))
        if len(self._known) >= 4096:  # fewer than the map holds
            self._known.clear()
        self._known.add(cgroup)

    def _is_at(self, cgroup: int, path: str) -> bool:
        """The cgroup is at this path. A process may have left it since it was seen in it. Not for
        the root: where systemd keeps a hierarchy of its own, processes of all its groups are in
        this one's root."""
        name = path.lstrip("/")
        if not name:
            return False
        try:
            if self._root is None:
                self._root = open_root()
            return os.stat(name, dir_fd=self._root).st_ino == cgroup
        except OSError:  # the group is gone, or there is no such hierarchy: it stays unknown
            return False

    def close(self) -> None:
        if self._root is not None:
            os.close(self._root)
            self._root = None
