# SPDX-License-Identifier: GPL-2.0-or-later
"""The Toeplitz hash of receive-side scaling, for keys of 40 bytes and more. Pure.

Definition and verification vectors: Microsoft, "Introduction to Receive Side Scaling" (RSS
hashing functions; Verifying the RSS hash calculation). A bit set at input position i adds
(exclusive or) the 32 bits of the key that start at bit i.
"""

from __future__ import annotations

from array import array

from atfnd.model.flow import FlowKey
from atfnd.model.nic import NicView, Rss

__all__ = [
    "INPUT_BYTES",
    "KEY_BYTES",
    "MICROSOFT_KEY",
    "hash_table",
    "is_symmetric",
    "rss_entry",
    "rss_hash",
    "rss_index",
    "rss_queue",
    "symmetric_key",
    "toeplitz",
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


def is_symmetric(key: bytes) -> bool:
    """Both directions of a flow have one hash."""
    return bool(key) and key == (key[:2] * -(-len(key) // 2))[: len(key)]


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


def rss_entry(rss: Rss, key: FlowKey) -> int | None:
    """The entry of the indirection table that a flow's packets select; None for the flow of an
    unconnected socket, which has no single remote, and where the NIC uses another hash or does not
    say its key."""
    if not key.remote_port or not any(key.local):
        return None
    family = 4 if len(key.local) == 4 else 6
    by_addresses = (family, key.protocol) in rss.addresses_only
    hashed_bytes = 2 * len(key.local) + (0 if by_addresses else 4)
    if not rss.toeplitz or not rss.table or len(rss.key) < hashed_bytes + 4:
        return None
    ports = None if by_addresses else (key.remote_port, key.local_port)
    return rss_hash(rss.key, key.remote, key.local, ports) % len(rss.table)


def rss_queue(rss: Rss, key: FlowKey) -> int | None:
    """The queue that RSS gives a flow's packets; None where `rss_entry` is None."""
    entry = rss_entry(rss, key)
    return None if entry is None else rss.table[entry]


def rss_index(view: NicView, key: FlowKey) -> int | None:
    """As `rss_queue`, of a NIC as last read; None, too, if it has no such queue."""
    index = rss_queue(view.rss, key) if view.rss else None
    return index if any(queue.index == index for queue in view.queues) else None
