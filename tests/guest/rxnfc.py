# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters by raw ioctl, by no code of atfnd: ETHTOOL_SRXCLSRL*, ETHTOOL_GRXCLSRL*.

struct ethtool_rxnfc of include/uapi/linux/ethtool.h. ethtool(8) 6.1 exits 0 when an insertion is
refused, so the tests ask the kernel themselves. OSError is the kernel's refusal.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["ANY", "DROP", "FlowSpec", "capacity", "delete", "insert", "insert_ether", "listed"]
__all__ += ["queue_at", "refused"]

SIOCETHTOOL = 0x8946
SRXCLSRLDEL, SRXCLSRLINS = 0x31, 0x32
GRXCLSRLCNT, GRXCLSRULE, GRXCLSRLALL = 0x2E, 0x2F, 0x30
LOC_SPECIAL = 0x80000000
ANY = 0xFFFFFFFF
DROP = 0xFFFFFFFFFFFFFFFF
FLOW_TYPES: dict[tuple[int, int], int] = {
    (socket.AF_INET, socket.SOCK_STREAM): 1,
    (socket.AF_INET, socket.SOCK_DGRAM): 2,
    (socket.AF_INET6, socket.SOCK_STREAM): 5,
    (socket.AF_INET6, socket.SOCK_DGRAM): 6,
}
# cmd, flow_type, data; fs: flow_type, h_u, h_ext, m_u, m_ext, ring_cookie, location; rule_cnt
RXNFC = struct.Struct("=IIQ I52s20s52s20s4xQI4x I4x")
ETHER_FLOW = 0x12


class FlowSpec(NamedTuple):
    """What it matches; None leaves a field open. `src` is the sender of what is received."""

    src: str | None
    sport: int | None
    dst: str | None
    dport: int | None
    family: int = socket.AF_INET
    kind: int = socket.SOCK_DGRAM

    def packed(self) -> tuple[bytes, bytes]:
        """Values and masks, as union ethtool_flow_union has them."""
        size = 4 if self.family == socket.AF_INET else 16
        value = mask = b""
        for address in (self.src, self.dst):
            value += socket.inet_pton(self.family, address) if address else bytes(size)
            mask += (b"\xff" if address else b"\0") * size
        for port in (self.sport, self.dport):
            value += struct.pack("!H", port or 0)
            mask += b"\0\0" if port is None else b"\xff\xff"
        return value, mask


def insert(name: str, match: FlowSpec, queue: int, location: int = ANY) -> int:
    """Its location."""
    value, mask = match.packed()
    flow = FLOW_TYPES[match.family, match.kind]
    done = _ioctl(
        name, _request(SRXCLSRLINS, flow=flow, value=value, mask=mask, queue=queue, at=location)
    )
    return int(RXNFC.unpack(done)[9])


def insert_ether(name: str, queue: int) -> None:
    """A filter on the sender's MAC address."""
    value, mask = bytes(6) + b"\2" * 6, bytes(6) + b"\xff" * 6
    _ioctl(name, _request(SRXCLSRLINS, flow=ETHER_FLOW, value=value, mask=mask, queue=queue))


def delete(name: str, location: int) -> None:
    _ioctl(name, _request(SRXCLSRLDEL, at=location))


def capacity(name: str) -> tuple[int, bool]:
    """How many locations there are, and whether the NIC chooses one when asked to."""
    data = RXNFC.unpack(_ioctl(name, _request(GRXCLSRLCNT)))[2]
    return data & ~LOC_SPECIAL, bool(data & LOC_SPECIAL)


def listed(name: str) -> list[int]:
    """Locations in use."""
    count = RXNFC.unpack(_ioctl(name, _request(GRXCLSRLCNT)))[10]
    room = bytes(_request(GRXCLSRLALL, count=count)) + bytes(4 * count)
    done = _ioctl(name, room)
    count = RXNFC.unpack(done[: RXNFC.size])[10]
    return list(struct.unpack_from(f"={count}I", done, RXNFC.size - 4))


@contextmanager
def refused(error: int) -> Iterator[None]:
    """The kernel refuses what is tried here, with this errno."""
    got = 0
    try:
        yield
    except OSError as refusal:
        got = refusal.errno or 0
    assert got == error, (errno.errorcode[error], got)


def queue_at(name: str, location: int) -> int:
    return int(RXNFC.unpack(_ioctl(name, _request(GRXCLSRULE, at=location)))[8])


def _request(
    command: int,
    flow: int = 0,
    value: bytes = b"",
    mask: bytes = b"",
    queue: int = 0,
    at: int = ANY,
    count: int = 0,
) -> bytes:
    return RXNFC.pack(command, flow, 0, flow, value, b"", mask, b"", queue, at, count)


def _ioctl(name: str, request: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(request, len(request))
    ifreq = struct.pack("16sQ16x", name.encode(), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, ifreq)
    return buffer.raw
