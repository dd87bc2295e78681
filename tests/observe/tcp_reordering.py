# SPDX-License-Identifier: GPL-2.0-or-later
"""What TCP itself says of reordering: a check on what is observed of moves, never evidence for one.

Reads TcpExt of /proc/net/netstat (net/ipv4/proc.c) and tcpi_rcv_ooopack (struct tcp_info, since
5.4) over sock_diag(7). A segment that comes out of order because another was lost counts here too,
so they mean reordering only where no ring dropped anything.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import NamedTuple

from atfnd.kernel.netlink.requests import Netlink, attributes
from atfnd.kernel.system.netns import in_netns
from atfnd.model import FlowKey

__all__ = ["Counters", "TcpReordering"]

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
INET_DIAG_INFO = 2
ANY_STATE = 0xFFFFFFFF
ANY_SOCKET = bytes(4) + b"\xff" * 8  # no interface, INET_DIAG_NOCOOKIE
OOOPACK = 224  # offset of tcpi_rcv_ooopack
FILE_BYTES = 1 << 16

_request = struct.Struct("=BBBxI")
_ports = struct.Struct("!HH")
_word = struct.Struct("=I")
MESSAGE_BYTES, PORTS = 72, 4  # struct inet_diag_msg, and where its ports are


class Counters(NamedTuple):
    """Of one namespace since it was made; by their names in TcpExt."""

    TCPOFOQueue: int  # segments queued out of order
    TCPSACKReorder: int  # as a sender: reordering seen by SACK
    TCPTSReorder: int  # as a sender: by timestamps
    TCPDSACKRecvSegs: int  # as a sender: segments that had been sent for nothing


class TcpReordering:
    """Readers of the namespace at `netns` (a path, None for our own), which they keep alive."""

    def __init__(self, netns: str | None = None) -> None:
        self._netlink = Netlink(NETLINK_SOCK_DIAG, netns)
        try:
            self._netstat = in_netns(netns, _open_netstat)
        except OSError:
            self._netlink.close()
            raise

    def close(self) -> None:
        self._netlink.close()
        os.close(self._netstat)

    def counters(self) -> Counters:
        """KeyError: the kernel has not all of them."""
        lines = os.pread(self._netstat, FILE_BYTES, 0).decode().splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith("TcpExt:"))
        found = dict(zip(names, map(int, values), strict=True))
        return Counters(*(found[name] for name in Counters._fields))

    def out_of_order(self, flow: FlowKey) -> int | None:
        """Segments that came out of order to a connected TCP socket since it was made. None: the
        socket is gone, or the kernel does not say."""
        address = socket.AF_INET if flow.family == 4 else socket.AF_INET6
        size = 16 - len(flow.local)
        request = _request.pack(address, flow.protocol, 1 << INET_DIAG_INFO - 1, ANY_STATE)
        ports = _ports.pack(flow.local_port, flow.remote_port)
        request += ports + flow.local + bytes(size) + flow.remote + bytes(size)
        try:
            (answer,) = self._netlink.request(SOCK_DIAG_BY_FAMILY, request + ANY_SOCKET)
        except OSError as refusal:
            if refusal.errno != errno.ENOENT:
                raise
            return None
        info = attributes(answer, MESSAGE_BYTES).get(INET_DIAG_INFO, b"")
        if answer[PORTS : PORTS + _ports.size] != ports or len(info) < OOOPACK + _word.size:
            return None  # without the connection the kernel answers with its listener
        return int(_word.unpack_from(info, OOOPACK)[0])


def _open_netstat() -> int:
    return os.open("/proc/thread-self/net/netstat", os.O_RDONLY | os.O_CLOEXEC)
