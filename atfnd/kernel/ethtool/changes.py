# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes of channels, rings, coalescing, features, private flags and RSS, by any program.

Listens to the group "monitor" of the generic netlink family ethtool
(Documentation/networking/ethtool-netlink.rst; net/ethtool/netlink.c, ethnl_notify), which ioctls
notify too. RSS is among them since 6.17; filter rules never are.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import closing

from atfnd.kernel.ethtool.device import HEADER, HEADER_DEV_INDEX
from atfnd.kernel.netlink.requests import (
    NETLINK_GENERIC,
    SOL_NETLINK,
    Changes,
    GenericFamily,
    attributes,
    messages,
)
from atfnd.kernel.system.netns import open_socket

__all__ = ["ethtool_changes"]

NETLINK_ADD_MEMBERSHIP = 1
GENERIC_HEADER_BYTES = 4


def ethtool_changes(netns: str | None) -> Changes[int]:
    """Interfaces (ifindex) that are changed. FileNotFoundError: no such namespace."""
    with closing(GenericFamily("ethtool", netns)) as family:
        group = family.group("monitor")
    listening = open_socket(netns, socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
    listening.bind((0, 0))
    listening.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    return Changes(listening, _changed)


def _changed(datagram: bytes) -> Iterator[int]:
    """Every notification names its device in a header, its first attribute."""
    for message in messages(datagram):
        header = attributes(attributes(message.payload, GENERIC_HEADER_BYTES).get(HEADER, b""))
        if HEADER_DEV_INDEX in header:
            yield int.from_bytes(header[HEADER_DEV_INDEX], sys.byteorder)
