# SPDX-License-Identifier: GPL-2.0-or-later
"""Which local addresses are on tunnel devices, and which flows IPsec's policies cover.

Packets for them reach a NIC inside others: it sees the outer 5-tuple. Reads RTM_GETLINK and
RTM_GETADDR (rtnetlink(7); IFLA_INFO_KIND, net/core/rtnetlink.c) and XFRM_MSG_GETPOLICY
(include/uapi/linux/xfrm.h; the first match in order of priority decides: net/xfrm/xfrm_policy.c,
xfrm_policy_lookup_bytype). Loads no module: without xfrm_user there are no policies.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.netlink import DUMP, Netlink, attributes

__all__ = ["IpsecPolicy", "Link", "Tunnel", "encrypted", "ipsec_policies", "tunnels", "under"]

KINDS = {
    "amt", "bareudp", "erspan", "geneve", "gre", "gretap", "gtp", "ip6erspan", "ip6gre",
    "ip6gretap", "ip6tnl", "ipip", "ovpn", "sit", "tun", "vti", "vti6", "vxlan", "wireguard",
    "xfrm",
}  # fmt: skip
RTM_GETLINK, RTM_GETADDR = 18, 22
IFLA_IFNAME, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO, IFLA_LINK_NETNSID = 3, 5, 10, 18, 37
INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
NETLINK_XFRM, XFRM_MSG_GETPOLICY, XFRMA_TMPL = 6, 21, 5
XFRM_POLICY_IN, XFRM_POLICY_ALLOW = 0, 0
_ifinfo = struct.Struct("=BxHiII")
_ifaddr = struct.Struct("=BBBBI")
# struct xfrm_userpolicy_info: daddr, saddr, ports and masks, family, prefixes, protocol; priority,
# index, direction, action
_policy = struct.Struct("=16s16sHHHHHBBB3xiI96xIIBB2x4x")


class Link(NamedTuple):
    """A network device: its kind (None: hardware), the one it is on (a VLAN's), and its master."""

    name: str
    kind: str | None
    lower: int | None = None
    master: int | None = None


class Tunnel(NamedTuple):
    """A device of a tunnel."""

    name: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


class IpsecPolicy(NamedTuple):
    """What an inbound policy covers. A port or protocol that is 0 is open."""

    local: bytes
    local_prefix: int
    local_port: int
    remote: bytes
    remote_prefix: int
    remote_port: int
    protocol: int
    priority: int
    encrypts: bool  # False: it lets pass, or blocks

    def covers(
        self, protocol: int, local: bytes, local_port: int, remote: bytes, remote_port: int
    ) -> bool:
        return (
            len(self.local) == len(local)
            and self.protocol in (0, protocol)
            and self.local_port in (0, local_port)
            and self.remote_port in (0, remote_port)
            and _within(local, self.local, self.local_prefix)
            and _within(remote, self.remote, self.remote_prefix)
        )


def under(links: Mapping[int, Link], nic: int) -> dict[int, Tunnel]:
    """The tunnel of each device that is one, or stands on one: its VLANs, and bridges that it is a
    port of, but for those that the NIC is a port of as well."""
    above: set[int] = set()
    at: int | None = nic
    while at is not None and at not in above:
        above.add(at)
        at = links[at].master if at in links else None
    found = {index: Tunnel(link.name, link.kind) for index, link in links.items()
             if link.kind is not None and link.kind in KINDS}  # fmt: skip
    grown = True
    while grown:
        more: dict[int, Tunnel] = {}
        for index, link in links.items():
            if link.lower in found and index not in found and link.lower is not None:
                more[index] = found[link.lower]
            if (
                index in found
                and link.master is not None
                and link.master not in found.keys() | above
            ):
                more[link.master] = found[index]
        found |= more
        grown = bool(more)
    return found


def tunnels(netns: str | None, nic: int) -> dict[bytes, Tunnel]:
    """Every address of the NIC's namespace, packed, that is on a tunnel's device and on no other.
    `nic`: its ifindex."""
    netlink = Netlink(socket.NETLINK_ROUTE, netns)
    try:
        links = dict(map(_link, netlink.request(RTM_GETLINK, _ifinfo.pack(0, 0, 0, 0, 0), DUMP)))
        answers = netlink.request(RTM_GETADDR, _ifaddr.pack(0, 0, 0, 0, 0), DUMP)
    finally:
        netlink.close()
    by_device, found, others = under(links, nic), {}, set()
    for answer in answers:
        index = _ifaddr.unpack_from(answer)[4]
        said = attributes(answer, at=_ifaddr.size)
        address = said[IFA_LOCAL] if IFA_LOCAL in said else said[IFA_ADDRESS]
        if index in by_device:
            found[address] = by_device[index]
        else:
            others.add(address)
    return {address: tunnel for address, tunnel in found.items() if address not in others}


def _link(answer: bytes) -> tuple[int, Link]:
    said = attributes(answer, at=_ifinfo.size)
    kind = attributes(said.get(IFLA_LINKINFO, b"")).get(INFO_KIND)
    lower = None if IFLA_LINK_NETNSID in said else _index(said.get(IFLA_LINK))
    name = said[IFLA_IFNAME].rstrip(b"\0").decode(errors="backslashreplace")
    kind_name = None if kind is None else kind.rstrip(b"\0").decode()
    return _ifinfo.unpack_from(answer)[2], Link(
        name, kind_name, lower, _index(said.get(IFLA_MASTER))
    )


def _index(said: bytes | None) -> int | None:
    return None if said is None else int(struct.unpack("=I", said)[0])


def ipsec_policies(
    netns: str | None, sockets: Path = Path("/proc/net/netlink")
) -> tuple[IpsecPolicy, ...]:
    """The inbound policies of a namespace, the one that is asked first in front. None is known to
    who may not read them (CAP_NET_ADMIN)."""
    rows = (line.split() for line in sockets.read_text().splitlines()[1:])
    if not any(row[1] == str(NETLINK_XFRM) for row in rows):
        return ()
    netlink = Netlink(NETLINK_XFRM, netns)
    try:
        answers = netlink.request(XFRM_MSG_GETPOLICY, bytes(64), DUMP)
    except PermissionError:
        return ()
    finally:
        netlink.close()
    found = [each for each in map(_read_policy, answers) if each is not None]
    return tuple(sorted(found, key=lambda each: each.priority))


def _read_policy(answer: bytes) -> IpsecPolicy | None:
    """None: it is not for what comes in."""
    (
        local, remote, local_port, _, remote_port, _, family, local_prefix, remote_prefix,
        protocol, _, _, priority, _, direction, action,
    ) = _policy.unpack_from(answer)  # fmt: skip
    if direction != XFRM_POLICY_IN or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    size = 4 if family == socket.AF_INET else 16
    templates = XFRMA_TMPL in attributes(answer, at=_policy.size)
    return IpsecPolicy(
        local[:size], local_prefix, socket.ntohs(local_port),
        remote[:size], remote_prefix, socket.ntohs(remote_port),
        protocol, priority, templates and action == XFRM_POLICY_ALLOW,
    )  # fmt: skip


def encrypted(
    policies: Sequence[IpsecPolicy], protocol: int, local: bytes, local_port: int, remote: bytes,
    remote_port: int,
) -> bool:  # fmt: skip
    """Packets of this flow have to come by IPsec."""
    for each in policies:
        if each.covers(protocol, local, local_port, remote, remote_port):
            return each.encrypts
    return False


def _within(address: bytes, network: bytes, prefix: int) -> bool:
    shift = len(address) * 8 - prefix
    return int.from_bytes(address) >> shift == int.from_bytes(network) >> shift
