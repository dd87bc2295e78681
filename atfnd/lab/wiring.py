# SPDX-License-Identifier: GPL-2.0-or-later
"""What a lab consists of: three namespaces, two veth pairs, addresses. Constants and names.

Each lab has its own namespaces, so all labs use the same interface names and addresses.

Neighbour discovery is off (IFF_NOARP) on every link, and both ends of a pair have one Ethernet
address: a neighbour entry of a NOARP device has the device's own address (net/ipv4/arp.c,
arp_constructor; net/ipv6/ndisc.c, ndisc_constructor), which is then the other end's too. The end
hosts' prefix covers both subnets, so their only route comes with the address. Nothing has to be
configured again after a link went down and up, and nothing but traffic is on the wire.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.nic.lab.device import HOST_LINK, WIRE_LINK, host_netns, peer_netns, wire_netns

__all__ = ["HOST4", "HOST6", "LINKS", "PEER4", "PEER6", "PEER_LINK", "PEER_WIRE_LINK"]
__all__ += ["SYSCTLS", "LabLink", "check_request", "namespaces"]

PEER_LINK, PEER_WIRE_LINK = "p0", "w0"
PEER4, HOST4 = "10.8.0.1", "10.9.0.1"
PEER6, HOST6 = "fd00:8::1", "fd00:9::1"
PEER_MAC, HOST_MAC = "02:00:00:00:08:01", "02:00:00:00:09:01"


class LabLink(NamedTuple):
    """One interface, with (address, prefix length) pairs."""

    netns: str  # peer, wire or host
    name: str
    mac: str
    addresses: tuple[tuple[str, int], ...]


LINKS = (
    LabLink("peer", PEER_LINK, PEER_MAC, ((PEER4, 15), (PEER6, 31))),
    LabLink("wire", PEER_WIRE_LINK, PEER_MAC, (("10.8.255.254", 16), ("fd00:8::ffff", 32))),
    LabLink("wire", WIRE_LINK, HOST_MAC, (("10.9.255.254", 16), ("fd00:9::ffff", 32))),
    LabLink("host", HOST_LINK, HOST_MAC, ((HOST4, 15), (HOST6, 31))),
)

# net/ipv6/addrconf.c: no link-local addresses (1: none) and no duplicate detection; addresses stay
# when a link goes down, as IPv4's do. The wire forwards (net/ipv6/ip6_output.c looks at `all`), but
# its links are no routers, which would join and report ff02::2.
_IPV6_SYSCTLS = (
    ("ipv6/conf/default/addr_gen_mode", 1),
    ("ipv6/conf/default/accept_dad", 0),
    ("ipv6/conf/all/keep_addr_on_down", 1),
)
SYSCTLS: dict[str, tuple[tuple[str, int], ...]] = {
    "peer": _IPV6_SYSCTLS,
    "wire": (
        *_IPV6_SYSCTLS,
        ("ipv4/ip_forward", 1),
        ("ipv6/conf/all/forwarding", 1),
        ("ipv6/conf/default/forwarding", 0),
    ),
    "host": _IPV6_SYSCTLS,
}


def namespaces(name: str) -> dict[str, str]:
    """Role to path of the lab's namespaces."""
    return {"peer": peer_netns(name), "wire": wire_netns(name), "host": host_netns(name)}


def check_request(name: str) -> None:
    """OperatorError unless we are root and `name` can be part of a file name."""
    if os.geteuid() != 0:
        raise OperatorError("a lab needs root", "sudo atfnd lab ...")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", name):
        raise OperatorError(
            f"{name!r} cannot name a lab",
            "lower-case letters, digits, '-', '_' and '.', at most 64, not starting with a sign",
        )
