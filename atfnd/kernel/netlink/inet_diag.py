# SPDX-License-Identifier: GPL-2.0-or-later
"""IP sockets of one network namespace over sock_diag: sock_diag(7), net/ipv4/inet_diag.c.

The dumps and the records' layout are C (`atfnd/bpf/extension/sockdiag.h`); this file opens one
reader per transport and names what a record says: pyroute2's DiagSocket takes 32 times as long to
list 20,000 sockets (docs/internals/bench.md). Reads only.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout_of
from atfnd.model import FlowKey, Protocol

__all__ = ["NOT_SAID", "Namespace", "SocketRecord", "flow_keys", "flows", "listeners", "records"]

NOT_SAID = 2**64 - 1

# include/net/tcp_states.h; UDP has ESTABLISHED (connected) and CLOSE (bound only)
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE, _CLOSE_WAIT, _LISTEN = 1, 4, 5, 7, 8, 10
# Half-closed connections still carry data one way.
_TCP_STATES = 1 << _ESTABLISHED | 1 << _FIN_WAIT1 | 1 << _FIN_WAIT2 | 1 << _CLOSE_WAIT
_STATES = {
    Protocol.TCP: _TCP_STATES,
    Protocol.UDP: 1 << _ESTABLISHED | 1 << _CLOSE,
    Protocol.SCTP: 1 << _ESTABLISHED,
}


class SocketRecord(NamedTuple):
    """One socket as a dump shows it: `struct sockdiag_record`, field by field."""

    cookie: int
    app_bytes: int  # read and written by the application, NOT_SAID without counters
    acked: int  # of TCP: bytes that the peer has; a SYN counts one
    cgroup: int  # 0: not said
    first_ns: int  # when `changes` first saw it
    local: bytes  # 16 bytes, the first 4 for IPv4
    remote: bytes
    local_port: int
    remote_port: int
    interface: int
    uid: int
    rtt_us: int  # of TCP, smoothed; 0: not said
    inode: int
    family: int  # 4 or 6
    protocol: int
    state: int
    both: int  # receives IPv4 and IPv6


_FIELDS, _RECORD = layout_of(*_bpf.sockdiag_layout())
if SocketRecord._fields != _FIELDS:
    raise TypeError("SocketRecord and struct sockdiag_record differ")


def records(raw: bytes) -> Iterator[SocketRecord]:
    """The records of a dump."""
    return map(SocketRecord._make, _RECORD.iter_unpack(raw))


def flow_keys(record: SocketRecord) -> tuple[FlowKey, ...]:
    """The flows that reach a socket: one, or two for an unconnected dual-stack socket."""
    size = 4 if record.family == 4 else 16
    key = FlowKey(
        record.protocol,
        record.local[:size],
        record.local_port,
        record.remote[:size],
        record.remote_port,
    )
    if not record.both:
        return (key,)
    return (key, key._replace(local=bytes(4), remote=bytes(4)))


def flows(raw: bytes) -> Iterator[tuple[int, FlowKey, int]]:
    """Cookie, flow and bytes of every socket of a dump, as fast as Python can: no record objects.

    `tuple.__new__` skips the named tuple's own constructor (half the time of a large dump).
    """
    new = tuple.__new__
    for (
        cookie,
        count,
        _,
        _,
        _,
        local,
        remote,
        lport,
        rport,
        _,
        _,
        _,
        _,
        family,
        protocol,
        _,
        both,
    ) in _RECORD.iter_unpack(raw):
        if family == 4:
            local, remote = local[:4], remote[:4]
        yield cookie, new(FlowKey, (protocol, local, lport, remote, rport)), count
        if both:
            yield cookie, FlowKey(protocol, bytes(4), lport, bytes(4), rport), count


def listeners(descriptor: int) -> Iterator[tuple[int, FlowKey]]:
    """Cookie and key of every TCP listener of the namespace of this descriptor; of one for both
    families, with the key of each. OSError: it cannot be entered."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with closing(_bpf.SockDiag(descriptor, family, Protocol.TCP, 1 << _LISTEN)) as dump:
            yield from ((cookie, key) for cookie, key, _ in flows(dump.dump()))


class Namespace:
    """Readers for every transport of a namespace (a path, or None for our own).

    While open it keeps the namespace alive, even after `ip netns del`. OSError: no such namespace,
    or a kernel without inet_diag for TCP or UDP; SCTP is left out where the kernel lacks it.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.dumps: list[_bpf.SockDiag] = []
        fd = -1 if path is None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.destroyed = _bpf.DestroyListener(fd)
            for protocol, states in _STATES.items():
                for family in (socket.AF_INET, socket.AF_INET6):
                    self._open(_bpf.SockDiag(fd, family, protocol, states), protocol)
        finally:
            if fd >= 0:
                os.close(fd)

    def _open(self, dump: _bpf.SockDiag, protocol: Protocol) -> None:
        try:
            dump.dump()
        except OSError as error:
            dump.close()
            if protocol is not Protocol.SCTP or error.errno != errno.ENOENT:
                raise
        else:
            self.dumps.append(dump)

    def close(self) -> None:
        """Give the sockets back; may be called again."""
        for dump in self.dumps:
            dump.close()
        self.dumps.clear()
        self.destroyed.close()
