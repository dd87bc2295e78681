# SPDX-License-Identifier: GPL-2.0-or-later
"""The filter table of a NIC through SIOCETHTOOL: count, list, read, insert, delete.

Reads ETHTOOL_GRXRINGS, GRXCLSRLCNT, GRXCLSRLALL, GRXCLSRULE, GFLAGS; writes SRXCLSRLINS and
SRXCLSRLDEL (net/ethtool/ioctl.c; ethtool netlink has no filters). A refusal is an OSError with the
driver's errno; EOPNOTSUPP: the driver has no such table. pyroute2 has none of these commands.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from typing import NamedTuple

from atfnd.kernel.ethtool.flow_spec import (
    COUNT_AT,
    LOCATION_AT,
    RX_CLS_LOC_ANY,
    SIZE,
    decode,
    encode,
)
from atfnd.kernel.system.netns import open_socket
from atfnd.model import Filter, Match

__all__ = ["Rxnfc", "RxnfcCount"]

SIOCETHTOOL = 0x8946
ETHTOOL_GFLAGS, ETH_FLAG_NTUPLE = 0x25, 1 << 27
ETHTOOL_GRXRINGS = 0x2D
ETHTOOL_GRXCLSRLCNT, ETHTOOL_GRXCLSRULE, ETHTOOL_GRXCLSRLALL = 0x2E, 0x2F, 0x30
ETHTOOL_SRXCLSRLDEL, ETHTOOL_SRXCLSRLINS = 0x31, 0x32
RX_CLS_LOC_SPECIAL = 0x80000000

_HEAD = struct.Struct("@IIQ")  # cmd, flow_type, data
_U32 = struct.Struct("@I")
_LOCATIONS_AT = COUNT_AT + 4  # rule_locs[]
_request = struct.Struct("@16sP16x")  # struct ifreq
_GROWN = 4  # times a list is asked for that grows meanwhile


class RxnfcCount(NamedTuple):
    """What ETHTOOL_GRXCLSRLCNT says."""

    filters: int
    size: int  # of the table, 0: it does not say
    location_any: bool  # RX_CLS_LOC_ANY may be sent


class Rxnfc:
    """The table of one device; keeps a socket in its namespace, and one buffer for all calls."""

    def __init__(self, name: str, netns: str | None = None) -> None:
        self.name = name
        self._socket = open_socket(netns, socket.AF_INET, socket.SOCK_DGRAM)
        self._fd = self._socket.fileno()
        memory = ctypes.create_string_buffer(SIZE)
        self._buffer = memoryview(memory).cast("B")
        self._ifreq = self._request_for(memory)

    def close(self) -> None:
        self._socket.close()

    def rings(self) -> int:
        """Receive queues, as the driver counts them."""
        self._ask(ETHTOOL_GRXRINGS)
        return int(_HEAD.unpack_from(self._buffer)[2])

    def ntuple_on(self) -> bool:
        """The feature `ntuple-filters` is on (`ethtool -k`); its meaning depends on the driver."""
        self._ask(ETHTOOL_GFLAGS)  # struct ethtool_value is the first half of our head
        return bool(_HEAD.unpack_from(self._buffer)[1] & ETH_FLAG_NTUPLE)

    def count(self) -> RxnfcCount:
        """How many filters there are, and in how large a table."""
        self._ask(ETHTOOL_GRXCLSRLCNT)
        data = _HEAD.unpack_from(self._buffer)[2]
        filters = _U32.unpack_from(self._buffer, COUNT_AT)[0]
        return RxnfcCount(filters, data & (RX_CLS_LOC_SPECIAL - 1), bool(data & RX_CLS_LOC_SPECIAL))

    def locations(self) -> tuple[tuple[int, ...], int]:
        """Where filters are, and what some drivers say here of the table's size (else 0)."""
        room = self.count().filters
        for _ in range(_GROWN):
            memory = ctypes.create_string_buffer(max(SIZE, _LOCATIONS_AT + 4 * room))
            _HEAD.pack_into(memory, 0, ETHTOOL_GRXCLSRLALL, 0, 0)
            _U32.pack_into(memory, COUNT_AT, room)
            try:
                fcntl.ioctl(self._fd, SIOCETHTOOL, self._request_for(memory))
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                room = 2 * max(room, self.count().filters)
                continue
            data = _HEAD.unpack_from(memory)[2]
            count = min(room, _U32.unpack_from(memory, COUNT_AT)[0])
            return struct.unpack_from(f"@{count}I", memory, _LOCATIONS_AT), data
        raise OSError(errno.EMSGSIZE, "the list of filters grows faster than it can be read")

    def filter(self, location: int) -> Filter | None:
        """The filter there, None when there is none: drivers report that with ENOENT or EINVAL."""
        buffer = self._buffer
        buffer[:] = bytes(SIZE)
        _HEAD.pack_into(buffer, 0, ETHTOOL_GRXCLSRULE, 0, 0)
        _U32.pack_into(buffer, LOCATION_AT, location)
        try:
            fcntl.ioctl(self._fd, SIOCETHTOOL, self._ifreq)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return None
            raise
        return decode(buffer)

    def insert(self, match: Match, queue: int, location: int | None) -> int:
        """Insert a filter and return the location it came to. `location` None: the driver chooses,
        which only a driver with `location_any` can do. An insert at a used location has a
        driver-specific effect. OSError(EINVAL) also for a match that no filter can express."""
        asked = RX_CLS_LOC_ANY if location is None else location
        encode(self._buffer, ETHTOOL_SRXCLSRLINS, match, queue, asked)
        fcntl.ioctl(self._fd, SIOCETHTOOL, self._ifreq)
        return int(_U32.unpack_from(self._buffer, LOCATION_AT)[0])

    def delete(self, location: int) -> None:
        """OSError(ENOENT or EINVAL, by driver): there is none."""
        buffer = self._buffer
        buffer[:] = bytes(SIZE)
        _HEAD.pack_into(buffer, 0, ETHTOOL_SRXCLSRLDEL, 0, 0)
        _U32.pack_into(buffer, LOCATION_AT, location)
        fcntl.ioctl(self._fd, SIOCETHTOOL, self._ifreq)

    def _ask(self, command: int) -> None:
        self._buffer[:] = bytes(SIZE)
        _HEAD.pack_into(self._buffer, 0, command, 0, 0)
        fcntl.ioctl(self._fd, SIOCETHTOOL, self._ifreq)

    def _request_for(self, memory: ctypes.Array[ctypes.c_char]) -> bytes:
        return _request.pack(self.name.encode(), ctypes.addressof(memory))
