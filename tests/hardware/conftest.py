# SPDX-License-Identifier: GPL-2.0-or-later
"""The NIC under test; everything a test changes on it is put back and compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from atfnd.nic import Nic
from atfnd.nic.driver import open_nic

__all__ = ["nic"]

collect_ignore_glob = [] if os.environ.get("NIC") else ["test_*.py"]


def standing(nic: Nic) -> dict[str, Any]:
    """Everything atfnd may change on a NIC."""
    return {
        "rules": [rule._replace(hits=None) for rule in nic.filters()],
        "rss": nic.rss(),
        "settings": dict(nic.settings()),
        "queues": [(queue.index, queue.irq) for queue in nic.queues()],
    }


@pytest.fixture
def nic() -> Iterator[Nic]:
    """The NIC, which must stand after the test as it stood before."""
    opened = open_nic(os.environ["NIC"])
    try:
        before = standing(opened)
        yield opened
        assert standing(opened) == before
    finally:
        opened.close()
