# SPDX-License-Identifier: GPL-2.0-or-later
"""The C readers of sock_diag against real sockets: what a record says; which socket is new, used,
gone."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from atfnd.bpf import _bpf
from atfnd.kernel.netlink.inet_diag import records
from tests.kernel.netns import APP4, Net
from tests.observe.observing import cookie
from tests.wait import until

UDP_STATES = 1 << 1 | 1 << 7


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(stack)


def entrance(net: Net) -> int:
    fd = os.open(net.path, os.O_RDONLY)
    net.stack.callback(os.close, fd)
    return fd


def test_lost_ends_are_counted(net: Net) -> None:
    listener = _bpf.DestroyListener(entrance(net))
    net.stack.callback(listener.close)

    def storm() -> int:
        """Until the kernel dropped ends that found no room; a column of netlink."""
        for _ in range(20_000):
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
        lines = Path("/proc/thread-self/net/netlink").read_text().splitlines()
        rows = [line.split() for line in lines]
        return sum(int(row[rows[0].index("Drops")]) for row in rows[1:])

    until(lambda: net.inside(storm), "an overrun", 60)
    listener.drain()
    assert listener.lost() > 0


def test_what_a_reader_cannot_do_is_an_oserror() -> None:
    reader = _bpf.SockDiag(-1, socket.AF_INET, socket.IPPROTO_TCP, 2)
    reader.close()
    reader.close()
    for refused, code in (
        (reader, errno.EBADF),
        (_bpf.SockDiag(-1, socket.AF_INET, 99, 2), errno.ENOENT),
    ):
        with pytest.raises(OSError, match="sock_diag") as caught:
            refused.dump()
        assert caught.value.errno == code
    with open("/dev/null") as null, pytest.raises(OSError, match="open sock_diag") as caught:
        _bpf.SockDiag(null.fileno(), socket.AF_INET, socket.IPPROTO_TCP, 2)
    assert caught.value.errno == errno.EINVAL


def changed(reader: _bpf.SockDiag) -> list[int]:
    return [record.cookie for record in records(reader.changes(0, 0)[0])]


def test_a_socket_is_gone_when_two_dumps_in_a_row_lack_it(net: Net) -> None:
    reader = _bpf.SockDiag(entrance(net), socket.AF_INET, socket.IPPROTO_UDP, UDP_STATES)
    held = [net.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(100)]
    for made in held:
        made.bind((APP4, 0))
    cookies = [cookie(made) for made in held]
    assert sorted(changed(reader)) == sorted(cookies), "without counters all may have been used"
    for made in held[:30]:
        made.close()
    assert reader.changes(0, 0)[1] == []
    assert sorted(reader.changes(0, 0)[1]) == sorted(cookies[:30])
    assert reader.changes(0, 0)[1] == []
    assert sorted(changed(reader)) == sorted(cookies[30:])
