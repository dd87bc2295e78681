# SPDX-License-Identifier: GPL-2.0-or-later
"""Connects and listeners of served network namespaces, as they happen.

Reads through a sockops program of the root cgroup (atfnd/bpf/programs/birth.bpf.c), which changes
no socket, while attached; and finds earlier listeners by sock_diag. A listener for both families is
reported twice, once with the key of each; other keys are those of `observe.sockets.bpf`. Times are
CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout
from atfnd.kernel.netlink.inet_diag import listeners
from atfnd.kernel.system.cgroup import open_root
from atfnd.kernel.system.netns import open_netns
from atfnd.model import (
    Accepted,
    Born,
    Connected,
    Connecting,
    FlowKey,
    Forked,
    Listening,
    Protocol,
    SocketGone,
    Thread,
)

__all__ = ["Births"]

_EVENT = layout("birth", "birth_event")
_CONNECTING, _CONNECTED, _LISTENING, _ACCEPTED, _FORKED = 1, 2, 3, 4, 6  # enum birth_kind
_DUAL_STACK, _ALONE, _PINNED = 1, 2, 4  # enum birth_flag
_RING_BYTES = 1 << 20
_ANY4 = bytes(4)

_Row = tuple[
    int, int, int, int, int, int, int, int, int, int, bytes, bytes, bytes, int, int, int, int, int
]  # fmt: skip


def _born(row: _Row) -> Iterator[Born]:
    at_ns, cookie, cgroup, handshake_ns, kind, netns, cpu, tid, pid, napi_id = row[:10]
    local, remote, name, local_port, remote_port, family, flags, uid = row[10:]
    size = 4 if family == 4 else 16
    key = FlowKey(Protocol.TCP, local[:size], local_port, remote[:size], remote_port)
    if kind == _CONNECTED:
        yield Connected(at_ns, cookie, key, handshake_ns)
    elif kind == _ACCEPTED:
        yield Accepted(at_ns, cookie, key, napi_id or None)
    elif kind in (_CONNECTING, _LISTENING):
        comm = name.rstrip(b"\0").decode("utf-8", "replace")
        thread = Thread(tid, pid, comm, cgroup or None, uid)
        if kind == _CONNECTING:
            yield Connecting(at_ns, cookie, key, netns, thread, cpu)
            return
        alone, pinned = bool(flags & _ALONE), bool(flags & _PINNED)
        yield Listening(at_ns, cookie, key, netns, thread, cpu, alone, pinned)
        if flags & _DUAL_STACK:
            other = key._replace(local=_ANY4, remote=_ANY4)
            yield Listening(at_ns, cookie, other, netns, thread, cpu, alone, pinned)
    elif kind == _FORKED:
        yield Forked(at_ns, pid)
    else:
        yield SocketGone(at_ns, cookie)


class Births:
    """Serves no namespace until `serve`. OSError: the kernel refuses the programs."""

    def __init__(self, ring_bytes: int = _RING_BYTES) -> None:
        self._bpf = _bpf.Birth(ring_bytes)
        self._netns: dict[int, str | None] = {}  # path by inode number
        self._ports: frozenset[int] = frozenset()

    def serve(self, netns: Sequence[str | None]) -> None:
        """Report these namespaces only (paths; None is our own), in place of those before."""
        wanted: dict[int, str | None] = {}
        for path in netns:
            with open_netns(path) as descriptor:
                wanted[os.fstat(descriptor).st_ino] = path
        for inode in wanted.keys() - self._netns.keys():
            _bpf.map_update(self._bpf.map("served"), inode.to_bytes(4, "little"), b"\1")
        for inode in self._netns.keys() - wanted.keys():
            _bpf.map_delete(self._bpf.map("served"), inode.to_bytes(4, "little"))
        self._netns = wanted

    def is_of(self, netns: int, path: str | None) -> bool:
        """This inode number is that of a namespace that is served under this path."""
        return netns in self._netns and self._netns[netns] == path

    def accepts(self, ports: Collection[int]) -> None:
        """Report connections that are accepted on these local ports, in place of those before."""
        wanted = frozenset(ports)
        for port in wanted - self._ports:
            _bpf.map_update(self._bpf.map("accepting"), port.to_bytes(2, "little"), b"\1")
        for port in self._ports - wanted:
            _bpf.map_delete(self._bpf.map("accepting"), port.to_bytes(2, "little"))
        self._ports = wanted

    def start(self) -> None:
        """Attach. OSError: EALREADY, and as when the root cgroup has a program that tolerates no
        other."""
        root = open_root()
        try:
            self._bpf.start(root)
        finally:
            os.close(root)

    def fileno(self) -> int:
        """epoll descriptor: readable when there are events."""
        return self._bpf.fileno()

    def drain(self) -> list[Born]:
        """What happened since the last call, oldest first. A SocketGone is for a socket that was
        reported before, or for any listener."""
        return [each for row in _EVENT.codec.iter_unpack(self._bpf.drain()) for each in _born(row)]

    def lost(self) -> int:
        """Events that found the ring buffer full: ask `listeners` again, and do not wait for the
        end of a connect."""
        return self._bpf.lost()

    def listeners(self) -> list[Listening]:
        """Every TCP listener of the served namespaces now, except on loopback. OSError: a namespace
        is gone."""
        found = []
        for inode, path in self._netns.items():
            with open_netns(path) as descriptor:
                now_ns, there = time.monotonic_ns(), listeners(descriptor)
                found += [Listening(now_ns, cookie, key, inode) for cookie, key in there]
        return found

    def close(self) -> None:
        self._bpf.close()
