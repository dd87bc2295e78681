# SPDX-License-Identifier: GPL-2.0-or-later
"""NAT in a network namespace of a test, by nf_tables over netlink: `nft` need not be installed. It
goes with the namespace."""

from __future__ import annotations

import socket
import struct

from atfnd.kernel.netlink.requests import attribute
from atfnd.kernel.system.netns import open_socket, write_sysctl

__all__ = ["flush", "masquerade"]

NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES, CT_DELETE = 12, 10, 0x102
BATCH_BEGIN, BATCH_END, NEWTABLE, NEWCHAIN, NEWRULE = 0x10, 0x11, 0xA00, 0xA03, 0xA06
REQUEST, ACK, CREATE = 1, 4, 0x400
POST_ROUTING, AFTER = 4, 100
FORWARDING: dict[int, str] = {
    socket.AF_INET: "ipv4/ip_forward",
    socket.AF_INET6: "ipv6/conf/all/forwarding",
}
_header, _generic = struct.Struct("=IHHII"), struct.Struct(">BBH")


def masquerade(netns: str, family: int = socket.AF_INET, *, counts: bool = True) -> None:
    """What this namespace forwards leaves with its own address. `counts`: connections have
    counters (nf_conntrack_acct)."""
    write_sysctl(netns, FORWARDING[family], 1)
    table, chain = b"t\0", b"post\0"
    at = attribute(1, POST_ROUTING.to_bytes(4)) + attribute(2, AFTER.to_bytes(4))
    made = attribute(1, table) + attribute(3, chain) + attribute(4, at) + attribute(7, b"nat\0")
    masks = attribute(1, attribute(1, b"masq\0") + attribute(2, b""))
    rule = attribute(1, table) + attribute(2, chain) + attribute(4, masks)
    batch = (
        (BATCH_BEGIN, REQUEST, socket.AF_UNSPEC, NFNL_SUBSYS_NFTABLES, b""),
        (NEWTABLE, REQUEST | CREATE, family, 0, attribute(1, table)),
        (NEWCHAIN, REQUEST | CREATE, family, 0, made),
        (NEWRULE, REQUEST | CREATE | ACK, family, 0, rule),
        (BATCH_END, REQUEST, socket.AF_UNSPEC, NFNL_SUBSYS_NFTABLES, b""),
    )
    _ask(netns, b"".join(_message(number, *each) for number, each in enumerate(batch)))
    write_sysctl(netns, "netfilter/nf_conntrack_acct", int(counts))


def flush(netns: str) -> None:
    """No connection is tracked any more; what still sends is tracked anew."""
    _ask(netns, _message(0, CT_DELETE, REQUEST | ACK, socket.AF_INET, 0, b""))


def _ask(netns: str, messages: bytes) -> None:
    with open_socket(netns, socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as asking:
        asking.bind((0, 0))
        asking.settimeout(10)
        asking.send(messages)
        (code,) = struct.unpack_from("=i", asking.recv(1 << 16), _header.size)
    if code:
        raise OSError(-code, "netfilter refuses it")


def _message(number: int, kind: int, flags: int, family: int, resource: int, said: bytes) -> bytes:
    payload = _generic.pack(family, 0, resource) + said
    return _header.pack(_header.size + len(payload), kind, flags, number, 0) + payload
