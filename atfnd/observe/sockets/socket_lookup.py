# SPDX-License-Identifier: GPL-2.0-or-later
"""Does a flow have an open socket now? One question to sock_diag of a network namespace.

Reads by SOCK_DIAG_BY_FAMILY of one socket (sock_diag(7); inet_diag_find_one_icsk() in
net/ipv4/inet_diag.c, udp_dump_one() in net/ipv4/udp_diag.c, which wants the ends in turn): what the
kernel would deliver a packet of the flow to. A connect is there before its SYN leaves, an accepted
connection from its SYN on.
"""

from __future__ import annotations

import errno
import struct
import sys

from atfnd.kernel.netlink.requests import Netlink
from atfnd.model import FlowKey, Protocol

__all__ = ["SocketLookup"]

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
AF_INET, AF_INET6 = 2, 10
ANY_STATE, ANY_COOKIE = 0xFFFFFFFF, b"\xff" * 8
# include/net/tcp_states.h: data may come. In other states only while an application has it open: a
# closed one is only shutting down, and TIME_WAIT is no socket.
OPEN = {1, 2, 3, 8, 12}  # ESTABLISHED, SYN_SENT, SYN_RECV, CLOSE_WAIT, NEW_SYN_RECV

# linux/inet_diag.h: inet_diag_sockid, in inet_diag_req_v2 and in inet_diag_msg
_ID = ">HH16s16s4x8s"
_request = struct.Struct(f"=BBBxI{struct.calcsize(_ID)}s")
_id = struct.Struct(_ID)
_answer = struct.Struct(f"=BBBB{_id.size}sIIIII")  # ..., expires, rqueue, wqueue, uid, inode


class SocketLookup:
    """Asks in the namespace at `netns` (None: our own). OSError: there is none."""

    def __init__(self, netns: str | None) -> None:
        self._netlink = Netlink(NETLINK_SOCK_DIAG, netns)

    def close(self) -> None:
        self._netlink.close()

    def cookie(self, key: FlowKey) -> int | None:
        """The cookie of the socket that a flow is delivered to. None: there is none, or it only
        listens for connections. OSError: the kernel does not answer such questions."""
        ends = (key.local_port, key.remote_port), (key.local, key.remote)
        if key.protocol == Protocol.UDP:
            ends = ends[0][::-1], ends[1][::-1]
        asked = _id.pack(*ends[0], *ends[1], ANY_COOKIE)
        family = AF_INET if key.family == 4 else AF_INET6
        try:
            answers = self._netlink.request(
                SOCK_DIAG_BY_FAMILY, _request.pack(family, key.protocol, 0, ANY_STATE, asked)
            )
        except OSError as refusal:
            if refusal.errno == errno.ENOENT:
                return None
            raise
        for answer in answers:
            family, state, _, _, found, _, _, _, _, inode = _answer.unpack_from(answer)
            local_port, remote_port, local, _, cookie = _id.unpack(found)
            local = local[: 4 if family == AF_INET else 16][-len(key.local) :]  # may be IPv4-mapped
            if (local, local_port, remote_port) != (key.local, key.local_port, key.remote_port):
                continue  # a listener, or a socket that has the port for every address
            if state in OPEN or inode:
                return int.from_bytes(cookie, sys.byteorder)
        return None
