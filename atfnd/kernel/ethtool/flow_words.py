# SPDX-License-Identifier: GPL-2.0-or-later
"""A filter of any shape in the words of `ethtool -N` (ethtool(8)), for filters that are not ours.

Pure: reads the bytes of struct ethtool_rx_flow_spec (include/uapi/linux/ethtool.h). In the kernel's
mask the set bits are compared, in ethtool's the clear ones.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["FLOW_EXT", "FLOW_MAC_EXT", "FLOW_RSS", "flow_words"]

FLOW_EXT, FLOW_MAC_EXT, FLOW_RSS = 1 << 31, 1 << 30, 1 << 29
RX_CLS_FLOW_DISC, RX_CLS_FLOW_WAKE = (1 << 64) - 1, (1 << 64) - 2
_HALF = 72  # of the body: values, then masks; in each h_u (52 bytes) and h_ext (20)
_EXT_AT = 52


def _number(value: bytes) -> str:
    return str(int.from_bytes(value, "big"))


def _hex(value: bytes) -> str:
    return f"0x{value.hex()}"


def _ip(value: bytes) -> str:
    return str(ipaddress.ip_address(value))


def _mac(value: bytes) -> str:
    return value.hex(":")


class _Field(NamedTuple):
    name: str
    at: int
    size: int
    text: Callable[[bytes], str]


_V4 = (_Field("src-ip", 0, 4, _ip), _Field("dst-ip", 4, 4, _ip), _Field("tos", 12, 1, _number))
_V6 = (
    _Field("src-ip", 0, 16, _ip),
    _Field("dst-ip", 16, 16, _ip),
    _Field("tclass", 36, 1, _number),
)


def _ports(at: int) -> tuple[_Field, ...]:
    return _Field("src-port", at, 2, _number), _Field("dst-port", at + 2, 2, _number)


_TCP4, _TCP6 = (*_V4, *_ports(8)), (*_V6, *_ports(32))
_SPI4, _SPI6 = (*_V4, _Field("spi", 8, 4, _number)), (*_V6, _Field("spi", 32, 4, _number))
_IP4 = (*_V4, _Field("l4proto", 14, 1, _number), _Field("l4data", 8, 4, _hex))
_IP6 = (*_V6, _Field("l4proto", 37, 1, _number), _Field("l4data", 32, 4, _hex))
_ETHER = (_Field("dst", 0, 6, _mac), _Field("src", 6, 6, _mac), _Field("proto", 12, 2, _hex))

_SHAPES = {
    0x01: ("tcp4", _TCP4),
    0x02: ("udp4", _TCP4),
    0x03: ("sctp4", _TCP4),
    0x05: ("tcp6", _TCP6),
    0x06: ("udp6", _TCP6),
    0x07: ("sctp6", _TCP6),
    0x09: ("ah4", _SPI4),
    0x0A: ("esp4", _SPI4),
    0x0B: ("ah6", _SPI6),
    0x0C: ("esp6", _SPI6),
    0x0D: ("ip4", _IP4),
    0x0E: ("ip6", _IP6),
    0x12: ("ether", _ETHER),
}
_MAC_EXT = (_Field("dst-mac", _EXT_AT + 2, 6, _mac),)
_EXT = (
    _Field("vlan-etype", _EXT_AT + 8, 2, _hex),
    _Field("vlan", _EXT_AT + 10, 2, _hex),
    _Field("user-def", _EXT_AT + 12, 8, _hex),
)


def flow_words(flow_type: int, body: bytes, cookie: int, context: int) -> str:
    """What `ethtool -N NIC` would be given for this filter. Of a flow type that ethtool has no
    words for, only its number is known."""
    plain = flow_type & ~(FLOW_EXT | FLOW_MAC_EXT | FLOW_RSS)
    name, fields = _SHAPES.get(plain, (f"{plain:#x}", ()))
    if flow_type & FLOW_MAC_EXT:
        fields += _MAC_EXT
    if flow_type & FLOW_EXT:
        fields += _EXT
    words = [f"flow-type {name}", *_compared(fields, body), _action(cookie)]
    if flow_type & FLOW_RSS:
        words.append(f"context {context}")
    return " ".join(words)


def _compared(fields: tuple[_Field, ...], body: bytes) -> Iterator[str]:
    for field in fields:
        value = body[field.at : field.at + field.size]
        mask = body[_HALF + field.at : _HALF + field.at + field.size]
        if not any(mask):
            continue
        ignored = bytes(0xFF & ~byte for byte in mask)
        yield f"{field.name} {field.text(value)}"
        if any(ignored):
            yield f"m {field.text(ignored)}"


def _action(cookie: int) -> str:
    """Ring, or ring of a virtual function, or none (ring_cookie in ethtool.h)."""
    if cookie == RX_CLS_FLOW_DISC:
        return "action -1"
    if cookie == RX_CLS_FLOW_WAKE:
        return "action -2"
    if cookie >> 32:
        return f"vf {(cookie >> 32 & 0xFF) - 1} queue {cookie & 0xFFFFFFFF}"
    return f"action {cookie}"
