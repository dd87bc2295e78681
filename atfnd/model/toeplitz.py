# SPDX-License-Identifier: GPL-2.0-or-later
"""The Toeplitz hash of receive-side scaling, for keys of 40 bytes and more. Pure.

Definition and verification vectors: Microsoft, "Introduction to Receive Side Scaling" (RSS
hashing functions; Verifying the RSS hash calculation). A bit set at input position i adds
(exclusive or) the 32 bits of the key that start at bit i.
"""

from __future__ import annotations

from array import array

from atfnd.model.flow import FlowKey
from atfnd.model.nic import FlowType, Rss, Transform

__all__ = [
    "INPUT_BYTES",
    "KEY_BYTES",
    "MICROSOFT_KEY",
    "hash_table",
    "rss_entry",
    "rss_hash",
    "rss_queue",
    "rss_value",
    "symmetric_key",
    "toeplitz",
    "why_not_computed",
]

KEY_BYTES = 40
INPUT_BYTES = 36  # two IPv6 addresses and two ports: all a 40-byte key can hash

MICROSOFT_KEY = bytes.fromhex(
    "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
)


def symmetric_key(length_bytes: int) -> bytes:
    """A key by which both directions of a flow have one hash: it repeats itself after 16 bits, and
    addresses and ports are multiples of that (Woo and Park, "Scalable TCP Session Monitoring with
    Symmetric Receive-side Scaling", KAIST 2012)."""
    return (MICROSOFT_KEY[:2] * -(-length_bytes // 2))[:length_bytes]


def _window(key: bytes, bit: int) -> int:
    """The 32 key bits from `bit` on."""
    return int.from_bytes(key, "big") >> (len(key) * 8 - 32 - bit) & 0xFFFFFFFF


def toeplitz(key: bytes, data: bytes) -> int:
    """The hash of up to 36 bytes."""
    result = 0
    for bit in range(len(data) * 8):
        if data[bit // 8] & 0x80 >> bit % 8:
            result ^= _window(key, bit)
    return result


def why_not_computed(rss: Rss, of: FlowType) -> str | None:
    """Why the hash of such flows cannot be computed. None: it can, where it is known."""
    if rss.another is not None:
        return rss.another
    if not rss.key:
        return "it does not say its key"
    if of in rss.other_fields:
        return "it hashes other fields than addresses, or addresses and both ports"
    return None


def rss_hash(key: bytes, src: bytes, dst: bytes, ports: tuple[int, int] | None = None) -> int:
    """Hash of packed addresses and, of a transport we know, (source, destination) ports."""
    data = src + dst
    if ports is not None:
        data += ports[0].to_bytes(2, "big") + ports[1].to_bytes(2, "big")
    return toeplitz(key, data)


def hash_table(key: bytes) -> array[int]:
    """`[p * 256 + b]` is what byte b at input position p contributes to the hash."""
    table = array("I", bytes(4 * 256 * INPUT_BYTES))
    for position in range(INPUT_BYTES):
        windows = [_window(key, position * 8 + bit) for bit in range(8)]
        for byte in range(1, 256):
            lowest = byte & -byte
            rest = table[position * 256 + (byte ^ lowest)]
            table[position * 256 + byte] = rest ^ windows[8 - lowest.bit_length()]
    return table


def _hashed(rss: Rss, key: FlowKey, transform: Transform) -> bytes:
    """What a NIC hashes of a flow's packets (include/uapi/linux/ethtool.h, RXH_XFRM_*)."""
    ports = key.remote_port.to_bytes(2, "big"), key.local_port.to_bytes(2, "big")
    pairs = [(key.remote, key.local)]
    if _type_of(key) not in rss.addresses_only:
        pairs.append(ports)
    both = bytearray()
    for one, two in pairs:
        if transform is Transform.NONE:
            both += one + two
            continue
        differs = bytes(a ^ b for a, b in zip(one, two, strict=True))
        either = bytes(a | b for a, b in zip(one, two, strict=True))
        both += (differs if transform is Transform.XOR else either) + differs
    return bytes(both)


def _type_of(key: FlowKey) -> FlowType:
    return key.family, key.protocol


def rss_entry(rss: Rss, key: FlowKey, transform: Transform = Transform.NONE) -> int | None:
    """The entry of the indirection table that a flow's packets select, if this is how the NIC
    hashes. None where `rss_value` is None."""
    value = rss_value(rss, key, transform)
    return None if value is None or not rss.table else value % len(rss.table)


def rss_value(rss: Rss, key: FlowKey, transform: Transform = Transform.NONE) -> int | None:
    """The hash of a flow. None for that of an unconnected socket, which has no single remote, and
    where it cannot be computed."""
    if not key.remote_port or not any(key.local) or why_not_computed(rss, _type_of(key)):
        return None
    data = _hashed(rss, key, transform)
    return None if len(rss.key) < len(data) + 4 else toeplitz(rss.key, data)


def rss_queue(rss: Rss, key: FlowKey, transform: Transform = Transform.NONE) -> int | None:
    """The queue of that entry; None where `rss_entry` is None."""
    entry = rss_entry(rss, key, transform)
    return None if entry is None else rss.table[entry]
