# SPDX-License-Identifier: GPL-2.0-or-later
"""A tunnel of each kind that this kernel can make is known as one, by its address and by a route.

Of those in NOT_MADE, tests/observe/test_tunnels.py has the messages.
"""

from __future__ import annotations

from contextlib import closing

from atfnd.kernel.netlink import rtnl
from atfnd.kernel.netlink.tunnels import KINDS
from atfnd.observe.nics.namespace_links import NamespaceLinks
from tests.labs import packed
from tests.nic.interfaces import a_namespace

V4, V6 = "local 10.0.0.1 remote 10.0.0.2", "local fd00::1 remote fd00::2"
MADE = {
    "erspan": f"type erspan {V4} seq key 1 erspan_ver 1 erspan 1",
    "geneve": "type geneve id 1 remote 10.0.0.2",
    "gre": f"type gre {V4}",
    "gretap": f"type gretap {V4}",
    "ip6erspan": f"type ip6erspan {V6} seq key 1 erspan_ver 1 erspan 1",
    "ip6gre": f"type ip6gre {V6}",
    "ip6gretap": f"type ip6gretap {V6}",
    "ip6tnl": f"type ip6tnl {V6}",
    "ipip": f"type ipip {V4}",
    "sit": f"type sit {V4}",
    "vti": f"type vti {V4} key 1",
    "vti6": f"type vti6 {V6} key 1",
    "vxlan": "type vxlan id 7 dstport 4789 remote 10.0.0.2",
    "wireguard": "type wireguard",
    "xfrm": "type xfrm dev v0 if_id 1",
}
NOT_MADE = {
    "amt": "no module",
    "bareudp": "no module",
    "gtp": "ip(8) makes none",
    "ovpn": "since Linux 6.16",
    "tun": "tests/observe/test_namespace_links.py makes one",
}


def test_every_kind_is_here() -> None:
    assert MADE.keys() | NOT_MADE.keys() == KINDS


def test_a_tunnel_of_each_kind() -> None:
    ends = packed("10.1.0.1"), packed("10.2.0.9")
    with a_namespace() as net, closing(NamespaceLinks.of(net.path)) as known:
        net.ip("address add 10.0.0.1/24 dev v0")
        net.ip("address add 10.99.0.1/32 dev v1")
        nic = next(i for i, each in rtnl.links(net.path).items() if each.name == "v0")
        for kind, words in MADE.items():
            known.look()
            assert known.tunnel(nic, *ends) is None
            net.ip(f"link add t0 {words}")
            net.ip("address add 10.1.0.1/24 dev t0")
            net.ip("link set t0 up")
            known.look()
            assert str(known.tunnel(nic, *ends)) == f"t0 ({kind})"
            net.ip("route add 10.2.0.0/16 dev t0")
            assert str(known.tunnel(nic, packed("10.99.0.1"), ends[1])) == f"t0 ({kind})"
            net.ip("link del t0")
