# SPDX-License-Identifier: GPL-2.0-or-later
"""What NICs of a namespace know of its links, addresses and routes, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.kernel.netlink import rtnl
from atfnd.observe.nics.namespace_links import NamespaceLinks
from tests.labs import packed
from tests.nic.interfaces import Namespace, a_namespace

VXLAN = "link add vx0 type vxlan id 7 dstport 4789 dev v0"
TUN = "tuntap add name vx0 mode tun"


@pytest.fixture
def net() -> Iterator[Namespace]:
    with a_namespace() as made:
        made.ip("link set lo up")
        yield made


class Nic:
    """`v0` of a namespace, and what is known there."""

    def __init__(self, net: Namespace, known: NamespaceLinks) -> None:
        self.net, self.known = net, known
        self.ifindex = next(i for i, each in rtnl.links(net.path).items() if each.name == "v0")

    def ip(self, command: str) -> None:
        self.net.ip(command)
        self.known.look()

    def tunnel(self, local: str, remote: str | None = None) -> str | None:
        end = None if remote is None else packed(remote)
        found = self.known.tunnel(self.ifindex, packed(local), end)
        return None if found is None else str(found)


@pytest.fixture
def nic(net: Namespace) -> Iterator[Nic]:
    with closing(NamespaceLinks.of(net.path)) as known:
        yield Nic(net, known)


def test_a_change_takes_no_list_of_all(nic: Nic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of links and addresses, they are listed once."""
    assert nic.tunnel("10.1.0.1") is None

    def listed(*_: object) -> None:
        raise AssertionError("listed")

    monkeypatch.setattr(rtnl, "_request", listed)
    nic.ip("address add 10.0.0.1/24 dev v0")
    assert nic.known.addresses(nic.ifindex) >= {packed("10.0.0.1")}
    nic.ip("address add 10.0.0.1/16 dev v0")
    nic.ip("address delete 10.0.0.1/24 dev v0")
    assert packed("10.0.0.1") in nic.known.addresses(nic.ifindex)
    nic.ip("address delete 10.0.0.1/16 dev v0")
    assert packed("10.0.0.1") not in nic.known.addresses(nic.ifindex)
    nic.ip(VXLAN)
    nic.ip("address add 10.1.0.1/24 dev vx0")
    assert nic.tunnel("10.1.0.1") == "vx0 (vxlan)"
    nic.ip("link set vx0 name vx1")
    assert nic.tunnel("10.1.0.1") == "vx1 (vxlan)"
    nic.ip("link add br0 type bridge")
    nic.ip("address add 10.2.0.1/24 dev br0")
    assert nic.tunnel("10.2.0.1") is None
    nic.ip("link set vx1 master br0")
    assert nic.tunnel("10.2.0.1") == "vx1 (vxlan)"
    nic.ip("link set v0 master br0")
    assert nic.tunnel("10.2.0.1") is None
    nic.ip("link set v0 nomaster")
    assert nic.tunnel("10.2.0.1") == "vx1 (vxlan)"
    nic.ip("link set vx1 nomaster")
    assert nic.tunnel("10.2.0.1") is None
    nic.ip("link delete vx1")
    assert nic.tunnel("10.1.0.1") is None


def test_after_lost_messages_all_is_listed_again(nic: Nic, monkeypatch: pytest.MonkeyPatch) -> None:
    nic.ip(VXLAN)
    assert nic.tunnel("10.1.0.1") is None
    heard = nic.known._news.heard
    monkeypatch.setattr(nic.known._news, "heard", lambda: heard() and None)
    nic.ip("address add 10.1.0.1/24 dev vx0")
    monkeypatch.undo()
    assert nic.tunnel("10.1.0.1") == "vx0 (vxlan)"


@pytest.mark.parametrize(
    ("local", "remote", "reached", "option"),
    [
        ("10.99.0.1", "10.98.0.5", "10.98.0.0/16", "-4"),
        ("fd99::1", "fd98::5", "fd98::/16", "-6"),
    ],
)
@pytest.mark.parametrize(("make", "kind"), [(VXLAN, "vxlan"), (TUN, "tun")])
def test_a_flow_whose_answers_go_by_a_tunnel(
    nic: Nic, make: str, kind: str, local: str, remote: str, reached: str, option: str
) -> None:
    """Its address is on `lo`. The tunnel is asked for as routes and rules say now."""
    nic.ip(f"address add {local} dev lo")
    nic.ip(make)
    nic.ip("link set vx0 up")
    assert nic.tunnel(local, remote) is None
    nic.ip(f"{option} route add {reached} dev vx0")
    assert nic.tunnel(local, remote) == f"vx0 ({kind})"
    assert nic.tunnel(local) is None
    nic.ip(f"{option} route replace {reached} dev v0")
    assert nic.tunnel(local, remote) is None
    nic.ip(f"{option} route add {reached} dev vx0 table 7")
    nic.ip(f"{option} rule add from {local} table 7")
    assert nic.tunnel(local, remote) == f"vx0 ({kind})"
