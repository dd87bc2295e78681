# SPDX-License-Identifier: GPL-2.0-or-later
"""The ioctls of the filter table against a driver in memory, which reads ethtool.h's structs."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

import pytest

from atfnd.kernel.ethtool.rxnfc import Rxnfc, RxnfcCount
from atfnd.model import Filter, Match, Protocol
from tests.kernel.test_flow_spec import Rxnfc as Struct

__all__: list[str] = []

# include/uapi/linux/ethtool.h
GFLAGS, GRXRINGS, GRXCLSRLCNT, GRXCLSRULE, GRXCLSRLALL = 0x25, 0x2D, 0x2E, 0x2F, 0x30
SRXCLSRLDEL, SRXCLSRLINS = 0x31, 0x32
FLAG_NTUPLE, LOC_SPECIAL = 1 << 27, 0x80000000
NAME = "eth7"


def match(number: int) -> Match:
    return Match(4, Protocol.TCP, bytes([10, 1, 0, number]), 32, bytes([10, 0, 0, 1]), 32, 7, 443)


class Driver:
    """What is behind SIOCETHTOOL: a table of struct ethtool_rx_flow_spec by location."""

    def __init__(self) -> None:
        self.rings, self.flags, self.size, self.chooses = 6, 0, 128, True
        self.table: dict[int, bytes] = {}
        self.refusals: defaultdict[int, deque[int]] = defaultdict(deque)
        self.none = errno.ENOENT  # what it says where no rule is
        self.counts_more = 0  # in the answer to GRXCLSRLALL
        self.buffers: dict[int, int] = {}  # their sizes, by address
        self.grows = 0  # rules that come whenever they are counted

    def ioctl(self, descriptor: int, request: int, ifreq: bytes) -> None:
        assert request == 0x8946
        name, address = struct.unpack("@16sP16x", ifreq)
        assert name.rstrip(b"\0").decode() == NAME
        os.fstat(descriptor)  # it is open
        info = Struct.from_address(address)
        if self.refusals[info.cmd] and (code := self.refusals[info.cmd].popleft()):
            raise OSError(code, os.strerror(code))
        getattr(self, f"_{info.cmd:02x}")(info, address)

    def _only(self, info: Struct, **given: int) -> None:
        """Nothing of an earlier call is left in what is asked."""
        plain = Struct(cmd=info.cmd)
        if "location" in given:
            plain.fs.location = given["location"]
        plain.rss_context = given.get("rule_cnt", 0)
        assert bytes(info) == bytes(plain)

    def _25(self, info: Struct, address: int) -> None:
        self._only(info)
        info.flow_type = self.flags  # struct ethtool_value: cmd, data

    def _2d(self, info: Struct, address: int) -> None:
        self._only(info)
        info.data = self.rings

    def _2e(self, info: Struct, address: int) -> None:
        self._only(info)
        info.rss_context = len(self.table)  # rule_cnt
        info.data = self.size | (LOC_SPECIAL if self.chooses else 0)
        for _ in range(self.grows):
            self.table[len(self.table)] = bytes(Struct().fs)

    def _2f(self, info: Struct, address: int) -> None:
        location = info.fs.location
        self._only(info, location=location)
        if location not in self.table:
            raise OSError(self.none, os.strerror(self.none))
        ctypes.memmove(ctypes.addressof(info.fs), self.table[location], len(self.table[location]))

    def _30(self, info: Struct, address: int) -> None:
        room = info.rss_context
        if room < len(self.table):
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        at = Struct.rss_context.offset + 4
        assert at + 4 * room <= self.buffers[address], "the kernel would write behind the buffer"
        for number, location in enumerate(sorted(self.table)):
            ctypes.c_uint32.from_address(address + at + 4 * number).value = location
        info.rss_context = len(self.table) + self.counts_more
        info.data = self.size

    def _31(self, info: Struct, address: int) -> None:
        location = info.fs.location
        self._only(info, location=location)
        if location not in self.table:
            raise OSError(self.none, os.strerror(self.none))
        del self.table[location]

    def _32(self, info: Struct, address: int) -> None:
        if info.fs.location == 0xFFFFFFFF:
            assert self.chooses
            info.fs.location = max(set(range(self.size)) - self.table.keys())
        self.table[info.fs.location] = bytes(info.fs)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made, buffer = Driver(), ctypes.create_string_buffer

    def noted(size: int) -> ctypes.Array[ctypes.c_char]:
        memory = buffer(size)
        made.buffers[ctypes.addressof(memory)] = size
        return memory

    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    monkeypatch.setattr(ctypes, "create_string_buffer", noted)
    return made


@pytest.fixture
def rxnfc(driver: Driver) -> Iterator[Rxnfc]:
    made = Rxnfc(NAME)
    yield made
    made.close()


def test_receive_queues(driver: Driver) -> None:
    made = Rxnfc(NAME)
    assert made.rings() == 6
    made.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        made.rings()


@pytest.mark.parametrize(("flags", "on"), [(0, False), (FLAG_NTUPLE, True), (~FLAG_NTUPLE, False)])
def test_the_feature(driver: Driver, rxnfc: Rxnfc, flags: int, on: bool) -> None:
    driver.flags = flags & 0xFFFFFFFF
    assert rxnfc.ntuple_on() is on


@pytest.mark.parametrize("chooses", [True, False])
def test_how_many_rules_in_how_large_a_table(driver: Driver, rxnfc: Rxnfc, chooses: bool) -> None:
    driver.chooses = chooses
    rxnfc.insert(match(1), 3, 9)
    assert rxnfc.count() == RxnfcCount(1, 128, chooses)
    driver.size = 0
    assert rxnfc.count() == RxnfcCount(1, 0, chooses)


def test_the_driver_chooses_a_location(driver: Driver, rxnfc: Rxnfc) -> None:
    driver.table[127] = bytes(Struct().fs)
    assert rxnfc.insert(match(1), 3, None) == 126
    assert rxnfc.filter(126) == Filter(126, match(1), 3)


def test_each_rule_is_where_it_was_put_until_it_is_deleted(driver: Driver, rxnfc: Rxnfc) -> None:
    assert rxnfc.locations() == ((), 128)
    for number in range(5):
        assert rxnfc.insert(match(number), number, 10 + number) == 10 + number
    assert rxnfc.locations() == ((10, 11, 12, 13, 14), 128)
    assert [rxnfc.filter(10 + number) for number in range(5)] == [
        Filter(10 + number, match(number), number) for number in range(5)
    ]
    rxnfc.delete(12)
    assert sorted(driver.table) == [10, 11, 13, 14]
    driver.counts_more = 1000  # than it wrote: behind the list is nothing of ours
    assert rxnfc.locations()[0] == (10, 11, 13, 14)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EINVAL])
def test_no_rule_is_said_in_two_ways(driver: Driver, rxnfc: Rxnfc, code: int) -> None:
    driver.none = code
    assert rxnfc.filter(3) is None
    with pytest.raises(OSError, match=os.strerror(code)):
        rxnfc.delete(3)


def test_a_refusal_has_the_drivers_errno(driver: Driver, rxnfc: Rxnfc) -> None:
    calls: dict[int, Callable[[], object]] = {
        GRXRINGS: rxnfc.rings,
        GFLAGS: rxnfc.ntuple_on,
        GRXCLSRLCNT: rxnfc.count,
        GRXCLSRULE: lambda: rxnfc.filter(1),
        GRXCLSRLALL: rxnfc.locations,
        SRXCLSRLDEL: lambda: rxnfc.delete(1),
        SRXCLSRLINS: lambda: rxnfc.insert(match(1), 1, 1),
    }
    for command, call in calls.items():
        driver.refusals[command].append(errno.EBUSY)
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)) as refusal:
            call()
        assert refusal.value.errno == errno.EBUSY
    assert driver.table == {}


def test_a_long_list_has_room(driver: Driver, rxnfc: Rxnfc) -> None:
    driver.size = 4096
    driver.table = {location: bytes(Struct().fs) for location in range(0, 4000, 2)}
    assert rxnfc.locations() == (tuple(range(0, 4000, 2)), 4096)


def test_a_list_that_grew_meanwhile_is_asked_for_again(driver: Driver, rxnfc: Rxnfc) -> None:
    driver.grows = 3
    locations, _ = rxnfc.locations()
    assert locations == tuple(range(len(driver.table)))


def test_a_list_that_never_ends_is_an_error(driver: Driver, rxnfc: Rxnfc) -> None:
    driver.refusals[GRXCLSRLALL] += [errno.EMSGSIZE] * 100
    with pytest.raises(OSError, match="grows faster") as refusal:
        rxnfc.locations()
    assert refusal.value.errno == errno.EMSGSIZE
    assert len(driver.refusals[GRXCLSRLALL]) > 90
