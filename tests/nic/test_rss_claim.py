# SPDX-License-Identifier: GPL-2.0-or-later
"""What is made of what ethtool says about a hash: a claim of a driver known by name, or one that
flows have to prove."""

from __future__ import annotations

import pytest

from atfnd.kernel.ethtool import rxfh
from atfnd.kernel.ethtool.rxfh import ADDRESSES, FLOW_TYPES, PORTS, Rxfh
from atfnd.model import Transform
from atfnd.nic.driver_table import driver_of
from atfnd.nic.ethtool.rss import claimed

KEY, TABLE, EVERY = bytes(range(40)), (0, 1, 2, 3), tuple(Transform)
FIELDS = dict.fromkeys(FLOW_TYPES, ADDRESSES | PORTS)
NONE, XOR, OR_XOR = Transform.NONE, Transform.XOR, Transform.OR_XOR
SPI, VLAN, FLOW_LABEL, DISCARD = 1 << 6, 1 << 2, 1 << 9, 1 << 31


@pytest.mark.parametrize(
    ("driver", "transform", "transforms", "named"),
    [
        ("ixgbe", 0, (NONE,), True),
        ("ice", rxfh.XFRM_XOR, (XOR,), True),
        ("mlx5_core", rxfh.XFRM_OR_XOR, (OR_XOR,), True),
        ("mlx5_core", 0, EVERY, False),  # off, or a kernel before 6.15
        ("bnxt_en", 0, EVERY, False),
        ("bnxt_en", rxfh.XFRM_XOR, (XOR,), False),
        ("of nobody", 0, EVERY, False),
    ],
)
def test_a_transform_is_claimed_or_to_be_proven(
    driver: str, transform: int, transforms: tuple[Transform, ...], named: bool
) -> None:
    rss = claimed(driver_of(driver), Rxfh(KEY, TABLE, 1, transform), FIELDS)
    assert (rss.transforms, rss.named, rss.another) == (transforms, named, None)


@pytest.mark.parametrize(
    ("driver", "said", "why"),
    [
        ("ena", Rxfh(KEY, TABLE, 1, 0), "ena has a hash of its own"),
        ("gve", Rxfh(KEY, TABLE, 1, 0), "gve has a hash of its own"),
        ("ixgbe", Rxfh(bytes(40), TABLE, 1, 0), "all zeros"),
        ("ixgbe", Rxfh(KEY, TABLE, 4, 0), "not Toeplitz"),
        ("ice", Rxfh(KEY, TABLE, 1, 1 << 2), "a way that is not known"),
    ],
)
def test_a_hash_that_is_never_computed(driver: str, said: Rxfh, why: str) -> None:
    assert why in (claimed(driver_of(driver), said, FIELDS).another or "")


def test_only_addresses_with_both_ports_or_without_them_are_computed() -> None:
    fields = {(4, 6): ADDRESSES | PORTS, (4, 17): ADDRESSES, (6, 6): ADDRESSES | PORTS | FLOW_LABEL}
    rss = claimed(driver_of("ixgbe"), Rxfh(KEY, TABLE, 1, 0), fields)
    assert rss.addresses_only == {(4, 17)}
    assert rss.other_fields == {(6, 6)}
    assert rss.unsaid == {*FLOW_TYPES} - {*fields}
    for which in (1 << 4, 1 << 5, ADDRESSES | SPI, ADDRESSES | PORTS | VLAN, DISCARD, 0):
        rss = claimed(driver_of("ixgbe"), Rxfh(KEY, TABLE, 1, 0), {(4, 6): which})
        assert rss.other_fields == {(4, 6)}
