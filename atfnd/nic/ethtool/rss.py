# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC claims of its RSS hash, from what ethtool says and what is known of the driver. Pure.

A transform of the input that ethtool does not name may be there nevertheless: only kernels from
6.8 on can say one, and mlx5, which has one by default, says it from 6.15 on.
"""

from __future__ import annotations

from collections.abc import Mapping

from atfnd.kernel.ethtool import rxfh
from atfnd.model import FlowType, Rss, Transform
from atfnd.nic.drivers import Driver, Hashing

__all__ = ["claimed"]

_TRANSFORMS = {rxfh.XFRM_XOR: Transform.XOR, rxfh.XFRM_OR_XOR: Transform.OR_XOR}


def claimed(driver: Driver, said: rxfh.Rxfh, fields: Mapping[FlowType, int]) -> Rss:
    """`fields`: as `rxfh.hashed_fields`."""
    computed = {rxfh.ADDRESSES, rxfh.ADDRESSES | rxfh.PORTS}
    named = driver.hashing is Hashing.AS_SAID
    if said.transform:
        named = named or driver.hashing is Hashing.TRANSFORM_AS_SAID
        transforms: tuple[Transform, ...] = (
            (_TRANSFORMS[said.transform],) if (said.transform in _TRANSFORMS) else ()
        )
    else:
        transforms = (Transform.NONE,) if named else tuple(Transform)
    return Rss(
        said.key,
        said.table,
        transforms,
        named,
        frozenset(of for of, which in fields.items() if which == rxfh.ADDRESSES),
        frozenset(of for of, which in fields.items() if which not in computed),
        frozenset(of for of in rxfh.FLOW_TYPES if of not in fields),
        _another(driver, said),
    )


def _another(driver: Driver, said: rxfh.Rxfh) -> str | None:
    if driver.hashing is Hashing.OWN:
        return f"{driver.name} has a hash of its own"
    if not said.toeplitz:
        return "its RSS hash is not Toeplitz"
    if said.transform and said.transform not in _TRANSFORMS:
        return "it transforms what it hashes in a way that is not known"
    if said.key and not any(said.key):
        return "the RSS key that it says is all zeros"
    return None
