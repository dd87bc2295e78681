# SPDX-License-Identifier: GPL-2.0-or-later
"""IP packets by hand, for what sockets do not send: SCTP, fragments, options, extension headers."""

from __future__ import annotations

import struct

__all__ = ["ipv4", "ipv6", "transport"]

NO_OPERATION = 1  # RFC 791 option
MORE_FRAGMENTS = 0x2000


def transport(src_port: int, dst_port: int) -> bytes:
    """Ports and some more: enough of a TCP, UDP or SCTP header for a classifier."""
    return struct.pack("!HH16x", src_port, dst_port)


def ipv4(
    protocol: int, src: bytes, dst: bytes, payload: bytes, options: int = 0, fragment: int = 0
) -> bytes:
    """`options` words of NOPs, `fragment` the flags and offset; the kernel fills the checksum."""
    words = 5 + options
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x40 | words,
        0,
        words * 4 + len(payload),
        1,
        fragment,
        64,
        protocol,
        0,
        src,
        dst,
    )
    return header + bytes([NO_OPERATION] * 4 * options) + payload


def ipv6(next_header: int, src: bytes, dst: bytes, payload: bytes) -> bytes:
    return struct.pack("!IHBB16s16s", 6 << 28, len(payload), next_header, 64, src, dst) + payload
