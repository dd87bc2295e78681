# SPDX-License-Identifier: GPL-2.0-or-later
"""From counts to pairs, where interfaces stand upon others."""

from __future__ import annotations

from dataclasses import replace

from atfnd.diagnose.gain import Parts
from atfnd.diagnose.pairs import Counted, Tally, of_nic, paired
from atfnd.kernel.netlink.rtnl import Link
from atfnd.model import ForwardedCount, NicView, Pair
from atfnd.observe.nics.forwarded import lowest
from tests.diagnose.machines import topology
from tests.values import NIC

NS = 1
LINKS = {
    1: Link("eth1", None, master=10),
    2: Link("eth2", None, master=10),
    3: Link("eth3", None),
    4: Link("veth4", "veth", lower=5, master=12),
    5: Link("veth5", "veth", lower=4),
    10: Link("bond0", "bond"),
    11: Link("bond0.5", "vlan", lower=10),
    12: Link("br0", "bridge"),
    13: Link("eth3.7", "vlan", lower=3, master=12),
    14: Link("eth3.8", "vlan", lower=3),
    15: Link("vxlan9", "vxlan", lower=3),
    16: Link("away", "vlan"),
    17: Link("empty", "bond"),
    18: Link("late", "vlan", lower=99),  # listed before it
    19: Link("eth9", None, master=20),
    20: Link("ovs", "openvswitch"),
}
NAMES = {(NS, index): link.name for index, link in LINKS.items()}
BELOW = {
    (NS, upper): tuple((NS, each) for each in sorted(under))
    for upper, under in lowest(LINKS).items()
}


def count(ingress: int, egress: int = 3, cpu: int = 0, packets: int = 10) -> ForwardedCount:
    return ForwardedCount(NS, ingress, egress, 0, cpu, packets, packets * 60)


def nic(name: str, *cpus: int) -> NicView:
    queues = tuple(replace(NIC.queues[i], cpu=cpu) for i, cpu in enumerate(cpus))
    return replace(NIC, name=name, settings={}, queues=queues)


def found(*counts: ForwardedCount, **watched: NicView) -> list[Pair]:
    nics = {at: watched[name] for at, name in NAMES.items() if name in watched}
    parts = Parts(topology())
    return list(paired(Counted(1.0, 0, counts), NAMES, BELOW, nics, parts).pairs)


def test_what_is_at_the_bottom() -> None:
    assert {NAMES[at]: {NAMES[each] for each in under} for at, under in BELOW.items()} == {
        "bond0": {"eth1", "eth2"},
        "bond0.5": {"eth1", "eth2"},
        "br0": {"veth4", "eth3"},
        "eth3.7": {"eth3"},
        "eth3.8": {"eth3"},
    }


def test_vlans_of_a_nic_are_that_nic() -> None:
    (one,) = found(count(13, 1), count(14, 1, packets=5), count(3, 1, packets=1))
    assert (one.ingress, one.among, one.packets, one.bytes_per_s) == ("eth3", (), 16, 960)


def test_what_a_vlan_sends_counts_once() -> None:
    (one,) = found(count(1, 14), count(1, 3))
    assert one.egress == "eth3"


def test_a_tunnel_is_no_nic() -> None:
    assert {(each.ingress, each.egress) for each in found(count(15, 1), count(1, 15))} == {
        ("vxlan9", "eth1"),
        ("eth1", "vxlan9"),
    }


def test_of_a_bond_it_is_the_nic_that_is_served_on_the_cpu() -> None:
    apart = {"eth1": nic("eth1", 0, 1), "eth2": nic("eth2", 2, 3)}
    (one,) = found(count(11, cpu=3), **apart)
    assert (one.ingress, one.rx_queue, one.among) == ("eth2", 1, ())
    (one,) = found(count(11, cpu=7), **apart)
    assert (one.ingress, one.rx_queue, one.among) == ("bond0.5", None, ("eth1", "eth2"))


def test_of_a_bond_it_is_not_known_by_which_nic() -> None:
    """Both are served on that CPU; or one is not watched, and may have brought it."""
    for watched in (
        {"eth1": nic("eth1", 0, 1), "eth2": nic("eth2", 0, 1)},
        {"eth1": nic("eth1", 0, 1)},
    ):
        made = paired(
            Counted(1.0, 0, (count(10), count(3, 1))), NAMES, BELOW,
            {at: watched[name] for at, name in NAMES.items() if name in watched},
            Parts(topology()),
        )  # fmt: skip
        first, second = sorted(made.pairs, key=lambda each: each.ingress)
        assert (first.ingress, first.among, first.rx_queue) == ("bond0", ("eth1", "eth2"), None)
        assert first.came_by == ("eth1", "eth2")
        assert second.came_by == ("eth3",)
        assert of_nic(made, "eth2").pairs == (first,)
        assert of_nic(made, "bond0").pairs == (first,)


def test_what_has_come_since_an_earlier_moment() -> None:
    before = Tally.of(10.0, 4, [count(1), count(2)])
    now = Tally.of(12.0, 9, [count(1), count(2, packets=25), count(3, packets=1)])
    assert now.since(before) == Counted(2.0, 5, (count(2, packets=15), count(3, packets=1)))
