# SPDX-License-Identifier: GPL-2.0-or-later
"""The list of the filter table, and refusals, by a driver in memory. Filters are written, read and
deleted by real drivers in tests/guest/test_rules.py."""

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
from atfnd.model import Match, Protocol
from tests.kernel.test_flow_spec import Rxnfc as Struct

# include/uapi/linux/ethtool.h
GRXCLSRLCNT, GRXCLSRULE, GRXCLSRLALL = 0x2E, 0x2F, 0x30
SRXCLSRLDEL, SRXCLSRLINS = 0x31, 0x32
LOC_SPECIAL = 0x80000000
NAME = "eth7"
MATCH = Match(4, Protocol.TCP, bytes([10, 1, 0, 1]), 32, bytes([10, 0, 0, 1]), 32, 7, 443)


class Driver:
    """What is behind SIOCETHTOOL: the locations of filters."""

    def __init__(self) -> None:
        self.size, self.chooses = 128, True
        self.table = set[int]()
        self.refusals: defaultdict[int, deque[int]] = defaultdict(deque)
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
        {GRXCLSRLCNT: self._count, GRXCLSRLALL: self._list}[info.cmd](info, address)

    def _count(self, info: Struct, address: int) -> None:
        info.rss_context = len(self.table)  # rule_cnt
        info.data = self.size | (LOC_SPECIAL if self.chooses else 0)
        self.table |= set(range(len(self.table), len(self.table) + self.grows))

    def _list(self, info: Struct, address: int) -> None:
        room = info.rss_context
        if room < len(self.table):
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        at = Struct.rss_context.offset + 4
        assert at + 4 * room <= self.buffers[address], "the kernel would write behind the buffer"
        for number, location in enumerate(sorted(self.table)):
            ctypes.c_uint32.from_address(address + at + 4 * number).value = location
        info.rss_context = len(self.table) + self.counts_more
        info.data = self.size


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


def test_how_many_rules_where_in_how_large_a_table(driver: Driver, rxnfc: Rxnfc) -> None:
    driver.table = set(range(0, 4000, 2))
    for chooses, size in ((True, 4096), (False, 4096), (False, 0)):
        driver.chooses, driver.size = chooses, size
        assert rxnfc.count() == RxnfcCount(2000, size, chooses)
    for driver.counts_more in (0, 1000):  # than it wrote: behind the list is nothing of ours
        assert rxnfc.locations() == (tuple(range(0, 4000, 2)), 0)


def test_no_rule_is_said_in_two_ways_and_any_other_refusal_is_one(
    driver: Driver, rxnfc: Rxnfc
) -> None:
    for code in (errno.ENOENT, errno.EINVAL):
        driver.refusals[GRXCLSRULE].append(code)
        assert rxnfc.filter(3) is None
    calls: dict[int, Callable[[], object]] = {
        GRXCLSRLCNT: rxnfc.count,
        GRXCLSRULE: lambda: rxnfc.filter(1),
        GRXCLSRLALL: rxnfc.locations,
        SRXCLSRLDEL: lambda: rxnfc.delete(1),
        SRXCLSRLINS: lambda: rxnfc.insert(MATCH, 1, 1),
    }
    for command, call in calls.items():
        driver.refusals[command].append(errno.EBUSY)
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)) as refusal:
            call()
        assert refusal.value.errno == errno.EBUSY


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
