# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs import Lab, a_lab

__all__ = ["lab"]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab of four queues and 4096 filter slots, for this test alone."""
    with a_lab() as made:
        yield made
