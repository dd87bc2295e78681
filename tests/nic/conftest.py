# SPDX-License-Identifier: GPL-2.0-or-later
"""A namespace of a test's own, and its NIC `v0` as atfnd opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.nic.ethtool.nic import EthtoolNic
from tests.nic.interfaces import Namespace, a_namespace

__all__ = ["net", "nic"]


@pytest.fixture
def net() -> Iterator[Namespace]:
    with a_namespace() as made:
        yield made


@pytest.fixture
def nic(net: Namespace) -> Iterator[EthtoolNic]:
    with closing(EthtoolNic("v0", net.path)) as opened:
        yield opened
