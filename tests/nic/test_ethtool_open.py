# SPDX-License-Identifier: GPL-2.0-or-later
"""Which interfaces can be opened by name, and what is said of those that cannot."""

from __future__ import annotations

from contextlib import closing

import pytest

from atfnd.errors import OperatorError
from atfnd.kernel.system.netns import in_netns
from atfnd.nic import Nic
from atfnd.nic.driver import open_nic
from atfnd.nic.ethtool.conflicts import stacked
from atfnd.nic.ethtool.nic import EthtoolNic
from tests.nic.interfaces import QUEUES, Namespace


def opened(net: Namespace, name: str) -> Nic:
    """As a daemon does that runs in this namespace."""
    return in_netns(net.path, lambda: open_nic(name))


def refused(net: Namespace, name: str) -> tuple[str, str | None]:
    with pytest.raises(OperatorError) as error:
        opened(net, name)
    return error.value.message, error.value.hint


@pytest.mark.parametrize("name", ["eth99", "", "v0 ", "v123456789012345"])
def test_none_of_this_name(net: Namespace, name: str) -> None:
    net.ip("link add v12345678901234 type veth peer name v9")  # a long name is not cut
    message, hint = refused(net, name)
    assert message == f"no interface {name!r} here"
    assert hint is not None
    assert "lo" in hint
    assert "v0" in hint


def test_what_no_packet_comes_in_by(net: Namespace) -> None:
    said = "lo is the loopback interface: no packet comes in there"
    assert refused(net, "lo") == (said, None)
    net.ip("link add x0 type vxlan id 7 dstport 4789 local 127.0.0.1")
    said = "x0 is a vxlan tunnel: its packets come in through another interface"
    assert refused(net, "x0") == (said, None)


def test_what_stands_on_others(net: Namespace) -> None:
    net.ip("link add link v0 name m0 type macvlan")
    said = "m0 is a macvlan interface on top of v0"
    assert refused(net, "m0") == (said, "steer those: --nic v0")
    net.ip("link delete m0")
    net.ip("link add br0 type bridge")
    assert refused(net, "br0") == ("br0 is a bridge interface on top of none yet", None)
    for port in ("v0", "v1"):
        net.ip(f"link set {port} master br0")
    said = "br0 is a bridge interface on top of v0, v1"
    assert refused(net, "br0") == (said, "steer those: --nic v0 --nic v1")
    with closing(opened(net, "v0")) as nic:
        assert (nic.name, nic.netns, len(nic.queues())) == ("v0", None, QUEUES)


def test_one_that_is_stacked_behind_our_back(net: Namespace) -> None:
    """Nothing is steered on it."""
    net.ip("link add br0 type bridge")
    net.ip("link set v0 master br0")
    with closing(EthtoolNic("br0", net.path)) as nic:
        assert (nic.conflicts()[0].what, nic.conflicts()[0].blocks) == (
            "br0 is a bridge interface on top of v0",
            True,
        )


@pytest.mark.parametrize(("kind", "driver", "lower", "said"), [
    ("bond", "bonding", ["eth0", "eth1"], "a bond interface on top of eth0, eth1"),
    ("vlan", "802.1Q VLAN Support", ["eth0"], "a vlan interface on top of eth0"),
    # Masters with a device of their own, which claim the interrupts of the one below.
    (None, "net_failover", ["e4", "e4nsby"], "a net_failover interface on top of e4, e4nsby"),
    (None, "hv_netvsc", ["enP1s1"], "a hv_netvsc interface on top of enP1s1"),
    (None, "hv_netvsc", [], None),  # no virtual function: its packets come in here
    ("dsa", "dsa", ["eth0"], "a dsa interface on top of eth0"),
    (None, "mlx5_core", [], None),
    ("dummy", "dummy", [], None),
])  # fmt: skip
def test_what_is_not_made_here(
    kind: str | None, driver: str, lower: list[str], said: str | None
) -> None:
    assert stacked(kind, driver, lower) == said
