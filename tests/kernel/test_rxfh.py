# SPDX-License-Identifier: GPL-2.0-or-later
"""The ioctls of RSS against a driver in memory: what is read, and what a write leaves as it was.
What a real driver refuses, and a reset, are tested in the guest."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import cast

import pytest

from atfnd.kernel.ethtool import rxfh
from atfnd.kernel.interface import Interface

# include/uapi/linux/ethtool.h
GRXFH, GRSSH, SRSSH = 0x29, 0x46, 0x47
NO_CHANGE = 0xFFFFFFFF
TOP, XOR, CRC32 = 1, 2, 4
SYMMETRIC = 1  # RXH_XFRM_SYM_XOR
ADDRESSES, PORTS = (1 << 4) | (1 << 5), (1 << 6) | (1 << 7)
HEAD = struct.Struct("=IIIIBBxxxxxx")
KEY = bytes(range(40))


class Driver:
    """An indirection table, a key, a hash; answers and obeys as net/ethtool/ioctl.c has it."""

    def __init__(self) -> None:
        self.table, self.key, self.function, self.transform = [0, 1, 2, 3] * 4, KEY, TOP, 0
        self.fields: dict[int, int] = {}  # of a flow type, for GRXFH

    def ethtool(self, command: bytearray) -> None:
        (number,) = struct.unpack_from("=I", command)
        {GRSSH: self._read, SRSSH: self._write, GRXFH: self._hashed}[number](command)

    def _read(self, command: bytearray) -> None:
        _, context, entries, key_bytes, _, _ = HEAD.unpack_from(command)
        assert context == 0
        has = len(self.table), len(self.key)
        head = HEAD.pack(GRSSH, 0, *has, self.function, self.transform)
        if (entries, key_bytes) == (0, 0):
            command[:] = head
            return
        assert (entries, key_bytes) == has
        command[:] = head + struct.pack(f"={entries}I", *self.table) + self.key

    def _write(self, command: bytearray) -> None:
        _, context, entries, key_bytes, function, transform = HEAD.unpack_from(command)
        assert (context, function) == (0, 0)
        rest = command[HEAD.size :]
        if entries != NO_CHANGE:
            assert entries == len(self.table)
            self.table = list(struct.unpack_from(f"={entries}I", rest))
            rest = rest[4 * entries :]
        assert len(rest) == key_bytes
        if key_bytes:
            self.key = bytes(rest)
        self.transform = transform

    def _hashed(self, command: bytearray) -> None:
        _, flow_type, _ = struct.unpack("=IIQ", command)
        if flow_type not in self.fields:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if self.fields[flow_type] < 0:
            raise OSError(-self.fields[flow_type], os.strerror(-self.fields[flow_type]))
        struct.pack_into("=IIQ", command, 0, GRXFH, flow_type, self.fields[flow_type])


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def interface(driver: Driver) -> Interface:
    return cast(Interface, driver)


@pytest.mark.parametrize("table", [None, (3, 2, 1, 0) * 4], ids=["as it was", "another table"])
@pytest.mark.parametrize("key", [None, KEY[::-1]], ids=["as it was", "another key"])
def test_what_is_written_is_changed_and_nothing_else(
    driver: Driver, interface: Interface, table: tuple[int, ...] | None, key: bytes | None
) -> None:
    driver.transform = SYMMETRIC
    rxfh.write(interface, table, key)
    expected = rxfh.Rxfh(key or KEY, table or (0, 1, 2, 3) * 4, TOP, SYMMETRIC)
    assert rxfh.read(interface) == expected
    for function, toeplitz in ((TOP, True), (0, True), (XOR, False), (CRC32, False)):
        driver.function = function
        assert rxfh.read(interface).toeplitz is toeplitz


def test_not_every_driver_has_a_table_and_a_key(driver: Driver, interface: Interface) -> None:
    driver.key, driver.table = b"", []
    assert rxfh.read(interface) == rxfh.Rxfh(b"", (), TOP, 0)


def test_which_fields_are_hashed(driver: Driver, interface: Interface) -> None:
    """SCTP is not said."""
    driver.fields = {0x01: ADDRESSES | PORTS, 0x02: ADDRESSES, 0x03: -errno.EOPNOTSUPP,
                     0x05: ADDRESSES | PORTS, 0x06: 1 << 4, 0x07: -errno.EINVAL}  # fmt: skip
    tcp, udp = socket.IPPROTO_TCP, socket.IPPROTO_UDP
    assert rxfh.hashed_fields(interface) == {
        (4, tcp): ADDRESSES | PORTS, (4, udp): ADDRESSES,
        (6, tcp): ADDRESSES | PORTS, (6, udp): 1 << 4,
    }  # fmt: skip
    driver.fields = {0x01: -errno.ENODEV}  # it is gone
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        rxfh.hashed_fields(interface)
