# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon of model values, for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.published import Serving, serving, three_flows

__all__ = ["daemon"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running
