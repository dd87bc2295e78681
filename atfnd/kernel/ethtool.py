# SPDX-License-Identifier: GPL-2.0-or-later
"""What ethtool shows of a device, by netlink: channels, rings, coalescing, features, flags.

Reads and listens to the generic netlink family ethtool
(Documentation/networking/ethtool-netlink.rst; net/ethtool/); writes private flags. A driver that
does not know one of these is None, and so is a number it leaves out.
"""

from __future__ import annotations

import errno
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from atfnd.kernel.netlink import DUMP, Netlink, attribute, attributes, generic_family

__all__ = ["Channels", "Coalescing", "EthtoolFamily", "Rings"]

NETLINK_GENERIC = 16
NLA_F_NESTED = 0x8000
FEATURES_GET, PRIVFLAGS_GET, PRIVFLAGS_SET, RINGS_GET = 11, 13, 14, 15
CHANNELS_GET, COALESCE_GET, RSS_GET = 17, 19, 38
HEADER, HEADER_DEV_INDEX = 1, 1
RINGS_RX_MAX, RINGS_RX = 2, 6
CHANNELS_RX_MAX, CHANNELS_COMBINED_MAX, CHANNELS_RX, CHANNELS_COMBINED = 2, 5, 6, 9
COALESCE_RX_USECS, COALESCE_ADAPTIVE_RX = 2, 11
FEATURES_ACTIVE, PRIVFLAGS_FLAGS, RSS_CONTEXT = 4, 2, 2
BITSET_BITS, BITS_BIT, BIT_NAME, BIT_VALUE = 3, 1, 2, 3


class Channels(NamedTuple):
    receive: int  # queues that receive: combined and receive-only ones
    receive_max: int


class Rings(NamedTuple):
    receive: int | None  # descriptors
    receive_max: int | None


class Coalescing(NamedTuple):
    rx_usecs: int | None
    adaptive_rx: bool | None


def _nested(kind: int, payload: bytes) -> bytes:
    return attribute(kind | NLA_F_NESTED, payload)


def _number(found: dict[int, bytes], kind: int) -> int | None:
    return int.from_bytes(found[kind], sys.byteorder) if kind in found else None


def _bits(bitset: bytes) -> Iterator[dict[int, bytes]]:
    """The bits of a verbose bitset, in which one attribute is repeated."""
    bits, at = attributes(bitset).get(BITSET_BITS, b""), 0
    while at < len(bits):
        length = int.from_bytes(bits[at : at + 2], sys.byteorder)
        yield attributes(bits[at + 4 : at + length])
        at += (length + 3) & ~3


def _name(bit: dict[int, bytes]) -> str:
    return bit[BIT_NAME].rstrip(b"\0").decode()


class EthtoolFamily:
    """An ethtool netlink socket in the namespace at `netns`. OSError(ENODEV): no such device."""

    def __init__(self, netns: str | None = None) -> None:
        self._netlink = Netlink(NETLINK_GENERIC, netns)
        self._family = generic_family(self._netlink, "ethtool")

    def close(self) -> None:
        self._netlink.close()

    def channels(self, ifindex: int) -> Channels | None:
        found = self._get(CHANNELS_GET, ifindex)
        if found is None:
            return None
        return Channels(
            (_number(found, CHANNELS_COMBINED) or 0) + (_number(found, CHANNELS_RX) or 0),
            max(_number(found, CHANNELS_COMBINED_MAX) or 0, _number(found, CHANNELS_RX_MAX) or 0),
        )

    def rings(self, ifindex: int) -> Rings | None:
        found = self._get(RINGS_GET, ifindex)
        if found is None:
            return None
        return Rings(_number(found, RINGS_RX), _number(found, RINGS_RX_MAX))

    def coalescing(self, ifindex: int) -> Coalescing | None:
        found = self._get(COALESCE_GET, ifindex)
        if found is None:
            return None
        adaptive = _number(found, COALESCE_ADAPTIVE_RX)
        return Coalescing(
            _number(found, COALESCE_RX_USECS), None if adaptive is None else bool(adaptive)
        )

    def features(self, ifindex: int) -> frozenset[str]:
        """Names of those that are on: `rx-ntuple-filter`, `rx-hashing`, ..."""
        found = self._get(FEATURES_GET, ifindex) or {}
        return frozenset(_name(bit) for bit in _bits(found.get(FEATURES_ACTIVE, b"")))

    def private_flags(self, ifindex: int) -> dict[str, bool]:
        """The driver's private flags; none if it has none."""
        found = self._get(PRIVFLAGS_GET, ifindex) or {}
        return {_name(bit): BIT_VALUE in bit for bit in _bits(found.get(PRIVFLAGS_FLAGS, b""))}

    def set_private_flag(self, ifindex: int, name: str, on: bool) -> None:
        """OSError(EOPNOTSUPP): no such flag."""
        bit = attribute(BIT_NAME, name.encode() + b"\0")
        bit += attribute(BIT_VALUE, b"") if on else b""
        bits = _nested(BITSET_BITS, _nested(BITS_BIT, bit))
        self._request(PRIVFLAGS_SET, ifindex, _nested(PRIVFLAGS_FLAGS, bits))

    def rss_contexts(self, ifindex: int) -> int | None:
        """How many there are besides the default one; None: a kernel before 6.12."""
        try:
            answers = self._request(RSS_GET, ifindex, flags=DUMP)
        except OSError as refusal:
            if refusal.errno != errno.EOPNOTSUPP:
                raise
            return None
        return sum(RSS_CONTEXT in attributes(answer, at=4) for answer in answers)

    def _get(self, command: int, ifindex: int) -> dict[int, bytes] | None:
        try:
            answers = self._request(command, ifindex)
        except OSError as refusal:
            if refusal.errno != errno.EOPNOTSUPP:
                raise
            return None
        return attributes(answers[0], at=4)

    def _request(
        self, command: int, ifindex: int, payload: bytes = b"", flags: int = 0
    ) -> list[bytes]:
        header = _nested(HEADER, attribute(HEADER_DEV_INDEX, struct.pack("=I", ifindex)))
        message = struct.pack("=BBH", command, 1, 0) + header + payload
        return self._netlink.request(self._family, message, flags)
