# SPDX-License-Identifier: GPL-2.0-or-later
"""What ethtool shows of a device, by netlink: channels, rings, coalescing, features, flags.

Reads and listens to the generic netlink family ethtool
(Documentation/networking/ethtool-netlink.rst; net/ethtool/); writes private flags. A driver that
does not know one of these is None, and so is a number it leaves out. pyroute2 takes 5 times as long
for features (0.59 ms for 0.12), and reads neither private flags nor RSS contexts.
"""

from __future__ import annotations

import errno
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from atfnd.errors import refusable
from atfnd.kernel.netlink.requests import DUMP, GenericFamily, attribute, attributes, number

__all__ = ["Channels", "Coalescing", "EthtoolFamily", "Rings"]

NLA_F_NESTED = 0x8000
FEATURES_GET, PRIVFLAGS_GET, PRIVFLAGS_SET, RINGS_GET = 11, 13, 14, 15
CHANNELS_GET, COALESCE_GET, RSS_GET = 17, 19, 38
HEADER, HEADER_DEV_INDEX = 1, 1
RINGS_RX_MAX, RINGS_RX = 2, 6
CHANNELS_RX_MAX, CHANNELS_COMBINED_MAX, CHANNELS_RX, CHANNELS_COMBINED = 2, 5, 6, 9
COALESCE_RX_USECS, COALESCE_ADAPTIVE_RX = 2, 11
FEATURES_HW, FEATURES_ACTIVE, FEATURES_NOCHANGE = 2, 4, 5
PRIVFLAGS_FLAGS, RSS_CONTEXT = 2, 2
BITSET_BITS, BITS_BIT, BIT_NAME, BIT_VALUE = 3, 1, 2, 3


class Channels(NamedTuple):
    receive: int  # queues that receive: combined and receive-only ones
    receive_max: int
    apart: bool = False  # the driver has no combined ones: `ethtool -L` wants rx and tx


class Rings(NamedTuple):
    receive: int | None  # descriptors
    receive_max: int | None


class Coalescing(NamedTuple):
    rx_usecs: int | None
    adaptive_rx: bool | None


def _nested(kind: int, payload: bytes) -> bytes:
    return attribute(kind | NLA_F_NESTED, payload)


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
        self._family = GenericFamily("ethtool", netns)

    def close(self) -> None:
        self._family.close()

    def channels(self, ifindex: int) -> Channels | None:
        found = self._get(CHANNELS_GET, ifindex)
        if found is None:
            return None
        return Channels(
            (number(found.get(CHANNELS_COMBINED)) or 0) + (number(found.get(CHANNELS_RX)) or 0),
            max(
                number(found.get(CHANNELS_COMBINED_MAX)) or 0,
                number(found.get(CHANNELS_RX_MAX)) or 0,
            ),
            apart=not number(found.get(CHANNELS_COMBINED_MAX)),
        )

    def rings(self, ifindex: int) -> Rings | None:
        found = self._get(RINGS_GET, ifindex)
        if found is None:
            return None
        return Rings(number(found.get(RINGS_RX)), number(found.get(RINGS_RX_MAX)))

    def coalescing(self, ifindex: int) -> Coalescing | None:
        found = self._get(COALESCE_GET, ifindex)
        if found is None:
            return None
        adaptive = number(found.get(COALESCE_ADAPTIVE_RX))
        return Coalescing(
            number(found.get(COALESCE_RX_USECS)), None if adaptive is None else bool(adaptive)
        )

    def features(self, ifindex: int) -> frozenset[str]:
        """Names of those that are on: `rx-ntuple-filter`, `rx-hashing`, ..."""
        found = self._get(FEATURES_GET, ifindex) or {}
        return frozenset(_name(bit) for bit in _bits(found.get(FEATURES_ACTIVE, b"")))

    def fixed(self, ifindex: int, feature: str) -> bool:
        """Nobody can switch this feature: `[fixed]` in `ethtool -k`."""
        found = self._get(FEATURES_GET, ifindex) or {}
        every, never = _bits(found.get(FEATURES_HW, b"")), _bits(found.get(FEATURES_NOCHANGE, b""))
        free = {_name(bit) for bit in every if BIT_VALUE in bit} - {_name(bit) for bit in never}
        return feature not in free

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
        """How many RSS contexts there are besides the default one; None: a kernel before 6.12."""
        with refusable(errno.EOPNOTSUPP):
            return sum(RSS_CONTEXT in each for each in self._request(RSS_GET, ifindex, flags=DUMP))
        return None

    def _get(self, command: int, ifindex: int) -> dict[int, bytes] | None:
        with refusable(errno.EOPNOTSUPP):
            return self._request(command, ifindex)[0]
        return None

    def _request(
        self, command: int, ifindex: int, payload: bytes = b"", flags: int = 0
    ) -> list[dict[int, bytes]]:
        header = _nested(HEADER, attribute(HEADER_DEV_INDEX, struct.pack("=I", ifindex)))
        return self._family.request(command, header + payload, flags)
