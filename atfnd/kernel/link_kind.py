# SPDX-License-Identifier: GPL-2.0-or-later
"""What a network interface is made of: its kind, the interfaces it stands on, its XDP program.

Reads RTM_GETLINK (rtnetlink(7); IFLA_LINKINFO, IFLA_XDP: net/core/rtnetlink.c) and the lower_*
links of /sys/class/net/X (net/core/dev.c, netdev_adjacent_sysfs_add).
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import NamedTuple

from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink import Netlink, attributes

__all__ = ["LinkKind", "link_kind", "lower_interfaces"]

RTM_GETLINK = 18
IFLA_LINKINFO, IFLA_XDP = 18, 43
INFO_KIND = 1
XDP_ATTACHED, XDP_MODES = 2, {1: "in the driver", 2: "generic", 3: "in hardware", 4: "several"}
_ifinfo = struct.Struct("=BxHiII")


class LinkKind(NamedTuple):
    kind: str | None  # "veth", "bond", "vlan"; None: hardware
    xdp: str | None  # how an XDP program is attached; None: there is none


def link_kind(netns: str | None, ifindex: int) -> LinkKind:
    """OSError(ENODEV): no such interface."""
    netlink = Netlink(socket.NETLINK_ROUTE, netns)
    try:
        answer = netlink.request(RTM_GETLINK, _ifinfo.pack(0, 0, ifindex, 0, 0))[0]
    finally:
        netlink.close()
    found = attributes(answer, at=_ifinfo.size)
    kind = attributes(found.get(IFLA_LINKINFO, b"")).get(INFO_KIND)
    attached = attributes(found.get(IFLA_XDP, b"")).get(XDP_ATTACHED, b"")
    return LinkKind(
        None if kind is None else kind.rstrip(b"\0").decode(),
        XDP_MODES.get(int.from_bytes(attached, sys.byteorder)),
    )


def lower_interfaces(interface: Interface) -> list[str]:
    """Those this one is stacked on: a bond's or bridge's ports, a VLAN's device."""
    lower = "lower_"
    return sorted(n.removeprefix(lower) for n in interface.list() if n.startswith(lower))
