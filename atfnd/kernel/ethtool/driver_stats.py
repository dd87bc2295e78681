# SPDX-License-Identifier: GPL-2.0-or-later
"""A driver's own counters, as `ethtool -S` lists them: packets and bytes of each receive queue.

Reads ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS and ETHTOOL_GSTATS (net/ethtool/ioctl.c). Their names are
each driver's own; those known here are from drivers/net/ethernet and drivers/net/virtio_net.c.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterable

from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink.netdev import QueueCounters

__all__ = ["DriverStats", "places"]

ETHTOOL_GSTRINGS, ETHTOOL_GSTATS, ETHTOOL_GSSET_INFO = 0x1B, 0x1D, 0x37
ETH_SS_STATS = 1
NAME_BYTES = 32
FORMS = tuple(
    re.compile(form)
    for form in (
        r"rx_queue_(?P<queue>\d+)_(?P<what>packets|bytes)",  # ixgbe, igb, igc, ice, virtio_net
        r"rx-?(?P<queue>\d+)[._](?:rx_)?(?P<what>packets|bytes)",  # i40e, iavf, mlx4, mlx5, sfc
        r"queue_(?P<queue>\d+)_rx_(?P<what>cnt|bytes)",  # ena
        r"\[(?P<queue>\d+)\]: rx_ucast_(?P<what>packets|bytes)",  # bnxt
        r"rxq?(?P<queue>\d+)[:_] ?(?P<what>frames|packets|bytes)",  # octeontx2, hns3
        r"rx_(?P<what>packets|bytes)\[(?P<queue>\d+)\]",  # gve
        r"(?P<queue>\d+): rcv_(?P<what>pkts|bytes)",  # qede
    )
)

_strings = struct.Struct("=III")  # struct ethtool_gstrings: command, set, how many
_stats = struct.Struct("=II")  # struct ethtool_stats: command, how many
_set_info = struct.Struct("=IIQI")  # struct ethtool_sset_info and one answer

Places = dict[int, tuple[int | None, int | None]]  # queue: where its packets and bytes are


class DriverStats:
    """Counters of one device. The names are read each time, too, and understood once."""

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._names = b""
        self._places: Places = {}

    def queues(self) -> list[QueueCounters] | None:
        """By queue; None when the driver has no such counters. OSError(ENODEV)."""
        try:
            names, values = self._read()
        except OSError as refusal:
            if refusal.errno != errno.EOPNOTSUPP:
                raise
            return None
        if names != self._names:
            self._names, self._places = names, places(_split(names))
        return [
            QueueCounters(
                queue,
                None if packets is None else values[packets],
                None if octets is None else values[octets],
            )
            for queue, (packets, octets) in sorted(self._places.items())
        ] or None

    def _read(self) -> tuple[bytes, tuple[int, ...]]:
        command = bytearray(_set_info.pack(ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0))
        self._interface.ethtool(command)
        *_, there, count = _set_info.unpack(command)
        if not there:
            return b"", ()
        strings = bytearray(_strings.pack(ETHTOOL_GSTRINGS, ETH_SS_STATS, count))
        strings += bytes(NAME_BYTES * count)
        self._interface.ethtool(strings)
        stats = bytearray(_stats.pack(ETHTOOL_GSTATS, count)) + bytes(8 * count)
        self._interface.ethtool(stats)
        return bytes(strings[_strings.size :]), struct.unpack_from(f"={count}Q", stats, _stats.size)


def _split(names: bytes) -> Iterable[str]:
    for at in range(0, len(names), NAME_BYTES):
        yield names[at : at + NAME_BYTES].split(b"\0", 1)[0].decode(errors="replace").strip()


def places(names: Iterable[str]) -> Places:
    """Where in a driver's counters those of its receive queues are; the first of two that fit."""
    found: Places = {}
    for place, name in enumerate(names):
        match = next((match for form in FORMS if (match := form.fullmatch(name))), None)
        if match is None:
            continue
        packets, octets = found.get(int(match["queue"]), (None, None))
        if match["what"] == "bytes":
            octets = place if octets is None else octets
        else:
            packets = place if packets is None else packets
        found[int(match["queue"])] = packets, octets
    return found
