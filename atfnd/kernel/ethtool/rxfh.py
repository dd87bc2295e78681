# SPDX-License-Identifier: GPL-2.0-or-later
"""Receive-side scaling of a device: key, indirection table, hash.

Reads and writes by ETHTOOL_GRSSH and ETHTOOL_SRSSH, and reads ETHTOOL_GRXFH (net/ethtool/ioctl.c,
include/uapi/linux/ethtool.h): unlike netlink's RSS_SET, of 6.17, every kernel has them, and they
notify netlink's listeners as well; pyroute2 has none of them. Each is OSError(EOPNOTSUPP) where the
driver has none.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import NamedTuple

from atfnd.errors import refusable
from atfnd.kernel.interface import Interface

__all__ = ["ADDRESSES", "FLOW_TYPES", "PORTS", "XFRM_OR_XOR", "XFRM_XOR", "Rxfh", "default_table"]
__all__ += ["hashed_fields", "read", "read_if_there", "reset", "write"]

ETHTOOL_GRXFH, ETHTOOL_GRSSH, ETHTOOL_SRSSH = 0x29, 0x46, 0x47
ETH_RSS_HASH_TOP = 1
ETH_RXFH_INDIR_NO_CHANGE = 0xFFFFFFFF
ADDRESSES, PORTS = 3 << 4, 3 << 6  # RXH_IP_SRC | RXH_IP_DST, RXH_L4_B_0_1 | RXH_L4_B_2_3
XFRM_XOR, XFRM_OR_XOR = 1, 2  # RXH_XFRM_SYM_*
FLOW_TYPES = {
    (4, socket.IPPROTO_TCP): 0x01,
    (4, socket.IPPROTO_UDP): 0x02,
    (4, socket.IPPROTO_SCTP): 0x03,
    (6, socket.IPPROTO_TCP): 0x05,
    (6, socket.IPPROTO_UDP): 0x06,
    (6, socket.IPPROTO_SCTP): 0x07,
}

_rxfh = struct.Struct("=IIIIBBxxxxxx")  # struct ethtool_rxfh
_rxnfc = struct.Struct("=IIQ")  # of struct ethtool_rxnfc what GRXFH copies


class Rxfh(NamedTuple):
    key: bytes  # empty: the driver does not say
    table: tuple[int, ...]  # queue numbers; empty: there is none
    function: int  # ETH_RSS_HASH_*; 0: not said
    transform: int  # RXH_XFRM_*: what is done to the input before (6.8)

    @property
    def toeplitz(self) -> bool:
        """Most old drivers do not say which hash they use; they use Toeplitz."""
        return self.function in (0, ETH_RSS_HASH_TOP)


def read(interface: Interface) -> Rxfh:
    """The default context's, in two calls: sizes, then contents."""
    command = bytearray(_rxfh.pack(ETHTOOL_GRSSH, 0, 0, 0, 0, 0))
    interface.ethtool(command)
    _, _, entries, key_bytes, *_ = _rxfh.unpack(command)
    command = bytearray(_rxfh.pack(ETHTOOL_GRSSH, 0, entries, key_bytes, 0, 0))
    command += bytes(4 * entries + key_bytes)
    interface.ethtool(command)
    *_, function, transform = _rxfh.unpack_from(command)
    table = struct.unpack_from(f"={entries}I", command, _rxfh.size)
    return Rxfh(bytes(command[_rxfh.size + 4 * entries :]), table, function, transform)


def read_if_there(interface: Interface) -> Rxfh:
    """As `read`; an empty one if the driver has none."""
    with refusable(errno.EOPNOTSUPP):
        return read(interface)
    return Rxfh(b"", (), 0, 0)


def write(interface: Interface, table: tuple[int, ...] | None, key: bytes | None) -> None:
    """Write the table, the key, or both; None leaves it. OSError(EINVAL): the wrong size, or a
    queue that is not there."""
    now = read(interface)
    if table is not None and len(table) != len(now.table):
        raise OSError(errno.EINVAL, f"the RSS table has {len(now.table)} entries, not {len(table)}")
    entries = ETH_RXFH_INDIR_NO_CHANGE if table is None else len(table)
    _set(interface, now, entries, struct.pack(f"={len(table or ())}I", *(table or ())), key or b"")


def reset(interface: Interface) -> None:
    """Have the driver spread over all queues again, and remember that no user chose a table: only
    then may channels be reduced below one it names (ethtool_check_max_channel)."""
    _set(interface, read(interface), 0, b"", b"")


def _set(interface: Interface, now: Rxfh, entries: int, table: bytes, key: bytes) -> None:
    header = _rxfh.pack(ETHTOOL_SRSSH, 0, entries, len(key), 0, now.transform)
    interface.ethtool(bytearray(header + table + key))


def default_table(entries: int, queues: int) -> tuple[int, ...]:
    """What a driver fills in by itself (ethtool_rxfh_indir_default)."""
    return tuple(entry % queues for entry in range(entries))


def hashed_fields(interface: Interface) -> dict[tuple[int, int], int]:
    """RXH_* by (family, protocol), where the driver says which fields it hashes."""
    found = dict[tuple[int, int], int]()
    for flow, flow_type in FLOW_TYPES.items():
        command = bytearray(_rxnfc.pack(ETHTOOL_GRXFH, flow_type, 0))
        try:
            interface.ethtool(command)
        except OSError as refusal:
            if refusal.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            continue
        found[flow] = _rxnfc.unpack(command)[2]
    return found
