# SPDX-License-Identifier: GPL-2.0-or-later
"""A network device by name in a namespace: index, flags, offloads, counters.

Reads SIOCGIFINDEX and SIOCGIFFLAGS (netdevice(7)); writes the offloads TSO and GRO through
SIOCETHTOOL (include/uapi/linux/ethtool.h); opens /sys/class/net/*/statistics. OSError(ENODEV) when
the device is gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

from atfnd.kernel.netns import open_socket, open_sysfs

__all__ = ["Link", "open_statistic", "physical"]

SIOCGIFFLAGS, SIOCGIFINDEX, SIOCETHTOOL = 0x8913, 0x8933, 0x8946
ETHTOOL_STSO, ETHTOOL_SGRO = 0x1F, 0x2C
IFF_UP = 1

_ifreq = struct.Struct("=16s24x")
_ifreq_int = struct.Struct("=16si20x")
_ifreq_flags = struct.Struct("=16sH22x")
_ifreq_data = struct.Struct("@16sP16x")


class Link:
    """One device; keeps a socket in its namespace, so the namespace stays while this is open."""

    def __init__(self, name: str, netns: str | None = None) -> None:
        self.name = name
        self._name = name.encode()
        self._socket = open_socket(netns, socket.AF_INET, socket.SOCK_DGRAM)

    def close(self) -> None:
        self._socket.close()

    def ifindex(self) -> int:
        answer = fcntl.ioctl(self._socket, SIOCGIFINDEX, _ifreq.pack(self._name))
        return int(_ifreq_int.unpack(answer)[1])

    def up(self) -> bool:
        """Administratively up."""
        answer = fcntl.ioctl(self._socket, SIOCGIFFLAGS, _ifreq.pack(self._name))
        return bool(_ifreq_flags.unpack(answer)[1] & IFF_UP)

    def set_tso(self, on: bool) -> None:
        self._ethtool(ETHTOOL_STSO, on)

    def set_gro(self, on: bool) -> None:
        self._ethtool(ETHTOOL_SGRO, on)

    def _ethtool(self, command: int, value: int) -> None:
        """struct ethtool_value: the command and its one number."""
        argument = ctypes.create_string_buffer(struct.pack("=II", command, value))
        request = _ifreq_data.pack(self._name, ctypes.addressof(argument))
        fcntl.ioctl(self._socket, SIOCETHTOOL, request)


def open_statistic(netns: str | None, name: str, counter: str) -> int:
    """A descriptor of one counter of device `name`; each pread from 0 reads it anew."""
    sysfs = open_sysfs(netns)
    try:
        path = f"class/net/{name}/statistics/{counter}"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=sysfs)
    finally:
        os.close(sysfs)


def physical(name: str) -> bool:
    """There is a device behind this interface of our namespace: PCI, virtio, platform."""
    return os.path.exists(f"/sys/class/net/{name}/device")
