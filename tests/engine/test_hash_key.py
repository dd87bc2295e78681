# SPDX-License-Identifier: GPL-2.0-or-later
"""When the key of the RSS hash is written, and when it is put back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine.hash_key import due
from atfnd.model import (
    HashSeen,
    NicView,
    Rss,
    Transform,
)
from atfnd.model.nic import RSS_KEY
from tests.values import NIC

__all__: list[str] = []

OWN, SYMMETRIC = "0102" * 19 + "0a0b", "6d5a" * 20
ASKED = replace(NIC, symmetric_hash=True, settings={RSS_KEY: OWN})


def written(nic: NicView, was: str | None = None) -> list[tuple[str | None, str | None]]:
    found = due(nic, {} if was is None else {RSS_KEY: was})
    return [(each.setting, each.value) for each in found]


def test_a_key_of_the_same_length_is_written_once() -> None:
    assert written(ASKED) == [(RSS_KEY, SYMMETRIC)]
    assert written(replace(ASKED, settings={RSS_KEY: SYMMETRIC}), was=OWN) == []
    longer = replace(ASKED, settings={RSS_KEY: OWN + "ff" * 12})
    assert written(longer) == [(RSS_KEY, SYMMETRIC + "6d5a" * 6)]


@pytest.mark.parametrize(
    "changes",
    [{"armed": False}, {"manual": frozenset({RSS_KEY})}, {"settings": {}}],
    ids=["not armed", "another program's", "no key"],
)
def test_what_is_not_ours_is_not_written(changes: dict[str, object]) -> None:
    for nic in (ASKED, replace(ASKED, symmetric_hash=False, settings={RSS_KEY: SYMMETRIC})):
        assert written(replace(nic, **changes), was=OWN) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("transform", [Transform.XOR, Transform.OR_XOR])
def test_a_nic_that_is_symmetric_already_gets_no_key(transform: Transform) -> None:
    rss = Rss(bytes.fromhex(OWN), (0, 1, 2, 3), (transform,))
    assert written(replace(ASKED, rss=rss)) == []
    proven = HashSeen((transform,), frozenset(range(24)), 1e-12)
    unsaid = replace(rss, transforms=tuple(Transform), named=False)
    assert written(replace(ASKED, rss=unsaid)) == [(RSS_KEY, SYMMETRIC)]
    shown = replace(ASKED, rss=unsaid, hash_seen={(4, 6): proven})
    assert written(shown) == []
    ours = replace(ASKED, rss=rss, settings={RSS_KEY: SYMMETRIC})  # an admin switched it on later
    assert written(ours, was=OWN) == [(RSS_KEY, OWN)]
