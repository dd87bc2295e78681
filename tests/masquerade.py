# SPDX-License-Identifier: GPL-2.0-or-later
"""NAT in a network namespace of a test, by nf_tables over netlink: `nft` need not be installed. It
goes with the namespace."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterable

from atfnd.kernel.netlink.requests import attribute
from atfnd.kernel.system.netns import open_socket, write_sysctl
from tests.netns import packed

__all__ = ["flush", "masquerade", "redirect"]

NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES, CT_DELETE = 12, 10, 0x102
BATCH_BEGIN, BATCH_END, NEWTABLE, NEWCHAIN, NEWRULE = 0x10, 0x11, 0xA00, 0xA03, 0xA06
REQUEST, ACK, CREATE = 1, 4, 0x400
PRE_ROUTING, BEFORE, POST_ROUTING, AFTER = 0, -100, 4, 100
REGISTER, NETWORK_HEADER, DESTINATION, EQUAL, DNAT = 1, 1, 16, 0, 1
FORWARDING: dict[int, str] = {
    socket.AF_INET: "ipv4/ip_forward",
    socket.AF_INET6: "ipv6/conf/all/forwarding",
}
_header, _generic = struct.Struct("=IHHII"), struct.Struct(">BBH")


def masquerade(netns: str, family: int = socket.AF_INET, *, counts: bool = True) -> None:
    """What this namespace forwards leaves with its own address. `counts`: connections have
    counters (nf_conntrack_acct)."""
    write_sysctl(netns, FORWARDING[family], 1)
    _add(netns, family, b"post\0", POST_ROUTING, AFTER, [(b"masq\0", b"")])
    write_sysctl(netns, "netfilter/nf_conntrack_acct", int(counts))


def redirect(netns: str, address: str, to: str) -> None:
    """What comes for one address goes to another one."""
    expressions = [
        (b"payload\0", _said(REGISTER, NETWORK_HEADER, DESTINATION, 4)),
        (b"cmp\0", _said(REGISTER, EQUAL) + attribute(3, attribute(1, packed(address)))),
        (b"immediate\0", _said(REGISTER) + attribute(2, attribute(1, packed(to)))),
        (b"nat\0", _said(DNAT, socket.AF_INET, REGISTER)),
    ]
    _add(netns, socket.AF_INET, b"pre\0", PRE_ROUTING, BEFORE, expressions)


def flush(netns: str) -> None:
    """No connection is tracked any more; what still sends is tracked anew."""
    _ask(netns, _message(0, CT_DELETE, REQUEST | ACK, socket.AF_INET, 0, b""))


def _add(
    netns: str, family: int, chain: bytes, hook: int, priority: int,
    expressions: Iterable[tuple[bytes, bytes]],
) -> None:  # fmt: skip
    """A chain of NAT with one rule."""
    table, at = b"t\0", _said(hook) + attribute(2, priority.to_bytes(4, signed=True))
    made = attribute(1, table) + attribute(3, chain) + attribute(4, at) + attribute(7, b"nat\0")
    parts = (attribute(1, attribute(1, name) + attribute(2, said)) for name, said in expressions)
    rule = attribute(1, table) + attribute(2, chain) + attribute(4, b"".join(parts))
    batch = (
        (BATCH_BEGIN, REQUEST, socket.AF_UNSPEC, NFNL_SUBSYS_NFTABLES, b""),
        (NEWTABLE, REQUEST | CREATE, family, 0, attribute(1, table)),
        (NEWCHAIN, REQUEST | CREATE, family, 0, made),
        (NEWRULE, REQUEST | CREATE | ACK, family, 0, rule),
        (BATCH_END, REQUEST, socket.AF_UNSPEC, NFNL_SUBSYS_NFTABLES, b""),
    )
    _ask(netns, b"".join(_message(number, *each) for number, each in enumerate(batch)))


def _said(*numbers: int) -> bytes:
    """Attributes 1, 2, ... in the byte order of networks."""
    each = zip(itertools.count(1), numbers, strict=False)
    return b"".join(attribute(kind, number.to_bytes(4)) for kind, number in each)


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
