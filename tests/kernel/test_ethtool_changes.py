# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes by an admin are heard, of any interface of the namespace and of no other's."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.kernel.ethtool.changes import ethtool_changes
from atfnd.kernel.netlink.requests import Changes, GenericFamily
from tests.nic.interfaces import Namespace, a_namespace


@pytest.fixture
def net() -> Iterator[Namespace]:
    with a_namespace() as made:
        yield made


@pytest.fixture
def changes(net: Namespace) -> Iterator[Changes[int]]:
    with closing(ethtool_changes(net.path)) as listening:
        yield listening


def index(net: Namespace, name: str) -> int:
    return int(net.read(f"/sys/class/net/{name}/ifindex"))


def test_a_change_of_any_interface_is_heard_once_and_a_look_is_none(
    net: Namespace, changes: Changes[int]
) -> None:
    net.ethtool("-l v0")
    net.ip("link show v0")
    with a_namespace() as other:
        other.ethtool("-L v0 rx 2")
        assert changes.drain() == set()
    net.ethtool("-K v0 gro off")
    assert select.select([changes], [], [], 0)[0] == [changes]
    assert changes.drain() == {index(net, "v0")}
    for name in ("v0", "v1"):
        net.ethtool(f"-L {name} rx 2")
    assert changes.drain() == {index(net, "v0"), index(net, "v1")}
    assert changes.drain() == set()


def test_lost_messages_are_reported(net: Namespace, changes: Changes[int]) -> None:
    with socket.fromfd(changes.fileno(), socket.AF_NETLINK, socket.SOCK_RAW) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for rx in (1, 2, 3, 4) * 4:
        net.ethtool(f"-L v0 rx {rx}")
    assert changes.drain() is None
    net.ethtool("-L v0 rx 1")
    assert changes.drain() == {index(net, "v0")}


def test_a_family_or_a_group_that_is_not_there() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        GenericFamily("nonsense")
    assert os.listdir("/proc/self/fd") == before
    with closing(GenericFamily("ethtool")) as family, pytest.raises(KeyError):
        family.group("nonsense")
