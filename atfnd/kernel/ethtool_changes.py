# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes of channels, rings, coalescing, features, private flags and RSS, by whomever.

Listens to the group "monitor" of the generic netlink family ethtool
(Documentation/networking/ethtool-netlink.rst; net/ethtool/netlink.c, ethnl_notify), which ioctls
notify too. RSS is among them since 6.17; filter rules never are.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys

from atfnd.kernel.ethtool import HEADER, HEADER_DEV_INDEX, NETLINK_GENERIC
from atfnd.kernel.netlink import SOL_NETLINK, Netlink, attributes, generic_group
from atfnd.kernel.netns import open_socket

__all__ = ["EthtoolChanges"]

NETLINK_ADD_MEMBERSHIP = 1
_header = struct.Struct("=IHHII")
GENERIC_HEADER_BYTES = 4


class EthtoolChanges:
    """A listening socket, as `rtnl.LinkChanges`; what changed is read by whoever is told."""

    def __init__(self, netns: str | None) -> None:
        """Opens the socket in the namespace at `netns`; FileNotFoundError when there is none."""
        asking = Netlink(NETLINK_GENERIC, netns)
        try:
            group = generic_group(asking, "ethtool", "monitor")
        finally:
            asking.close()
        self._socket = open_socket(netns, socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self._socket.bind((0, 0))
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> set[int] | None:
        """Interfaces (ifindex) that were changed; None: messages were lost, look at all."""
        changed: set[int] = set()
        overrun = False
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return None if overrun else changed
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                overrun = True
                continue
            at = 0
            while at + _header.size <= len(data):
                length = _header.unpack_from(data, at)[0]
                changed |= _interface(data[at + _header.size + GENERIC_HEADER_BYTES : at + length])
                at += max((length + 3) & ~3, _header.size)

    def close(self) -> None:
        self._socket.close()


def _interface(message: bytes) -> set[int]:
    """Every notification names its device in a header, its first attribute."""
    header = attributes(attributes(message).get(HEADER, b""))
    return {
        int.from_bytes(value, sys.byteorder)
        for kind, value in header.items()
        if kind == HEADER_DEV_INDEX
    }
