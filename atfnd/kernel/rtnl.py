# SPDX-License-Identifier: GPL-2.0-or-later
"""Links, their changes and their addresses, of one network namespace: rtnetlink(7)."""

from __future__ import annotations

import errno
import os
import socket
import struct

from atfnd.kernel.netlink import DUMP, Netlink, attributes
from atfnd.kernel.netns import open_socket

__all__ = ["LinkChanges", "addresses", "links"]

RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
IFLA_IFNAME = 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
_header = struct.Struct("=IHHII")
_ifaddr = struct.Struct("=BBBBI")
_ifinfo = struct.Struct("=BxHiII")


def addresses(netns: str | None, ifindex: int) -> frozenset[bytes]:
    """The interface's own IPv4 and IPv6 addresses, packed."""
    netlink = Netlink(socket.NETLINK_ROUTE, netns)
    try:
        answers = netlink.request(RTM_GETADDR, _ifaddr.pack(0, 0, 0, 0, 0), DUMP)
    finally:
        netlink.close()
    found = set()
    for answer in answers:
        if _ifaddr.unpack_from(answer)[4] == ifindex:
            said = attributes(answer, at=_ifaddr.size)
            found.add(said[IFA_LOCAL] if IFA_LOCAL in said else said[IFA_ADDRESS])
    return frozenset(found)


def links(netns: str | None = None) -> dict[int, str]:
    """Name of every network device by its ifindex, decoded as file names are: it may be any bytes.
    InterruptedError: they change faster than they can be read."""
    netlink = Netlink(socket.NETLINK_ROUTE, netns)
    try:
        answers = netlink.request(RTM_GETLINK, _ifinfo.pack(0, 0, 0, 0, 0), DUMP)
    finally:
        netlink.close()
    return {
        _ifinfo.unpack_from(answer)[2]: os.fsdecode(
            attributes(answer, at=_ifinfo.size)[IFLA_IFNAME].rstrip(bytes(1))
        )
        for answer in answers
    }


class LinkChanges:
    """A listening socket; what changed is read from the kernel by whoever is told."""

    def __init__(self, netns: str | None) -> None:
        """Opens the socket in the namespace at `netns`; FileNotFoundError when there is none."""
        self._socket = open_socket(netns, socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> set[int] | None:
        """Interfaces (ifindex) whose link or addresses changed; None: messages were lost, look at
        all."""
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
            while at + _header.size + _ifaddr.size <= len(data):
                length, kind, *_ = _header.unpack_from(data, at)
                if kind in (RTM_NEWLINK, RTM_DELLINK):
                    changed.add(_ifinfo.unpack_from(data, at + _header.size)[2])
                elif kind in (RTM_NEWADDR, RTM_DELADDR):
                    changed.add(_ifaddr.unpack_from(data, at + _header.size)[4])
                at += max((length + 3) & ~3, _header.size)

    def close(self) -> None:
        self._socket.close()
