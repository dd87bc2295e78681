# SPDX-License-Identifier: GPL-2.0-or-later
"""One network interface, found by its index: a rename does not lose it, a namesake is not it.

ioctls and sysfs want a name, so each call asks for the present one first (SIOCGIFNAME,
netdevice(7)). Reads SIOCGIFFLAGS, ETHTOOL_GDRVINFO (net/ethtool/ioctl.c) and /sys/class/net/X
(Documentation/ABI/testing/sysfs-class-net*, net/core/dev.c, netdev_adjacent_sysfs_add); writes the
offloads TSO and GRO. Every call is OSError(ENODEV) when the interface is
gone. A question takes 3 to 9 µs; pyroute2's rtnetlink takes 60 times as long (0.56 ms).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from contextlib import ExitStack
from functools import cached_property
from typing import NamedTuple

from atfnd.errors import refusable
from atfnd.kernel.netlink.netdev import NetdevFamily
from atfnd.kernel.netlink.requests import Netlink
from atfnd.kernel.system.netns import open_socket, open_sysfs

__all__ = ["DriverInfo", "Interface", "physical"]

SIOCGIFNAME, SIOCGIFFLAGS, SIOCGIFINDEX, SIOCETHTOOL = 0x8910, 0x8913, 0x8933, 0x8946
ETHTOOL_GDRVINFO, ETHTOOL_STSO, ETHTOOL_SGRO = 0x3, 0x1F, 0x2C
IFF_UP, IFF_LOOPBACK = 0x1, 0x8
LOWER = "lower_"
NAME_BYTES = 15  # IFNAMSIZ less its NUL; the kernel cuts longer ones

_by_name = struct.Struct("=16s24x")
_with_int = struct.Struct("=16si20x")
_with_flags = struct.Struct("=16sH22x")
_with_pointer = struct.Struct("@16sP16x")
_value = struct.Struct("=II")  # struct ethtool_value
_drvinfo = struct.Struct("=I32s32s32s32s32s12x20x")


class DriverInfo(NamedTuple):
    name: str | None
    bus: str | None  # "0000:3b:00.0"


def _text(field: bytes) -> str | None:
    return os.fsdecode(field.split(b"\0", 1)[0]) or None


def _sysfs(netns: str | None) -> int:
    """Opens /sys: our own mount may belong to another namespace (nsenter -n), but a process that
    may not mount must use it."""
    try:
        return open_sysfs(netns)
    except PermissionError:
        if netns is not None:
            raise
        return os.open("/sys", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def physical(name: str) -> bool:
    """There is a device behind this interface of our namespace: PCI, virtio, platform."""
    return os.path.exists(f"/sys/class/net/{name}/device")


class Interface:
    """Keeps /sys and sockets of its network namespace open: to open one there takes a thread
    (0.3 ms). `netns` None is our own."""

    def __init__(self, name: str, netns: str | None = None) -> None:
        """OSError(ENODEV): no interface `name` there; FileNotFoundError: no such namespace."""
        if len(os.fsencode(name)) > NAME_BYTES:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self._netns = netns
        with ExitStack() as undo:
            self._socket = open_socket(netns, socket.AF_INET, socket.SOCK_DGRAM)
            undo.callback(self._socket.close)
            answer = fcntl.ioctl(self._socket, SIOCGIFINDEX, _by_name.pack(os.fsencode(name)))
            self.ifindex: int = _with_int.unpack(answer)[1]
            self._sysfs = _sysfs(netns)
            undo.callback(os.close, self._sysfs)
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    @cached_property
    def rtnetlink(self) -> Netlink:
        """rtnetlink(7) of its namespace."""
        netlink = Netlink(socket.NETLINK_ROUTE, self._netns)
        self._undo.callback(netlink.close)
        return netlink

    @cached_property
    def netdev(self) -> NetdevFamily | None:
        """None: a kernel before 6.3."""
        with refusable(errno.ENOENT):
            family = NetdevFamily(self._netns)
            self._undo.callback(family.close)
            return family
        return None

    def name(self) -> str:
        """What it is called now."""
        answer = fcntl.ioctl(self._socket, SIOCGIFNAME, _with_int.pack(b"", self.ifindex))
        return str(_text(_with_int.unpack(answer)[0]))

    def index_of(self, name: str) -> int | None:
        """Index of another interface of the same namespace. None: there is none of that name."""
        with refusable(errno.ENODEV):
            answer = fcntl.ioctl(self._socket, SIOCGIFINDEX, _by_name.pack(os.fsencode(name)))
            return int(_with_int.unpack(answer)[1])
        return None

    def up(self) -> bool:
        """Administratively up."""
        return bool(self._flags() & IFF_UP)

    def loopback(self) -> bool:
        return bool(self._flags() & IFF_LOOPBACK)

    def _flags(self) -> int:
        answer = fcntl.ioctl(self._socket, SIOCGIFFLAGS, _by_name.pack(os.fsencode(self.name())))
        return int(_with_flags.unpack(answer)[1])

    def ethtool(self, command: bytearray) -> None:
        """SIOCETHTOOL: `command` is one of ethtool's structures and holds the answer afterwards.
        OSError(EOPNOTSUPP): not by this driver."""
        structure = (ctypes.c_char * len(command)).from_buffer(command)
        pointer = ctypes.addressof(structure)
        fcntl.ioctl(
            self._socket, SIOCETHTOOL, _with_pointer.pack(os.fsencode(self.name()), pointer)
        )

    def set_tso(self, on: bool) -> None:
        self.ethtool(bytearray(_value.pack(ETHTOOL_STSO, on)))

    def set_gro(self, on: bool) -> None:
        self.ethtool(bytearray(_value.pack(ETHTOOL_SGRO, on)))

    def driver(self) -> DriverInfo:
        command = bytearray(_drvinfo.pack(ETHTOOL_GDRVINFO, b"", b"", b"", b"", b""))
        with refusable(errno.EOPNOTSUPP):
            self.ethtool(command)
        _, name, _, _, bus, _ = _drvinfo.unpack(command)  # empty ones, if it was refused
        return DriverInfo(_text(name), _text(bus))

    def device(self) -> str | None:
        """How the device behind it is called on its bus; None: there is none."""
        with refusable(errno.ENOENT):
            return os.path.basename(os.readlink(self._below("device"), dir_fd=self._sysfs))
        return None

    def open(self, path: str) -> int:
        """A descriptor of a file below the interface's directory in sysfs: each pread from 0 reads
        it anew."""
        return os.open(self._below(path), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._sysfs)

    def read(self, path: str) -> str | None:
        """Text of a file below the interface's directory in sysfs; None when it has none."""
        try:
            descriptor = self.open(path)
        except FileNotFoundError:
            return None
        try:
            return os.read(descriptor, 1 << 16).decode().strip()
        except FileNotFoundError:  # xps_cpus of a device with one queue is there and has nothing
            return None
        finally:
            os.close(descriptor)

    def write(self, path: str, text: str) -> None:
        """OSError as the kernel refuses; FileNotFoundError when there is no such file."""
        descriptor = os.open(self._below(path), os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._sysfs)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def lower(self) -> list[str]:
        """Those this one is stacked on: a bond's or bridge's ports, a VLAN's device."""
        return sorted(n.removeprefix(LOWER) for n in self.list() if n.startswith(LOWER))

    def list(self, path: str = "") -> list[str]:
        """Names in a directory below the interface's; none when there is no such directory."""
        directory = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            descriptor = os.open(self._below(path), directory, dir_fd=self._sysfs)
        except FileNotFoundError:
            return []
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def _below(self, path: str) -> str:
        return f"class/net/{self.name()}/{path}"
